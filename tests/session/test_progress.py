"""Whatever the recognizer answers, a session makes progress, and it ends.

The recognizer here is an adversary. It answers with words before, behind and beyond the window, of
no or negative length, with times that go back, with any probability and any `suspect`, with what it
was given, or with nothing at all where there is voice; and it answers late. An engine that raises
is not tested here: the owner of a session then ends it (`tests/daemon/test_failures.py`).

With CI set, a run draws 150 examples, otherwise 62. This draws ten thousand, in about ten minutes:

    STREAMD_EXAMPLES=10000 .venv/bin/pytest --timeout 0 tests/session/test_progress.py
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.events import Event, Final, Gap, Partial
from streamd.options import (
    AgreementOptions,
    EndpointOptions,
    GateOptions,
    SessionOptions,
)
from streamd.session import Session
from streamd.session.commit import AlignAtt, LocalAgreement, NativeRule
from streamd.session.gate import Gate, GatedFrame
from streamd.session.segmenter import Segmenter
from streamd.types import (
    FRAME,
    FRAME_MS,
    N_AUDIO_CTX,
    DetectedLanguage,
    Hypothesis,
    Suspect,
    Window,
    Word,
)
from tests.support.fakes import loud_frames
from tests.support.promises import check_speaking, check_transcript

many = settings(
    max_examples=int(os.environ.get("STREAMD_EXAMPLES", settings().max_examples * 5 // 2)),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

LEAST_READ = 25
"""Frames that a last window must have read for another one to follow it."""
_COUNT = 2.0**-20
"""A frame's number is the multiple of this in its first sample."""


# What the recognizer answers


@dataclass(frozen=True)
class Lie:
    """A word, from a place of the window (or of the stream, or of the word before) on."""

    text: str
    place: str
    offset: int
    length: int
    prob: float | None
    n_tokens: int
    stable: bool | None = None


@dataclass(frozen=True)
class Speaker:
    """Says a word in each `grid` frames of the stream (0: none) until frame `until`."""

    grid: int = 0
    until: int = 0
    prob: float = 0.9

    def words(self, window: Window) -> Iterator[Word]:
        """Those in the window that are new, without a mistake."""
        if self.grid:
            begin, end = max(window.start, window.prefix_end), min(window.end, self.until)
            for n in range(-(-begin // self.grid), -(-end // self.grid)):
                start = n * self.grid
                yield Word(f" w{n}", start, min(start + self.grid, end), self.prob, (n,))


@dataclass(frozen=True)
class Answer:
    """What is made of a window in which the speaker says nothing new, or of any if `deaf`.

    It is as `about` has it, and its words are the lies.
    """

    lies: tuple[Lie, ...] = ()
    about: Hypothesis = field(default_factory=Hypothesis)
    deaf: bool = False
    n_repeated: int = 0
    """Tokens that the decoder repeats of what it was given."""

    def hypothesis(self, window: Window, speaker: Speaker) -> Hypothesis:
        words = () if self.deaf else tuple(speaker.words(window))
        if words:
            return Hypothesis(words=words, tokens=_tokens(words), avg_logprob=-0.2)
        words = tuple(self._lies(window))
        return replace(self.about, words=words, tokens=_tokens(words))

    def _lies(self, window: Window) -> Iterator[Word]:
        start = end = window.start
        for n, lie in enumerate(self.lies):
            places = {"start": window.start, "prefix": window.prefix_end, "end": window.end}
            start = places.get(lie.place, end if lie.place == "word" else 0) + lie.offset
            end = start + lie.length
            tokens = (n + 1,) * lie.n_tokens
            yield Word(lie.text, start, end, lie.prob, tokens, stable=lie.stable)
        given = (*window.before, *window.prefix, *window.draft)
        for token in given[: self.n_repeated]:
            yield Word(f" w{token}", start, end, 0.9, (token,))


def _tokens(words: tuple[Word, ...]) -> tuple[int, ...]:
    return tuple(token for word in words for token in word.tokens)


WORDS = [" a", " b", " Bee", "", " ", " yes.", " no,", " 9", " 0", " 1.", " you", " and"]
texts = st.sampled_from([*WORDS, ".", ",", "。", " 好。", "？", " Thank you.", " \u0301x"])
probs = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0])
lies = st.builds(
    Lie,
    text=texts,
    place=st.sampled_from(["start", "prefix", "end", "word", "stream"]),
    offset=st.integers(-8, 8) | st.integers(-2000, 2000),
    length=st.sampled_from([12, 0, -5, 1, 60, 200, -300, 2000]),
    prob=probs | st.none(),
    n_tokens=st.sampled_from([1, 2, 0, 5]),
    stable=st.sampled_from([None, None, True, False]),
)
abouts = st.builds(
    Hypothesis,
    language=st.sampled_from(["en", "de", ""]),
    answers=st.tuples(
        st.builds(DetectedLanguage, st.sampled_from(["en", "de", ""]), probs | st.none(), probs)
    ),
    avg_logprob=st.sampled_from([-0.2, 0.0, -0.9, -1.1, -3.0, None]),
    no_speech_prob=st.sampled_from([0.0, 0.2, 0.4, 1.0, None]),
    temperature=st.sampled_from([0.0, 0.4, 1.0]),
    suspect=st.sampled_from([None, None, None, *Suspect]),
)
answers = st.builds(
    Answer,
    lies=st.just(()) | st.lists(lies, max_size=6).map(tuple),
    about=abouts,
    n_repeated=st.sampled_from([0, 0, 2, 50]),
    deaf=st.sampled_from([False, False, False, True]),
)
speakers = st.builds(
    Speaker,
    grid=st.sampled_from([12, 0, 25, 40, 300]),
    until=st.sampled_from([100_000, 100, 300, 700]) | st.integers(0, 3000),
    prob=probs,
)


# What it is asked about


@dataclass(frozen=True)
class Speech:
    """Voice and the silence behind it, in frames, with dips to each `levels[n]` in turn."""

    loud: int
    quiet: int
    levels: tuple[float, ...] = (0.1,)
    each: int = 5

    def frames(self) -> np.ndarray:
        levels = np.resize(np.repeat(self.levels, self.each), self.loud)
        return np.concatenate((levels, np.zeros(self.quiet))).astype(np.float32)


@dataclass(frozen=True)
class Act:
    """A stretch of speech, and what happens to the stream behind it."""

    speech: Speech
    flush: bool = False
    gap_ms: int = 0


FOLLOWING = GateOptions(attack=1)
"""A gate that follows the loudness at once."""


@dataclass(frozen=True)
class World:
    """All that is not the session's own choice, in the units of frames; each list is a cycle."""

    acts: tuple[Act, ...]
    speaker: Speaker = Speaker()
    steps: tuple[Answer, ...] = (Answer(),)
    lasts: tuple[Answer, ...] = (Answer(),)
    blocks: tuple[int, ...] = (25,)
    delays: tuple[int, ...] = (0,)
    options: SessionOptions = field(default_factory=SessionOptions)
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    gate: GateOptions = FOLLOWING
    policy: int = 0

    def session(self, voiced: list[bool]) -> Session:
        policy, gate = POLICIES[self.policy](), NotingGate(self.gate, voiced)
        return Session(gate, Segmenter(self.endpoint), policy, self.options)


class NotingGate(Gate):
    """Notes in `voiced` which frames it lets through for their own sake, not for one before."""

    def __init__(self, options: GateOptions, voiced: list[bool]) -> None:
        super().__init__(loud_frames, options)
        self._voiced = voiced

    def feed(self, frames: np.ndarray) -> list[GatedFrame]:
        heard = super().feed(frames)
        pairs = zip(heard, loud_frames(frames), strict=True)
        self._voiced += [each.silence == 0 and is_loud for each, is_loud in pairs]
        return heard


POLICIES = (
    LocalAgreement,
    AlignAtt,
    lambda: LocalAgreement(AgreementOptions(agree=3)),
    lambda: LocalAgreement(AgreementOptions(min_progress=0, doubtful_prob=0.0)),
    lambda: NativeRule(LocalAgreement()),
)

quiet_frames = st.sampled_from([60, 200, 5, 12, 20, 31, 1, 0])
speech = st.builds(
    Speech,
    loud=st.integers(1, 120) | st.integers(100, 1500) | st.integers(900, 3000),
    quiet=quiet_frames,
    levels=st.lists(st.sampled_from([0.1, 0.06, 0.3, 1.0]), min_size=1, max_size=4).map(tuple),
    each=st.sampled_from([5, 1, 50, 300]),
)
acts = st.builds(
    Act,
    speech,
    flush=st.sampled_from([False, False, False, True]),
    gap_ms=st.sampled_from([0, 0, 0, 30, 600, 20_000, 400_000]),
)
session_options = st.builds(
    SessionOptions,
    step=st.sampled_from([25, 0, 100, 7, 1]),
    length=st.sampled_from([400, 50, 250, 1500, 1]),
    context_tokens=st.sampled_from([32, 0, 3, 64]),
    backlog=st.sampled_from([30_000, 1500, 500]),
    languages=st.sampled_from([(), ("en",), ("en", "de")]),
    task=st.sampled_from(["", "", "translate"]),
)
pauses = st.sampled_from([0, 1, 20, 30, 60])


@st.composite
def endpoints(draw) -> EndpointOptions:
    if draw(st.booleans()):
        return EndpointOptions()
    silences = [draw(pauses)] * 3 if draw(st.booleans()) else [draw(pauses) for _ in range(3)]
    longest = draw(st.sampled_from([1400, 50, 225, 1500]))
    return EndpointOptions(
        pre_roll=draw(st.sampled_from([25, 0, 60, 400])),
        pre_final=draw(st.sampled_from([10, 0, 60])),
        plain=silences[0],
        sentence=silences[1],
        unfinished=silences[2],
        longest=longest,
    )


worlds = st.builds(
    World,
    acts=st.lists(acts, min_size=1, max_size=4).map(tuple),
    speaker=speakers,
    steps=st.lists(answers, min_size=1, max_size=4).map(tuple),
    lasts=st.lists(answers, min_size=1, max_size=4).map(tuple),
    blocks=st.lists(st.sampled_from([25, 1, 7, 50, 333]), min_size=1, max_size=3).map(tuple),
    delays=st.lists(
        st.just(0) | st.integers(0, 400) | st.integers(0, 2000), min_size=1, max_size=3
    ).map(tuple),
    options=session_options,
    endpoint=endpoints(),
    gate=st.sampled_from([FOLLOWING, GateOptions(), GateOptions(attack=30, open_share=0.2)]),
    policy=st.integers(0, len(POLICIES) - 1),
)

unsure = st.builds(
    Hypothesis,
    avg_logprob=st.sampled_from([-1.5, -0.2]),
    suspect=st.sampled_from([None, Suspect.NO_SPEECH, Suspect.LOOP]),
)
sung = st.builds(
    World,
    acts=st.builds(
        lambda loud, levels, each: (Act(Speech(0, 60)), Act(Speech(loud, 200, levels, each))),
        st.integers(900, 1390),
        st.sampled_from([(0.1, 0.06), (0.1, 0.3, 0.06)]),
        st.sampled_from([5, 8, 20]),
    ),
    speaker=st.builds(Speaker, grid=st.sampled_from([25, 12]), until=st.integers(60, 400)),
    steps=st.tuples(
        st.builds(Answer, st.just((Lie(" la", "end", -60, 40, 0.2, 1),)), about=unsure)
    ),
    lasts=st.tuples(st.builds(Answer, about=unsure)),
    options=st.sampled_from([SessionOptions(), SessionOptions(backlog=1500)]),
    delays=st.tuples(st.sampled_from([0, 0, 100])),
)
"""Somebody says something, and goes on without a word: sings, or is drowned by a crowd."""


# What happens


@dataclass
class Run:
    """One session from its beginning to its end, and what there was to see of it."""

    world: World
    session: Session
    voiced: list[bool]
    """What the gate says, frame by frame."""
    events: list[Event] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    """All of them were accepted."""
    settled: list[tuple[int, int]] = field(default_factory=list)
    """`finalised_ms` and `now_ms`, whenever something had happened."""
    times_ms: list[int] = field(default_factory=list)
    """When each frame was heard."""
    n_flushes: int = 0

    def play(self) -> None:
        """Feed it all, and give it the windows it wants, unless it wants them for ever."""
        world = self.world
        self._answers = {True: cycle(world.lasts), False: cycle(world.steps)}
        self._delays, blocks = cycle(world.delays), cycle(world.blocks)
        self._out: Window | None = None
        self._free_at = 0
        for act in world.acts:
            levels = act.speech.frames()
            while len(levels):
                n = next(blocks)
                self._feed(levels[:n])
                levels = levels[n:]
                self._work()
            if act.flush:
                self._flush()
            if act.gap_ms:
                self._tear(act.gap_ms)
            self._work()
        self._flush()
        self._delays, self._free_at = cycle([0]), 0
        self._work()

    @property
    def is_endless(self) -> bool:
        """Whether there were so many windows, or so often the same, that there is no last one."""
        newest = {(window.start, window.end, window.prefix_end) for window in self.windows[-20:]}
        again = len(self.windows) >= 20 and len(newest) == 1
        return again or len(self.windows) > self.session.now + 100

    def _feed(self, levels: np.ndarray) -> None:
        n, now, now_ms = len(levels), self.session.now, self.session.now_ms
        frames = levels[:, None].repeat(FRAME, axis=1)
        frames[:, 0] = np.arange(now, now + n) * _COUNT
        self.times_ms += [now_ms + i * FRAME_MS for i in range(n)]
        self._note(self.session.feed(frames))

    def _tear(self, duration_ms: int) -> None:
        now = self.session.now
        self._note(self.session.gap(duration_ms, "overrun"))
        self.times_ms += [0] * (self.session.now - now)  # nobody has heard anything

    def _flush(self) -> None:
        self.n_flushes += 1
        self._note(self.session.flush())

    def _work(self) -> None:
        """Take the windows that are due until the engine is busy."""
        while not self.is_endless:
            if self._out is not None:
                if self.session.now < self._free_at:
                    return
                window, self._out = self._out, None
                answer = next(self._answers[window.last])
                self._note(
                    self.session.accept(window, answer.hypothesis(window, self.world.speaker))
                )
            due = self.session.due
            window = self.session.next_window()
            assert due == (window is not None)
            if window is None:
                return
            self.windows.append(window)
            self._out, self._free_at = window, self.session.now + next(self._delays)

    def _note(self, events: list[Event]) -> None:
        self.events += events
        self.settled.append((self.session.finalised_ms, self.session.now_ms))


def run(world: World) -> Run:
    voiced: list[bool] = []
    told = Run(world, world.session(voiced), voiced)
    told.play()
    return told


# What is always so


def check_end(told: Run) -> None:
    assert not told.is_endless, [(each.start, each.end) for each in told.windows[-20:]]
    assert told.session.next_window() is None
    assert told.session.idle


def detected(answer: Answer) -> bool:
    heard = answer.about.answer(DetectedLanguage)
    return heard is not None and bool(heard.language)


def check_number(told: Run) -> None:
    assert len(told.windows) <= most_windows(told)


def most_windows(told: Run) -> int:
    """A bound that is linear in the length of the audio.

    - An utterance begins at a voiced frame behind silence, at a flush, where another was cut, which
      is not before half of the longest is over, or where the language changes, which is not before
      half a second of the one before was read.
    - For partials an utterance has a window each step.
    - Each pause asks for a last window, and so does an utterance that did not end in its pause.
    - A last window that left out 1.5 s of voice is followed by one that begins there: behind
      given words once in each pause, behind new ones if it is half a second shorter.
    """
    n_frames, endpoint = len(told.voiced), told.world.endpoint
    pairs = zip([False, *told.voiced], told.voiced, strict=False)
    n_pauses = sum(now and not before for before, now in pairs) + 1
    furthest = endpoint.longest - min(endpoint.trailing_silence, endpoint.longest // 2)
    n_cuts = n_frames // furthest
    answers = (*told.world.steps, *told.world.lasts)
    n_changes = n_frames // LEAST_READ if any(detected(each) for each in answers) else 0
    n_utterances = n_pauses + told.n_flushes + n_cuts + n_changes
    step = told.world.options.step
    n_partials = n_frames // step + n_utterances if step else 0
    n_again = n_frames // LEAST_READ + n_pauses + n_utterances
    return n_partials + n_pauses + n_utterances + n_again


def check_samples(told: Run) -> None:
    for window in told.windows:
        assert 0 <= window.start <= window.end <= told.session.now
        assert len(window.samples) == (window.end - window.start) * FRAME
        frames = window.samples.reshape(-1, FRAME)
        numbers = np.arange(window.start, window.end) * np.float32(_COUNT)
        assert ((frames[:, 0] == numbers) | (frames[:, 1] == 0)).all()


def check_length(told: Run) -> None:
    for window in told.windows:
        assert window.end - window.start <= N_AUDIO_CTX, "more than the model hears"


def check_prefix(told: Run) -> None:
    for window in told.windows:
        assert window.start <= window.prefix_end <= window.end


def check_lasts(told: Run) -> None:
    """Each ends its utterance, or lets the next begin later, or behind more words.

    Or behind none of the utterance before, if nothing was found behind them.
    """
    lasts = [
        (each.start, each.end, each.prefix_end, bool(each.before))
        for each in told.windows
        if each.last
    ]
    assert max(Counter(lasts).values(), default=0) <= 1, "again the same"


def check_heard(told: Run) -> None:
    """Each frame that the gate let through was in an accepted window, or is in a gap."""
    heard = ~np.asarray(told.voiced, bool)
    for window in told.windows:
        heard[window.start : window.end] = True
    times_ms = np.asarray(told.times_ms)
    for event in told.events:
        if isinstance(event, Gap) and event.why == "engine":
            heard |= (event.t_ms <= times_ms) & (times_ms < event.t_ms + event.duration_ms)
    assert heard.all(), np.flatnonzero(~heard)


def check_times(told: Run) -> None:
    finals = [event for event in told.events if isinstance(event, Final)]
    for event in told.events:
        if isinstance(event, Partial | Final):
            assert 0 <= event.start_ms <= event.end_ms <= told.session.now_ms
    for before, after in pairwise(finals):
        assert before.start_ms <= after.start_ms
        assert before.end_ms <= after.end_ms


def check_settled(told: Run) -> None:
    for (before_ms, _), (after_ms, now_ms) in pairwise(told.settled):
        assert before_ms <= after_ms <= now_ms


CHECKS = (
    check_end,
    check_number,
    check_samples,
    check_length,
    check_prefix,
    check_lasts,
    check_heard,
    check_times,
    check_settled,
)


def check_all(told: Run) -> None:
    for check in CHECKS:
        check(told)
    check_transcript(told.events)
    check_speaking(told.events)


@many
@given(worlds)
def test_a_session_makes_progress_whatever_the_recognizer_answers(world):
    check_all(run(world))


@many
@given(sung)
def test_a_session_ends_when_words_are_followed_by_voice_without_any(world):
    check_all(run(world))


def test_a_committed_word_ends_with_its_final_if_a_pause_began_within_it():
    told = run(
        World(
            acts=(Act(Speech(1, 60)), Act(Speech(50, 60))),
            speaker=Speaker(grid=12, until=100_000, prob=0.0),
            options=SessionOptions(step=7),
            endpoint=EndpointOptions(pre_final=6),
            gate=GateOptions(attack=30, open_share=0.2),
            policy=3,
        )
    )
    check_all(told)
    *_, partial, _, final = told.events
    committed, last = partial.words[-1], final.words[-1]
    assert committed.final
    assert (committed.text, committed.end_ms) == ("w9", 2400)
    assert (last.text, last.end_ms) == ("w9", 2340)
    assert final.end_ms == 2340
