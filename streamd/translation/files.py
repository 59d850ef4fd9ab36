"""Transcripts in another language: a sink before that of a file."""

import logging
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from streamd.errors import EngineError, ModelError
from streamd.events import (
    Attribution,
    Correction,
    Event,
    Final,
    Partial,
    SpeakerTurns,
    TimedWord,
)
from streamd.sinks import Sink
from streamd.translation.sentences import Sentences
from streamd.translation.translator import Translator

_HANGS_S = 10.0
"""How long a sentence may take, of some 20 ms: the end of the program waits for it."""

log = logging.getLogger(__name__)


class TranslatedSink:
    """Gives a sink the whole sentences of a stream, translated `into` a language, as finals.

    It waits for the translator, and raises what that raises, or `EngineError` if that hangs. A
    sentence in a language from which no model translates stays as it is. What names speakers, or
    says by time who spoke, is passed on; what revises words of finals is left out, since there are
    others here. `written`: as for `Sentences`.
    """

    def __init__(
        self,
        sink: Sink,
        translator: Translator,
        into: str,
        *,
        names: Sequence[str] = (),
        written: str = "",
        hangs_s: float = _HANGS_S,
    ) -> None:
        self._hangs_s = hangs_s
        self._sink, self._translator = sink, translator
        self._into, self._names = into, names
        self._sentences, self._n_written = Sentences(written=written), 0
        self._turns: list[SpeakerTurns] = []  # that a sentence which is not complete may need
        self._unknown: set[str] = set()  # languages that the user was told of

    def write(self, event: Event) -> None:
        for sentence in self._sentences.take(event):
            if sentence.is_complete:
                self._put(sentence.said)
        if isinstance(event, SpeakerTurns):
            self._turns.append(event)
        if not isinstance(event, Final | Partial | Correction | Attribution):
            self._sink.write(event)

    def _put(self, said: Final) -> None:
        self._sink.write(self._translated(said))
        self._turns = [turns for turns in self._turns if turns.end_ms > said.start_ms]
        for turns in self._turns:  # came before the sentence was complete
            self._sink.write(turns)

    def close(self) -> None:
        self._sink.close()

    def _translated(self, said: Final) -> Final:
        self._n_written += 1
        try:
            self._translator.route(said.language, self._into)
        except ModelError as error:
            if said.language not in self._unknown:
                log.warning("what is said in %s stays as it is: %s", said.language, error)
            self._unknown.add(said.language)
            return replace(said, seq=self._n_written)
        translating = self._translator.translate(
            said.text, source=said.language, target=self._into, names=self._names
        )
        try:
            text = translating.result(self._hangs_s)
        except TimeoutError:
            raise EngineError(f"the translation into {self._into} takes too long") from None
        same = text == said.text
        return replace(
            said,
            seq=self._n_written,
            text=text,
            language=self._into,
            words=said.words if same else spread(text, said),
        )


def spread(text: str, said: Final) -> tuple[TimedWord, ...]:
    """Return the words of a translation, each at the time at which as much of `said` was spoken.

    So a translation stays behind the pauses of who speaks. There are none without times of words.
    """
    words = text.split()
    if not words or not said.words:
        return ()
    marks = [0.0, *accumulate(len(word) + 1 for word in words)]
    edges = [mark / marks[-1] for mark in marks]
    ends = [*accumulate(len(word.text) + 1 for word in said.words)]
    speaker = (
        said.words[0] if said.speaker is None else replace(said.words[0], speaker=said.speaker)
    )
    return tuple(
        replace(
            speaker,
            text=word,
            start_ms=_spoken(begin, said.words, ends, is_end=False),
            end_ms=_spoken(end, said.words, ends, is_end=True),
            prob=None,
            final=True,
            shares_time=True,
        )
        for word, (begin, end) in zip(words, pairwise(edges), strict=True)
    )


def _spoken(share: float, words: Sequence[TimedWord], ends: Sequence[int], *, is_end: bool) -> int:
    """Return when this share of the letters of words was spoken: at the end of one, or a start."""
    letters = share * ends[-1]
    # A word that ends where another one begins ends before the pause between them.
    i = bisect_left(ends, letters - 1e-6 if is_end else letters + 1e-6)
    i = min(i, len(words) - 1)
    begin = ends[i - 1] if i else 0
    word = words[i]
    part = (letters - begin) / (ends[i] - begin)
    return round(word.start_ms + (word.end_ms - word.start_ms) * min(max(part, 0.0), 1.0))
