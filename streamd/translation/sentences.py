"""What can be translated of a stream: sentences, and the committed clauses of one in progress.

A model translates a sentence better than its parts, but readers cannot wait for the end of a long
one. So the committed words of a sentence are given out again and again, each time from its
beginning, whenever there is another clause of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from streamd.events import Eos, Event, Final, Gap, Partial, TimedWord, aligned
from streamd.language import MARKS, ends_sentence
from streamd.sinks.writing import goes_on, joined_finals

MOST_WAITING = 8
"""Committed words after which the end of a clause is not waited for. With 8, the median word waits
0.6 to 1.1 s; with 4, half as long, but two to four times as many words are taken back; without a
limit up to 2 s, and one word in twenty 3.3 to 9.7 s (benchmarks/RESULTS.md, "Translation")."""


@dataclass(frozen=True, slots=True)
class SentenceSoFar:
    """A sentence, or the committed beginning of one.

    `said` is its text with its words; its `seq` is the number of its first final, and `last` that
    of the newest one, both 0 as long as none is final. `is_complete`: it does not change any more.
    """

    said: Final
    last: int
    is_complete: bool


class Sentences:
    """Joins the captions of a stream to sentences, each channel's for itself.

    `language` is that of the stream, if it is known before the first final; `written` is that of
    the captions, if they are written in another one than is spoken.
    """

    def __init__(self, language: str = "", *, written: str = "") -> None:
        self._language, self._written = written or language, written
        self._open: dict[int, SentenceSoFar] = {}  # whose finals do not end a sentence, by channel
        self._n_given: dict[int, int] = {}  # words of the present partial, by channel

    def take(self, event: Event) -> Iterator[SentenceSoFar]:
        """Yield what is new after this event, in order; a sentence replaces its beginnings."""
        match event:
            case Final() if event.text.strip():
                language = self._written or event.language
                yield from self._final(msgspec.structs.replace(event, language=language))
            case Partial():
                yield from self._partial(event)
            case Gap() | Eos():
                for channel in list(self._open):
                    yield from self._end(channel)

    def _end(self, channel: int) -> Iterator[SentenceSoFar]:
        """Yield what has current in a channel, as a sentence whose end nobody has said."""
        if current := self._open.pop(channel, None):
            yield replace(current, is_complete=True)

    def _final(self, final: Final) -> Iterator[SentenceSoFar]:
        channel = final.channel or 0
        said = final
        current = self._open.get(channel)
        if current is not None and goes_on(current.said, final):
            said = joined_finals(current.said, final)
        else:
            yield from self._end(channel)
        self._language = final.language
        self._n_given[channel] = 0
        self._open[channel] = sentence = SentenceSoFar(said, final.seq, is_complete=False)
        if final.continues or ends_sentence(final.text):
            yield from self._end(channel)
        else:
            yield sentence

    def _partial(self, partial: Partial) -> Iterator[SentenceSoFar]:
        channel = partial.channel or 0
        current = self._open.get(channel)
        language = current.said.language if current else self._language
        n_words = _clauses(partial.words, self._n_given.get(channel, 0))
        if not language or n_words <= self._n_given.get(channel, 0):
            return
        self._n_given[channel] = n_words
        said = _beginning(partial, n_words, language)
        if current is not None and goes_on(current.said, said):
            yield SentenceSoFar(joined_finals(current.said, said), current.last, is_complete=False)
            return
        yield from self._end(channel)
        yield SentenceSoFar(said, 0, is_complete=False)


def _clauses(words: Sequence[TimedWord], n_given: int) -> int:
    """Return how many committed words can be translated, of which `n_given` were.

    The mark behind the last committed word may still change, so it ends no clause.
    """
    n_committed = sum(word.final for word in words)
    if n_committed - n_given >= MOST_WAITING:
        return n_committed
    ends = (n for n in range(n_committed - 1, 0, -1) if words[n - 1].text.endswith(tuple(MARKS)))
    return next(ends, 0)


def _beginning(partial: Partial, n_words: int, language: str) -> Final:
    """Return the first words of a partial, as a final that has no number yet."""
    words = partial.words[:n_words]
    end = max((end for _, end, _ in aligned(partial.text, words)), default=0)
    return Final(
        seg=partial.seg,
        start_ms=partial.start_ms,
        end_ms=words[-1].end_ms,
        text=partial.text[:end],
        language=language,
        words=words,
        channel=msgspec.UNSET if partial.channel is msgspec.UNSET else partial.channel,
    )
