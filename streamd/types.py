"""The data that the parts pass to each other, and the one unit of time.

A *frame* is 320 samples = 20 ms at 16 kHz = one WebRTC-VAD decision = two mel hops = one encoder
position = Whisper's timestamp resolution. All inner time is an ``int`` count of frames since the
stream began; milliseconds exist only at the edges.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Protocol, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from streamd.language import is_mark

SAMPLE_RATE = 16_000
"""Hertz, of all audio after the framer."""
FRAME = 320
"""Samples in a frame: 20 ms at 16 kHz, one encoder position."""
FRAME_MS = 20
N_AUDIO_CTX = 1500
"""Frames in Whisper's whole encoder context: 30 s."""

Samples = NDArray[np.float32]
"""(n,) mono, 16 kHz, in [-1, 1]."""
Frames = NDArray[np.float32]
"""(n, 320): whole frames of `Samples`; (n, channels, 320) where channels are not mixed."""
Mel = NDArray[np.float32]
"""(n_mels, n_frames), one column per 10 ms hop, which is the unit of `Clip`."""
COLUMNS_PER_FRAME = 2
Voiced = NDArray[np.bool_]
"""For each frame of a recording, whether there is speech."""


def mixed(frames: Frames) -> Frames:
    """Return (n, 320) frames: the mean of channels that were not mixed."""
    one: Frames = frames.mean(1) if frames.ndim == 3 else frames
    return one


def frames_from_ms(ms: int) -> int:
    """Whole frames in `ms` milliseconds, rounded down."""
    return ms // FRAME_MS


@dataclass(frozen=True, slots=True)
class Clip:
    """Columns `start` to `end`, exclusive; text that reaches a `silent_end` is complete."""

    start: int
    end: int
    silent_end: bool = False


def in_order(
    times: Sequence[tuple[int, int]], start: int, end: int, *, least: int
) -> list[tuple[int, int]]:
    """Return when each word starts and ends, moved so that it follows the one before it.

    Each lasts `least`, and all are between `start` and `end`, if there is room.
    """
    placed: list[tuple[int, int]] = []
    for n_left, (begins, ends) in zip(range(len(times), 0, -1), times, strict=True):
        latest = max(start, end - n_left * least)
        at = min(max(begins, start), latest)
        start = max(min(ends, latest + least), at + least)
        placed.append((at, start))
    return placed


def ms_from_frames(frames: int) -> int:
    """Milliseconds in `frames` frames."""
    return frames * FRAME_MS


@dataclass(frozen=True, slots=True)
class Word:
    """One word as the model wrote it, with its place in the stream.

    `text` keeps its leading blank and its punctuation; `start`, `end` are frames since the stream
    began; `prob` is the mean probability of its tokens, 0..1, or None if the model does not tell
    it; `tokens` are the ids that spell it, so that a committed word can be fed back as prefix or
    prompt. The last `n_mark` of them spell the mark that closes it (`is_mark`); 0: it
    has none. `stable` says whether the model itself will not change the word any more, or is None
    if it never says that. A word that `shares_time` is placed by its length: the model tells no
    time of it.
    """

    text: str
    start: int
    end: int
    prob: float | None
    tokens: tuple[int, ...] = ()
    n_mark: int = 0
    stable: bool | None = None
    shares_time: bool = False

    def is_doubtful(self, below: float) -> bool:
        """Whether it is known to be less probable than that."""
        return self.prob is not None and self.prob < below


def rounded(prob: float | None, digits: int = 3) -> float | None:
    """Return a probability as it is told, or None if it is not known."""
    return None if prob is None else round(prob, digits)


def mean_prob(probs: Iterable[float | None]) -> float | None:
    """Return the mean of those probabilities that are known, or None if none is."""
    known = [prob for prob in probs if prob is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What another session needs to continue after what is final.

    It is fed the audio from `start_ms` of the session on, so that its voice gate can adapt. All
    places are frames after it: the last final ended at `until`. Its last window began at `anchor`
    and had these `words`, which the decoder gets again before an utterance that follows at once.
    `voiceprints` are those of its speakers (`streamd.speakers.Roster`), if they are told apart.
    """

    start_ms: int = 0
    until: int = 0
    words: tuple[Word, ...] = ()
    anchor: int = 0
    language: str = ""
    voiceprints: tuple[bytes, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A recognizer's results for frames `start` to `end` that the next window reuses; opaque.

    `states` are None where it cannot. `by` is whose they are if there are several models.
    """

    start: int
    end: int
    states: object
    by: object = None


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The languages, the task and the vocabulary of a window's text.

    `languages` are the codes of those that may be spoken; empty: any. `language` is the one of the
    window before, or empty. `task` is "transcribe" or "translate", or empty for the recognizer's
    own. `initial_prompt` is text before the prompt; text that is too long loses its beginning.
    `vocabulary` are phrases to expect, one a line.
    """

    languages: tuple[str, ...] = ()
    language: str = ""
    task: str = ""
    initial_prompt: str = ""
    vocabulary: str = ""


@dataclass(frozen=True, slots=True)
class LanguageQuestion:
    """Asks for the language of the sound from frame `since` on.

    If it `decides`, the window is decoded in the detected language; otherwise the language is only
    reported. The answer is a `DetectedLanguage`.
    """

    since: int = 0
    decides: bool = True


@dataclass(frozen=True, slots=True)
class DetectedLanguage:
    """A language and its probability, and that of the one before.

    The first probability is None if the recognizer did not detect a language.
    """

    language: str
    prob: float | None = None
    previous_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnQuestion:
    """Asks whether somebody who has spoken since frame `since` is done at the window's end."""

    since: int


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """How probable it is that the speaker is done."""

    prob: float


@dataclass(frozen=True, slots=True)
class MarksQuestion:
    """Asks for the marks and capitals of the words of `before` and `prefix`, and of new ones."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class MarksAnswer:
    """The words of the question with the marks and capitals that are right now."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """Limits how often a window with poor text is decoded again (`streamd.whisper.attempts`).

    A `last` window may be decoded again until that has cost `budget` (frames, as
    `Work.extra_cost`). Text that ends before frame `text_until` leaves out much speech; None: the
    window has too little speech for that. `clear`: the utterance is short and clearly speech.
    `certain`: somewhere in the utterance somebody certainly speaks, or nothing can tell.
    """

    budget: float = math.inf
    text_until: int | None = None
    clear: bool = False
    certain: bool = True


StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)


def following(
    table: Mapping[StateT, Mapping[EventT, StateT]], state: StateT, event: EventT
) -> StateT:
    """Return the next state. Raises `RuntimeError` if the table has no such event in this one."""
    if event not in table[state]:
        raise RuntimeError(f"{event.name} cannot happen in {state.name}")
    return table[state][event]


KindT = TypeVar("KindT")


def _of_kind(items: tuple[object, ...], kind: type[KindT]) -> KindT | None:
    return next((item for item in items if isinstance(item, kind)), None)


@dataclass(frozen=True, slots=True)
class Window:
    """Audio to transcribe, and what is known about it.

    `samples` are frames `start` to `end`. `prompt` are committed tokens before the window, `before`
    those inside it that are of the utterance before, `prefix` those inside it that are of its own;
    these end at frame `prefix_end`. `draft` is the uncommitted part of the last hypothesis, to be
    verified. A `last` window ends the utterance (if the silence lasts): all of its words will be
    committed, so it is decoded with full checks. `asks` are further questions, at most one of each
    type; the recognizer, or a wrapper around it, adds the answers to the hypothesis.
    """

    start: int
    end: int
    samples: Samples
    prompt: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    prefix_end: int = 0
    draft: tuple[int, ...] = ()
    last: bool = False
    options: TextOptions = TextOptions()
    asks: tuple[object, ...] = (LanguageQuestion(),)
    encoded: Encoded | None = field(default=None, compare=False, repr=False)

    def asked(self, kind: type[KindT]) -> KindT | None:
        """Return the question of this kind, if the window asks it."""
        return _of_kind(self.asks, kind)

    @property
    def retry(self) -> RetryRequest:
        """How much may be decoded again."""
        return self.asked(RetryRequest) or RetryRequest()


class Suspect(StrEnum):
    """The reason why a guard distrusts a hypothesis."""

    NO_SPEECH = "no_speech"
    """The decoder doubts that the window holds speech; there are no words."""
    LOOP = "loop"
    """The decoder repeated itself; the words say it once."""
    NO_END = "no_end"
    """The decoder was stopped at the token limit."""
    HALLUCINATION = "hallucination"
    """The words were what Whisper writes for sounds without speech; they are removed."""


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of a window: of all decoding, and of decoding again (`extra_cost`).

    Both are in frames of audio whose text may take as many decoder passes. `attempts` are the ways
    in which the window was decoded again (`streamd.whisper.attempts`), and whether their text was
    kept. `disbelieved` is text that a guard removed as a guess.
    """

    cost: int = 0
    extra_cost: int = 0
    attempts: tuple[tuple[str, bool], ...] = ()
    disbelieved: str = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What the recognizer found in one window, after the window's `prefix`.

    `words` and `tokens` (text tokens only: the concatenation of the words' tokens) exclude the
    prefix. `language` is the one in which it was decoded. `suspect` says why a guard distrusts the
    result, or is None: suspect words are never agreed upon, and unless the window is `last` they
    are not shown. `avg_logprob` and `no_speech_prob` are None if the model does not tell them.
    `answers` belong to the questions of the window (`asks`). `work` is its cost, and `encoded` what
    the next window can reuse.
    """

    words: tuple[Word, ...] = ()
    tokens: tuple[int, ...] = ()
    language: str = "en"
    avg_logprob: float | None = 0.0
    no_speech_prob: float | None = 0.0
    temperature: float = 0.0
    suspect: Suspect | None = None
    answers: tuple[object, ...] = ()
    work: Work = field(default=Work(), compare=False, repr=False)
    encoded: Encoded | None = field(default=None, compare=False, repr=False)

    def answer(self, kind: type[KindT]) -> KindT | None:
        """Return the answer of this kind, if there is one."""
        return _of_kind(self.answers, kind)

    def answered(self, answer: object) -> "Hypothesis":
        """Return the hypothesis with one more answer."""
        return replace(self, answers=(*self.answers, answer))

    @property
    def evidence(self) -> float:
        """How much speaks for the text; see `evidence`."""
        return evidence(self.avg_logprob or 0.0, self.no_speech_prob or 0.0, self.temperature)


class WindowRecognizer(Protocol):
    """Turns windows into hypotheses."""

    def recognize(self, window: Window) -> Hypothesis:
        """Transcribe the window; called in another thread, for one window at a time."""


def evidence(avg_logprob: float, no_speech_prob: float, temperature: float) -> float:
    """The one measure of whether a text was said: the lower, the more it is a guess.

    It is the mean log probability, less the probability that the window holds no speech, less the
    temperature at which the text was sampled: what is drawn often enough looks probable. Of 46,000
    words of real speech (tiny.en and base; read, noisy, in conversation) 98 % are in texts above
    -1, of voices that say nothing (mumbled vowels, crowds, speech backwards) almost none.
    """
    return avg_logprob - no_speech_prob - temperature


PROBABLE = -1.0
"""The evidence from which a text counts. With less, live words are shown, but none of them is
committed, the next utterance does not begin with them, and an utterance of which no hypothesis had
more has no final, unless it is short and clear (`is_probable`). Of real speech nine windows of ten
have more, of noise one of twenty."""
FIRST_WORD, CLEAR_NO_SPEECH = 3.0, 0.55
"""What the evidence of clear speech is raised by, divided by the number of tokens (end-of-text is
one), and the probability of no speech up to which it is. Of 218 single words (tiny.en) 66 have too
little evidence without, 9 with 2.0, 3 with 3.0, and 4.0 gains none, but from a minute of bursts of
four voices backwards 25 instead of 12 words. Single words had a probability of up to 0.40 (tiny.en)
and 0.60 (base), imitated laughs more than 0.62, vowels alone 0.29 to 0.73."""


class Judged(Protocol):
    """A text, and what tells whether it is more than a guess."""

    @property
    def evidence(self) -> float:
        """See `evidence`."""

    @property
    def no_speech_prob(self) -> float | None:
        """The probability that nobody speaks."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those of the text."""


def is_probable(text: Judged, *, clear: bool = False) -> bool:
    """Whether a text is more than a guess; with `clear`, that of a short and clear utterance.

    There the sound itself says that somebody speaks, and most of the text is its first word, which
    is improbable by nature, since no text comes before it: so what that word costs counts less.
    """
    if text.evidence >= PROBABLE:
        return True
    is_speech = clear and (text.no_speech_prob or 0.0) <= CLEAR_NO_SPEECH
    return is_speech and text.evidence + FIRST_WORD / (len(text.tokens) + 1) >= PROBABLE


def with_marks(words: Sequence[Word]) -> list[Word]:
    """Join each mark that stands alone to the word before it."""
    joined: list[Word] = []
    for word in words:
        if joined and is_mark(word.text):
            joined[-1] = replace(
                joined[-1],
                text=joined[-1].text + word.text,
                tokens=(*joined[-1].tokens, *word.tokens),
                n_mark=len(word.tokens),
            )
        else:
            joined.append(word)
    return joined


def text_of(words: Sequence[Word]) -> str:
    """The words' text as one line, without the blank in front."""
    return "".join(word.text for word in words).strip()


def compression_ratio(text: str) -> float:
    """How many times zlib shrinks the text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
