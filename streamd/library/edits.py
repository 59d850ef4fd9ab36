"""What somebody has edited in a session of the library, as notes, and how it is undone.

A sentence is sent as a whole. Only the words in it that differ from those that were heard are
corrected, so that all others keep their times, and what was heard stands beside each change.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from math import ceil
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from streamd.errors import ConfigError, WireError
from streamd.events import Attribution, Correction, Edit, Final, SpeakerName, aligned
from streamd.labels import MOST_NAME, name_from
from streamd.library.tables import UNSPACED
from streamd.sinks.transcripts import EditsSoFar, attributed, corrected, in_effect

_MOST_EDITS = 5_000
"""In a request: one that undoes the merge of two speakers names each stretch between them."""
_MOST_LETTERS = 10_000
"""Of a sentence."""
_MOST_LEARNED = 5
"""Words of a correction that is taken for a name or a term; a longer one is a sentence."""
_MARKS = " .,;:!?…\"'«»„“”()[]¿¡。，、！？"
_PIECE = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\S)+")


class EditedSentence(Struct, frozen=True, kw_only=True):
    """What was said, in place of all of the text of final `seq`; empty: nothing was."""

    seq: Annotated[int, Meta(ge=1)]
    text: Annotated[str, Meta(max_length=_MOST_LETTERS)]


class Speaking(Struct, frozen=True, kw_only=True):
    """Who says which words: see `Attribution`."""

    speaker: Annotated[int, Meta(ge=0, le=9_999)]
    seq: Annotated[int, Meta(ge=1)]
    first: Annotated[int, Meta(ge=0)] = 0
    to_seq: Annotated[int, Meta(ge=0)] = 0
    last: Annotated[int, Meta(ge=0)] = 0
    was: Annotated[int, Meta(ge=0, le=9_999)] = 0

    @property
    def attribution(self) -> Attribution:
        """The note that says so."""
        return Attribution(**asdict(self))


class Naming(Struct, frozen=True, kw_only=True):
    """What a speaker is called; with an empty name, they have only a number."""

    speaker: Annotated[int, Meta(ge=1, le=9_999)]
    name: Annotated[str, Meta(max_length=MOST_NAME)]


class Edits(Struct, frozen=True, kw_only=True):
    """What somebody changes at once; `revision` is that of the session which they have seen.

    With `keep`, words that were corrected are expected in later sessions.
    """

    revision: Annotated[int, Meta(ge=0)]
    sentences: Annotated[tuple[EditedSentence, ...], Meta(max_length=_MOST_EDITS)] = ()
    speakers: Annotated[tuple[Speaking, ...], Meta(max_length=_MOST_EDITS)] = ()
    names: Annotated[tuple[Naming, ...], Meta(max_length=_MOST_EDITS)] = ()
    keep: bool = False


class EditedText:
    """The finals of a session and the notes about them, for somebody who edits it.

    Raises `ConfigError` where it has no such final or words, and `WireError` for what is no name.
    """

    def __init__(self, events: Iterable[object]) -> None:
        self._finals: dict[int, Final] = {}
        self.edits = EditsSoFar()
        for event in events:
            if isinstance(event, Final):
                self._finals[event.seq] = event
            elif isinstance(event, Edit):
                self.edits.take(event)

    def edit(self, wanted: Edits) -> tuple[list[Edit], Edits]:
        """Take what is wanted; return the notes that say so, and the edits that undo it."""
        notes: list[Edit] = []
        before: list[EditedSentence] = []
        for sentence in wanted.sentences:
            final = self._final(sentence.seq)
            before.insert(0, EditedSentence(seq=final.seq, text=self._as_corrected(final).text))
            notes += self._rewritten(final, sentence.text)
        speakers: list[Speaking] = []
        for speech in wanted.speakers:
            self._check(speech)
            speakers[:0] = self._speakers(speech.attribution)
            self.edits.take(speech.attribution)
            notes.append(speech.attribution)
        names: list[Naming] = []
        for naming in wanted.names:
            known = self.edits.names.get(naming.speaker, "")
            names.insert(0, Naming(speaker=naming.speaker, name=known))
            note = SpeakerName(speaker=naming.speaker, name=_checked(naming.name))
            self.edits.take(note)
            notes.append(note)
        undo = Edits(
            revision=self.edits.revision,
            sentences=tuple(before),
            speakers=tuple(speakers),
            names=tuple(names),
        )
        return notes, undo

    def texts(self, notes: Iterable[Edit]) -> Iterator[tuple[int, str, str]]:
        """Give number, text as it was heard, and text as it stands, of what notes correct."""
        for seq in {note.seq for note in notes if isinstance(note, Correction)}:
            final = self._final(seq)
            yield seq, final.text, self._as_corrected(final).text

    def learned(self, notes: Iterable[Edit]) -> Iterator[str]:
        """Give the words of corrections that are worth being expected in later sessions."""
        for note in notes:
            if not isinstance(note, Correction):
                continue
            words = self._final(note.seq).words[note.first : note.last + 1]
            heard, meant = (
                [bare for each in texts if (bare := each.strip(_MARKS))]
                for texts in ([word.text for word in words], note.text.split())
            )
            while heard and meant and heard[0] == meant[0]:
                heard, meant = heard[1:], meant[1:]
            while heard and meant and heard[-1] == meant[-1]:
                heard, meant = heard[:-1], meant[:-1]
            if 0 < len(meant) <= _MOST_LEARNED:
                yield " ".join(meant)

    def _final(self, seq: int) -> Final:
        if (final := self._finals.get(seq)) is None:
            raise ConfigError(f"the session has no final {seq}")
        return final

    def _check(self, speech: Speaking) -> None:
        begin, end = self._final(speech.seq), self._final(speech.to_seq or speech.seq)
        is_backward = speech.to_seq and (speech.to_seq, speech.last) < (speech.seq, speech.first)
        if is_backward or max(speech.first - len(begin.words), speech.last - len(end.words)) >= 0:
            raise ConfigError(f"final {speech.seq} has no such words")

    def _as_corrected(self, final: Final) -> Final:
        return corrected(final, self.edits.of(final))

    def _rewritten(self, final: Final, text: str) -> Iterator[Correction]:
        """Give the corrections after which a final has a text."""
        by_whom = self.edits.attributed(final)
        wanted = [*_differences(by_whom, " ".join(text.split()))]
        known = in_effect(final, self.edits.of(final))
        wanted += [
            _as_heard(final, each)
            for each in known
            if not any(each.first <= new.last and new.first <= each.last for new in wanted)
        ]
        for each in wanted:
            if each not in known:
                self.edits.take(each)
                yield each

    def _speakers(self, change: Attribution) -> list[Speaking]:
        """Return who says now the words that a change is about."""
        found: list[Speaking] = []
        for seq, final in self._finals.items():
            # Undoing a merge makes thousands of changes, each about one of thousands of finals.
            if seq < change.seq or 0 < change.to_seq < seq:
                continue
            now = self.edits.attributed(final)
            later = attributed(now, [change])
            for i, (word, other) in enumerate(zip(now.words, later.words, strict=True)):
                if word == other:
                    continue
                speaker, last = word.speaker or 0, found[-1] if found else None
                begin = i
                if last and (last.seq, last.last + 1, last.speaker) == (final.seq, i, speaker):
                    begin = found.pop().first
                found.append(
                    Speaking(speaker=speaker, seq=final.seq, first=begin, to_seq=final.seq, last=i)
                )
        return found


def _checked(name: str) -> str:
    try:
        return name_from(name)
    except ValueError as error:
        raise WireError("bad_option", f"name: {error}") from None


def _differences(final: Final, text: str) -> Iterator[Correction]:
    """Give exact corrections of the words in a final after which it has a text."""
    places = [(start, end) for start, end, _ in aligned(final.text, final.words)]
    if not places:
        if text != final.text:
            raise ConfigError(f"final {final.seq} has no words that can be corrected")
        return
    same = _unchanged(final.text, text, places)
    anchors = [-1, *sorted(same), len(places)]
    starts = {each: start for each, (start, _) in same.items()} | {len(places): len(text)}
    ends = {each: end for each, (_, end) in same.items()} | {-1: 0}
    # Words that follow the last that has a place stay as they are, at the end of the text.
    tail = final.text[places[-1][1] :].strip()
    if tail:
        if not text.endswith(tail):
            raise ConfigError(
                f"final {final.seq} cannot be corrected behind its {len(places)} words"
            )
        starts[len(places)] = len(text) - len(tail)
    changed = _inserted(anchors, starts, ends, text)
    for before, after in pairwise(each for each in anchors if each not in changed):
        if after > before + 1:
            meant = text[ends[before] : starts[after]].strip()
            first, last = before + 1, after - 1
            change = Correction(text=meant, seq=final.seq, first=first, last=last, exact=True)
            yield from _by_speaker(change, final, places)


def _by_speaker(
    change: Correction, final: Final, places: Sequence[tuple[int, int]]
) -> Iterator[Correction]:
    """Give a correction for each speaker of the words in one, with their share of its text.

    Words of a correction have one speaker, that of the first word which was heard.
    """
    said, words, n_given = change.text.split(), final.words, 0
    n_heard = change.last + 1 - change.first
    edges = (
        i
        for i in range(change.first + 1, change.last + 1)
        if words[i].speaker != words[i - 1].speaker
        and final.text[places[i - 1][1] : places[i][0]].isspace()
    )
    for first, end in pairwise([change.first, *edges, change.last + 1]):
        n = ceil(len(said) * (end - change.first) / n_heard)
        yield replace(change, text=" ".join(said[n_given:n]), first=first, last=end - 1)
        n_given = n


def _inserted(
    anchors: Sequence[int], starts: Mapping[int, int], ends: Mapping[int, int], text: str
) -> set[int]:
    """Return unchanged words, one beside each place where words were inserted between two."""
    return {
        before if before >= 0 else after
        for before, after in pairwise(anchors)
        if after == before + 1 and text[ends[before] : starts[after]].strip()
    }


def _unchanged(
    before: str, after: str, places: Sequence[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return the words that are the same in two texts, with their places in the second."""
    old = [(each.start(), each.end()) for each in _PIECE.finditer(before)]
    new = [(each.start(), each.end()) for each in _PIECE.finditer(after)]
    matcher = SequenceMatcher(
        None, [before[i:j] for i, j in old], [after[i:j] for i, j in new], autojunk=False
    )
    moved: dict[int, int] = {}  # place in the first text: in the second
    for old_n, new_n, n in matcher.get_matching_blocks():
        for k in range(n):
            (start, end), (there, _) = old[old_n + k], new[new_n + k]
            moved |= {at: there + at - start for at in range(start, end)}
    found: dict[int, tuple[int, int]] = {}
    for i, (start, end) in enumerate(places):
        letters = [moved.get(at) for at in range(start, end) if not before[at].isspace()]
        begin = letters[0] if letters else None
        is_whole = begin is not None and after[begin : begin + end - start] == before[start:end]
        if begin is not None and is_whole and None not in letters:
            found[i] = begin, begin + end - start
    return found


def _as_heard(final: Final, correction: Correction) -> Correction:
    places = list(aligned(final.text, final.words))
    text = final.text[places[correction.first][0] : places[correction.last][1]]
    first, last = correction.first, correction.last
    return Correction(text=text, seq=final.seq, first=first, last=last, exact=True)
