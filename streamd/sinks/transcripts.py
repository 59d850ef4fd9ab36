"""The transcript of a session as it stands: who says what after all, and what was corrected.

Names that were given count from the beginning.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from unicodedata import category

from msgspec.structs import replace

from streamd.events import (
    Correction,
    Event,
    Final,
    Gap,
    SpeakerName,
    SpeakerTurns,
    TimedWord,
    aligned,
)
from streamd.labels import Names, is_said_by, renamed, revise, revised
from streamd.sinks import Format
from streamd.speakers import SpokenTurn


class Revised:
    """The finals and gaps of a session as they stand: who says what, and what was corrected."""

    def __init__(self) -> None:
        self._items: list[Final | Gap] = []
        self._corrections: dict[int, list[Correction]] = {}
        self._turns: list[SpokenTurn] = []
        self.names: Names = {}
        """What speakers are called by now."""

    def take(self, event: Event) -> int:
        """Take the next event; return the number of the first item that is new or has changed."""
        n_items = len(self._items)
        match event:
            case Final() | Gap():
                self._items.append(event)
                return n_items
            case Correction():
                self._corrections.setdefault(event.seq, []).append(event)
                found = (i for i in reversed(range(n_items)) if self._is(i, event.seq))
                return next(found, n_items)
            case SpeakerName():
                self.names = renamed(self.names, event)
                own = (i for i in range(n_items) if self._is_by(i, event.speaker))
                return next(own, n_items)
            case SpeakerTurns():
                self._turns = revised(self._turns, event)
                return min(revise(self._items, self._turns, event), default=n_items)
        return n_items

    def _is(self, i: int, seq: int) -> bool:
        item = self._items[i]
        return isinstance(item, Final) and item.seq == seq

    def _is_by(self, i: int, speaker: int) -> bool:
        item = self._items[i]
        return isinstance(item, Final) and is_said_by(item, speaker)

    def __len__(self) -> int:
        return len(self._items)

    def since(self, first: int) -> Iterator[Final | Gap]:
        """Give the items from number `first` on."""
        for item in self._items[first:]:
            known = self._corrections.get(item.seq, ()) if isinstance(item, Final) else ()
            yield corrected(item, known) if isinstance(item, Final) and known else item


def transcript(events: Iterable[Event], form: Format) -> str:
    """Return a file of a session's finals and gaps, given in order with what revises them."""
    text = Revised()
    for event in events:
        text.take(event)
    form.names = {**text.names, **form.names}  # of whoever asks for the file, first of all
    return form.header + "".join(map(form.append, text.since(0))) + form.end(complete=True)


def corrected(final: Final, corrections: Sequence[Correction]) -> Final:
    """Return a final with the text of its corrections, of which newer ones replace older ones.

    The marks around the words that a correction replaces stay. What is about words that the final
    does not have is ignored.
    """
    kept: list[Correction] = []
    for each in corrections:
        if each.first <= each.last < len(final.words):
            others = (other for other in kept if other.last < each.first or other.first > each.last)
            kept = [*others, each]
    text, words = final.text, list(final.words)
    for each in sorted(kept, key=_first, reverse=True):
        places = list(aligned(text, words[: each.last + 1]))
        if len(places) <= each.last:
            continue
        start, end = places[each.first][0], places[each.last][1]
        meant = _with_marks(each.text, text[start:end])
        text = text[:start] + meant + text[end:]
        replaced = words[each.first : each.last + 1]
        words[each.first : each.last + 1] = _spread(meant, replaced[0], replaced[-1].end_ms)
    return replace(final, text=text, words=tuple(words)) if kept else final


def _spread(text: str, first: TimedWord, end_ms: int) -> list[TimedWord]:
    """Return the words of a text from the first of those that it replaces, by their lengths."""
    said = text.split() or [text]
    ends = [*accumulate(map(len, said))]
    span_ms, whole = end_ms - first.start_ms, ends[-1] or 1
    edges = [first.start_ms + span_ms * each // whole for each in (0, *ends)]
    return [
        replace(first, text=word, start_ms=start_ms, end_ms=until_ms)
        for word, (start_ms, until_ms) in zip(said, pairwise(edges), strict=True)
    ]


def _first(correction: Correction) -> int:
    return correction.first


def _with_marks(meant: str, was: str) -> str:
    """Return what was meant, between the marks around what it `was`."""
    before = "".join(takewhile(_opens, was))
    after = "".join(takewhile(_is_mark, reversed(was[len(before) :])))
    return before + meant + after[::-1]


def _opens(char: str) -> bool:
    return category(char) in ("Ps", "Pi") or char in "\"'¿¡"


def _is_mark(char: str) -> bool:
    return category(char).startswith("P")
