"""The transcript of a session as it stands: who says what after all, and what was corrected.

Names that were given count from the beginning.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, pairwise, takewhile
from operator import attrgetter
from unicodedata import category

from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import (
    Attribution,
    Correction,
    Edit,
    Event,
    Final,
    Gap,
    Item,
    Sound,
    SpeakerName,
    SpeakerTurns,
    TimedWord,
    aligned,
)
from streamd.labels import Names, is_said_by, renamed, revise, revised
from streamd.sinks import Format
from streamd.speakers import SpokenTurn
from streamd.types import FRAME_MS


class EditsSoFar:
    """What somebody has edited in a session, in the order in which it came."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._corrections: dict[int, list[Correction]] = {}
        self._attributions: list[Attribution] = []
        self.names: Names = {}
        """What speakers are called by now."""
        self.revision = 0
        """The number of edits so far."""
        for edit in edits:
            self.take(edit)

    def take(self, edit: Edit) -> None:
        """Take the next edit."""
        self.revision += 1
        match edit:
            case Correction():
                self._corrections.setdefault(edit.seq, []).append(edit)
            case Attribution():
                self._attributions.append(edit)
            case SpeakerName():
                self.names = renamed(self.names, edit)

    def of(self, final: Final) -> Sequence[Correction]:
        """Return the corrections of a final."""
        return self._corrections.get(final.seq, ())

    def attributed(self, final: Final) -> Final:
        """Return a final by whom it was said after all."""
        return attributed(final, self._attributions)

    def said(self, final: Final) -> Final:
        """Return a final as it stands: by whom it was said, and what was corrected."""
        return corrected(self.attributed(final), self.of(final))


class Revised:
    """The transcript of a session as it stands after its events.

    Sounds have their places by when they began, whenever they were told.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._items: list[Item] = []
        self._turns: list[SpokenTurn] = []
        self._edits = EditsSoFar()
        for event in events:
            self.take(event)

    @property
    def names(self) -> Names:
        """What speakers are called by now."""
        return self._edits.names

    def take(self, event: Event) -> int:
        """Take the next event; return the number of the first item that is new or has changed."""
        n_items = len(self._items)
        match event:
            case Final() | Gap() | Sound():
                return self._put(event)
            case Correction() | SpeakerName() | Attribution():
                self._edits.take(event)
                own = (i for i, item in enumerate(self._items) if _is_about(event, item))
                return next(own, n_items)
            case SpeakerTurns():
                self._turns = revised(self._turns, event)
                return min(revise(self._items, self._turns, event), default=n_items)
        return n_items

    def _put(self, item: Item) -> int:
        """Put an item where it began, or a sound in place of what was told of it; return where.

        Finals and gaps come in order, but sounds are told earlier than what is said meanwhile.
        """
        place = len(self._items)
        while place and _begins_later(last := self._items[place - 1], item):
            if isinstance(last, Sound) and isinstance(item, Sound) and _is_same(last, item):
                self._items[place - 1] = item
                return place - 1
            place -= 1
        self._items.insert(place, item)
        return place

    def __len__(self) -> int:
        return len(self._items)

    def since(self, first: int) -> Iterator[Item]:
        """Give the items from number `first` on."""
        for item in self._items[first:]:
            yield self._edits.said(item) if isinstance(item, Final) else item


def _start_ms(item: Item) -> int:
    return item.t_ms if isinstance(item, Gap) else item.start_ms


def _begins_later(item: Item, new: Item) -> bool:
    if isinstance(new, Sound):
        return _start_ms(item) >= new.start_ms
    return isinstance(item, Sound) and item.start_ms > _start_ms(new)


def _is_same(sound: Sound, other: Sound) -> bool:
    return (sound.label, sound.start_ms) == (other.label, other.start_ms)


def transcript(events: Iterable[Event], form: Format) -> bytes:
    """Return a file of a session's finals and gaps, given in order with what revises them."""
    text = Revised(events)
    form.names = {**text.names, **form.names}  # of whoever asks for the file, first of all
    return form.whole([*text.since(0)])


def corrected(final: Final, corrections: Sequence[Correction]) -> Final:
    """Return a final with the text of its corrections, of which newer ones replace older ones.

    What was `heard` stays beside it. The marks around the words that a correction replaces stay,
    unless it is exact. What is about words that the final does not have is ignored.
    """
    if not (kept := in_effect(final, corrections)):
        return final
    text, words = final.text, list(final.words)
    for each in sorted(kept, key=attrgetter("first"), reverse=True):
        places = list(aligned(text, words[: each.last + 1]))
        if len(places) <= each.last:
            continue
        start, end = places[each.first][0], places[each.last][1]
        is_exact = each.exact is True
        meant = each.text if is_exact else _with_marks(each.text, text[start:end])
        rest = text[end:]
        if not meant and (not text[:start] or text[:start][-1].isspace()):
            rest = rest.lstrip()
        text = text[:start] + meant + rest
        words[each.first : each.last + 1] = _retimed(meant, words[each.first : each.last + 1])
    text = text.rstrip()
    if text == final.text and words == list(final.words):
        return final
    return replace(final, text=text, words=tuple(words), heard=final.text)


def in_effect(final: Final, corrections: Iterable[Correction]) -> list[Correction]:
    """Return the corrections of a final that no newer one has replaced."""
    kept: list[Correction] = []
    for each in corrections:
        if each.first <= each.last < len(final.words):
            others = (other for other in kept if other.last < each.first or other.first > each.last)
            kept = [*others, each]
    return kept


def attributed(final: Final, attributions: Iterable[Attribution]) -> Final:
    """Return a final whose words have the speakers that somebody has given them, the newest last.

    The words are those that were sent: correct them afterwards.
    """
    words = list(final.words)
    for each in attributions:
        if not _is_about(each, final):
            continue
        first = each.first if each.seq == final.seq else 0
        end = each.last + 1 if each.to_seq == final.seq else len(words)
        for i, word in enumerate(words[first:end], first):
            if each.was in (0, word.speaker):
                words[i] = replace(word, speaker=each.speaker or UNSET)
    return final if words == list(final.words) else replace(final, words=tuple(words))


def _is_about(edit: Edit, item: Item) -> bool:
    """Whether an edit is about words of an item."""
    if not isinstance(item, Final):
        return False
    match edit:
        case Correction():
            return item.seq == edit.seq
        case SpeakerName():
            return is_said_by(item, edit.speaker)
    return item.seq >= edit.seq and (edit.to_seq == 0 or item.seq <= edit.to_seq)


_Group = tuple[list[str], int, int]
"""Words of a correction, and the range of the words that were heard for which they stand."""


def _retimed(text: str, heard: Sequence[TimedWord]) -> list[TimedWord]:
    """Return the words of a text that stands for those that were heard.

    Those that are the same keep their times; others share the time between them by their lengths.
    One that was inserted where there is no time shares that of its neighbour.
    """
    said, groups = text.split(), list[_Group]()
    texts = [word.text for word in heard]
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, texts, said, autojunk=False).get_opcodes():
        if kind == "equal":
            groups += [(said[j1 + n : j1 + n + 1], i1 + n, i1 + n + 1) for n in range(i2 - i1)]
        else:
            groups.append((said[j1:j2], i1, i2))
    return [word for group in _with_time(groups, heard) for word in _timed(group, heard)]


def _with_time(groups: Iterable[_Group], heard: Sequence[TimedWord]) -> list[_Group]:
    """Put words that were inserted where there is no time into one group with a neighbour."""
    found: list[_Group] = []
    for said, start, end in groups:
        is_inserted = start == end
        has_time = not is_inserted or (
            0 < start < len(heard)
            and heard[start].start_ms - heard[start - 1].end_ms >= FRAME_MS * len(said)
        )
        if found and (found[-1][2] == 0 or not has_time):
            before, since, until = found.pop()
            found.append(([*before, *said], since, max(end, until)))
        else:
            found.append((said, start, end))
    return found


def _timed(group: _Group, heard: Sequence[TimedWord]) -> list[TimedWord]:
    said, start, end = group
    replaced = heard[start:end]
    if said == [word.text for word in replaced]:
        return [*replaced]
    if replaced:
        like, from_ms, to_ms = replaced[0], replaced[0].start_ms, replaced[-1].end_ms
    else:
        like, from_ms, to_ms = heard[start - 1], heard[start - 1].end_ms, heard[start].start_ms
    return in_time(said, like, from_ms, to_ms)


def in_time(said: Sequence[str], like: TimedWord, start_ms: int, end_ms: int) -> list[TimedWord]:
    """Return words that share a time by their lengths, and are otherwise like another one."""
    ends = [0, *accumulate(map(len, said))]
    edges = [start_ms + (end_ms - start_ms) * each // max(1, ends[-1]) for each in ends]
    return [
        replace(like, text=word, start_ms=begin_ms, end_ms=until_ms)
        for word, (begin_ms, until_ms) in zip(said, pairwise(edges), strict=True)
    ]


def _with_marks(meant: str, was: str) -> str:
    """Return what was meant, between the marks around what it `was`."""
    before = "".join(takewhile(_opens, was))
    after = "".join(takewhile(_is_mark, reversed(was[len(before) :])))
    return before + meant + after[::-1]


def _opens(char: str) -> bool:
    return category(char) in ("Ps", "Pi") or char in "\"'¿¡"


def _is_mark(char: str) -> bool:
    return category(char).startswith("P")
