"""Turns windows into hypotheses with a model of another family.

A model that streams keeps a stream open for each utterance. It lives in what the windows carry
(`Window.encoded`), and gets the samples that came since the window before. A pause may not be the
end of the utterance, so the stream is not finalized there: it hears as much silence as it needs to
say all words, and goes on behind that. So it knows what was said before the pause. The session
drops the stream soon after the utterance has ended, and the next one gets a stream of its own.

None of these models says how probable it is that nobody spoke, and some write sentences for a bark
or a door. So a window is read once it is certain that somebody speaks in its utterance.

A model that does not stream reads each window anew. Then the session commits words on which windows
agree, as with Whisper. Neither decodes a window again, prompts with earlier text, or believes the
text less where it is improbable; the marks of a committed word stay. Text that repeats itself is
cut off, and not committed before the utterance ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from streamd.engines.families.said import (
    FamilyModel,
    FamilyStream,
    Said,
    SaidWord,
    are_timed,
    behind,
    number_of,
    shared,
    split,
    text_of_tokens,
    word_of,
)
from streamd.language import is_mark
from streamd.types import (
    FRAME,
    FRAME_MS,
    DetectedLanguage,
    Encoded,
    Hypothesis,
    Samples,
    Suspect,
    TextOptions,
    Window,
    Word,
    frames_from_ms,
)
from streamd.whisper.guards import find_repetition

_SHORTEST = 5
"""Frames (0.1 s) that a run takes at least; fewer are followed by silence."""


class FamilyRecognizer:
    """A model with what it needs for windows of many sessions. Not thread-safe."""

    def __init__(self, model: FamilyModel, vocabulary: str = "") -> None:
        """`vocabulary` are phrases to expect in all sessions, one a line."""
        self._model, self._vocabulary = model, vocabulary

    def recognize(self, window: Window) -> Hypothesis:
        """Return the words in the window after its prefix.

        What the library raises ends the session, whose stream it was, and no other one.
        """
        if not window.retry.certain:
            return Hypothesis(
                language=window.options.language,
                avg_logprob=None,
                no_speech_prob=None,
                suspect=Suspect.NO_SPEECH,
                encoded=window.encoded,
            )
        phrases = f"{self._vocabulary}\n{window.options.vocabulary}".strip()
        options = replace(window.options, vocabulary=phrases)
        if not self._model.abilities.streams:
            least = np.zeros(max(0, _SHORTEST * FRAME - len(window.samples)), np.float32)
            said = self._model.run(finite(np.concatenate([window.samples, least])), options)
            return self._answer(_read(window, said), said, options)
        carried = window.encoded.states if window.encoded else None
        stream = carried if isinstance(carried, OpenStream) and carried.goes_on(window) else None
        if stream is None:
            begin = min(max(window.start, window.prefix_end), window.end)
            number = number_of(window.prefix)
            first = 0 if number is None else number + 1
            stream = OpenStream(self._model.begin(options), begin, first)
        try:
            said, words = stream.hear(window)
        except BaseException:
            stream.close()
            raise
        # It needs no audio that it has heard, but all that comes after it.
        encoded = Encoded(stream.end, stream.end, stream)
        return replace(self._answer(words, said, options), encoded=encoded)

    def _answer(self, words: Sequence[Word], said: Said, options: TextOptions) -> Hypothesis:
        known = self._model.abilities.languages
        language = said.language or (known[0] if len(known) == 1 else options.language)
        n_kept = find_repetition([word.text for word in words])
        words = words[:n_kept]
        return Hypothesis(
            words=tuple(words),
            tokens=tuple(token for word in words for token in word.tokens),
            language=language,
            avg_logprob=None,
            no_speech_prob=None,
            suspect=None if n_kept is None else Suspect.LOOP,
            answers=(DetectedLanguage(language),),
        )


@dataclass(slots=True)
class OpenStream:
    """A stream that has heard an utterance from frame `begin` to `end`.

    Its words are numbered from `first` on. The session has committed the texts `committed`, and was
    answered `answered` behind them.
    """

    native: FamilyStream
    begin: int
    first: int
    end: int = field(init=False)
    committed: list[str] = field(default_factory=list)
    answered: tuple[Word, ...] = ()
    was_last: bool = False
    _pauses: list[tuple[int, int]] = field(default_factory=list)
    """Frames of the stream at which it heard silence that was not there, and how many of it."""
    _is_open: bool = True

    def __post_init__(self) -> None:
        self.end = self.begin

    def goes_on(self, window: Window) -> bool:
        """Whether the window is of the utterance that the stream hears, and all of it is here."""
        # The window behind a pause may end before the last one of the pause did.
        if not self._is_open or not window.start <= self.end or window.end < self.begin:
            return False
        if (number := number_of(window.prefix)) is not None:
            return self._n_done - 1 <= number < self._n_done + len(self.answered)
        if self.was_last:  # what comes behind it is of the next utterance, if that has begun
            return not self.committed and self.begin == window.prefix_end
        return self.begin <= window.prefix_end <= self.end

    @property
    def _n_done(self) -> int:
        """The number of the first word that is not committed."""
        return self.first + len(self.committed)

    def hear(self, window: Window) -> tuple[Said, list[Word]]:
        """Hear what is new in the window; return all that was said, and what is not committed."""
        if (number := number_of(window.prefix)) is not None:
            n_new = max(0, number + 1 - self._n_done)
            self.committed += [word.text for word in self.answered[:n_new]]
            self.answered = self.answered[n_new:]
        if window.end > self.end:
            self.native.feed(finite(window.samples[(self.end - window.start) * FRAME :]))
            self.end = window.end
        if window.last:
            at = self.end - self.begin + sum(n for _, n in self._pauses)
            self._pauses.append((at, frames_from_ms(self.native.settle())))
        said, self.was_last = self.native.said(), window.last
        n = behind(self.committed, [word.text for word in said.words])
        new = said.words[n:]
        places = self._places(new, window)
        self.answered = tuple(
            word_of(
                word,
                self._n_done + i,
                places[i],
                stable=n + i < said.n_stable,
                shares_time=not are_timed(new),
            )
            for i, word in enumerate(new)
        )
        return said, [*_mark(window.prefix, said.words[:n], window.prefix_end), *self.answered]

    def close(self) -> None:
        """Close the stream; another one hears what follows."""
        self._is_open = False
        self.native.close()

    def _places(self, words: Sequence[SaidWord], window: Window) -> list[tuple[int, int]]:
        """The frames of each word.

        Without times of the model, a word that the window before had stays where it was; the others
        share the time since.
        """
        if are_timed(words):
            return [
                (self._frame(word.start_ms or 0), self._frame(word.end_ms or 0)) for word in words
            ]
        texts = [word.text.strip() for word in words]
        kept: list[tuple[int, int]] = []
        for before, text in zip(self.answered, texts, strict=False):
            if before.text.strip() != text:
                break
            kept.append((before.start, before.end))
        start = max(self.begin, window.prefix_end, *(end for _, end in kept), 0)
        return [*kept, *shared(texts[len(kept) :], min(start, self.end), self.end)]

    def _frame(self, ms: int) -> int:
        """The frame of the session at a time of the stream, whose pauses were longer."""
        at = before = ms // FRAME_MS
        for since, n in self._pauses:
            if before > since:
                at -= min(n, before - since)
        return self.begin + at


def _read(window: Window, said: Said) -> list[Word]:
    """The words that a run has found in a window, behind those that it was given."""
    given = split(text_of_tokens((*window.before, *window.prefix)))
    n = behind(given, [word.text for word in said.words])
    new = said.words[n:]
    if are_timed(new):
        spans = [((word.start_ms or 0) // FRAME_MS, (word.end_ms or 0) // FRAME_MS) for word in new]
        places = [(window.start + start, window.start + end) for start, end in spans]
    else:
        start = min(max(window.start, window.prefix_end), window.end)
        places = shared([word.text.strip() for word in new], start, window.end)
    words = [
        word_of(word, i, places[i], stable=None, shares_time=not are_timed(new))
        for i, word in enumerate(new)
    ]
    return [*_mark((*window.before, *window.prefix), said.words[:n], window.prefix_end), *words]


def _mark(given: Sequence[int], words: Sequence[SaidWord], at: int) -> list[Word]:
    """The mark behind the last given word, if it has none yet: it is uncommitted, as a word."""
    bare = text_of_tokens(given).rstrip()
    mark = words[-1].text[-1:] if words and bare else ""
    if not is_mark(mark) or is_mark(bare[-1:]):
        return []
    return [Word(mark, at, at, None, tuple(mark.encode()))]


def finite(samples: Samples) -> Samples:
    """The samples as the library takes them: without NaN and infinity, in one block of memory."""
    clean: Samples = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)
    return clean
