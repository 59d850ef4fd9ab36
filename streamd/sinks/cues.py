"""Cuts a final into subtitle cues that are easy to read.

By default a cue has at most two lines of 42 cells (Latin letters take one cell, Chinese and
Japanese characters two) and seven seconds. The limits are those that broadcasters publish for their
subtitles; how many cues keep to them is counted by ``benchmarks/subtitles.py``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise, takewhile, zip_longest
from typing import NamedTuple

from msgspec import UNSET

from streamd.events import Final, aligned
from streamd.language import BINDING, OPENING, belongs, ends_sentence
from streamd.options import CueLayout
from streamd.sinks.text import chunks, clean, width

MAX_CUE_MS = 7000
MIN_CUE_MS = 1000
"""A cue stays this long if the next one leaves the time, or goes into that one if it fits."""
CELLS_PER_S = 17
"""Reading speed for which a cue stays longer than its words, if the next one leaves the time."""
_LINGER_MS = 1500
"""But not longer than this."""
_APART_MS = 80
"""Two frames, by which the eye sees that one cue follows another."""
_PAUSE_MS = 500
"""A silence between two words that is as good a break as a comma."""
_LONG_PAUSE_MS = 1000
"""A silence over which no cue should stay."""
_ORPHAN_CELLS = 12
"""Less text than this should not be left for a cue of its own."""

_LATIN = re.compile(r"[-\u2010\u2011'\u2019A-Za-z\u00c0-\u024f]")
_CLAUSE_END = re.compile(r"(?:[,;:–—、，；：…]|\.\.)[\"'”’»)」』]*$")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is never broken: a word, or the part of a long word that fits into a line.

    `blank` is the space before it, or empty; `prob` is None where it is unknown.
    """

    blank: str
    text: str
    start_ms: int
    end_ms: int
    prob: float | None


Line = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle, shown from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    lines: tuple[Line, ...]
    speaker: int | None = None
    is_answer: bool = False  # whether another speaker had the cue before
    label_cells: int = 0  # room in the first line for the name of the speaker

    @property
    def pieces(self) -> Line:
        """The pieces of all lines."""
        return sum(self.lines, ())

    def moments(self) -> Iterator[tuple[int, int, Piece | None]]:
        """Yield (start_ms, end_ms, spoken piece or None); a word lasts until the next begins."""
        at, spoken = self.start_ms, None
        for piece in self.pieces:
            begins = min(piece.start_ms, self.end_ms)
            if begins > at:
                yield at, begins, spoken
                at = begins
            spoken = piece
        if self.end_ms > at:
            yield at, self.end_ms, spoken


def joined(line: Sequence[Piece], draw: Callable[[Piece], str] = lambda piece: piece.text) -> str:
    """Return a line as text, each piece as `draw` formats it, without the leading blank."""
    return "".join((piece.blank if i else "") + draw(piece) for i, piece in enumerate(line))


class Cues:
    """Makes the cues of a stream of finals; none begins before the previous one has ended.

    Where each channel has captions of its own, that holds for the cues of a channel; those of
    several may be shown at the same time. The last ones are `held` back: they may stay until the
    next one begins, and a cue of another channel may begin before them.

    `label` returns what a format writes before the words of a speaker who answers another one: it
    takes room in the line, and time to read.
    """

    def __init__(
        self, layout: CueLayout, label: Callable[[int | None], str] = lambda speaker: ""
    ) -> None:
        self._layout, self._label = layout, label
        self._said: int | None = None  # the speaker of the final before
        self._waiting: list[tuple[int, Cue]] = []  # with their channels, in order of their starts
        self._free_ms: dict[int, int] = {}
        self._speaker: int | None = None

    @property
    def held(self) -> list[Cue]:
        """The cues that are held back."""
        return self._ready(len(self._waiting))

    def of(self, final: Final) -> list[Cue]:
        """Return the cues that can be written now: those that were held, and all but the last."""
        channel, made = final.channel or 0, [*self._made(final)]
        before = [cue for each, cue in self._waiting if each == channel]
        if before and made and (both := self._joined(before[-1], made[0])):
            before, made = before[:-1], [both, *made[1:]]
        cut = [_ended(cue, later.start_ms) for cue, later in pairwise([*before[-1:], *made])]
        whole = [*before[:-1], *cut, *([*before, *made][-1:])]
        others = [each for each in self._waiting if each[0] != channel]
        self._waiting = sorted(
            [*others, *((channel, cue) for cue in whole)], key=lambda each: each[1].start_ms
        )
        return self._take(sum(1 for _ in takewhile(partial(self._is_ready, final), self._waiting)))

    def release(self, until_ms: int) -> list[Cue]:
        """Return the cues that were held: nothing is known of what begins after `until_ms`."""
        self._waiting = [
            (channel, _ended(cue, max(until_ms, self._free_ms[channel])))
            for channel, cue in self._waiting
        ]
        for channel, cue in self._waiting:
            self._free_ms[channel] = cue.end_ms
        return self._take(len(self._waiting))

    def _made(self, final: Final) -> Iterator[Cue]:
        channel = final.channel or 0
        # Which cue is before one of another channel is not known yet.
        answers = final.speaker != self._said or final.channel is not UNSET
        label, self._said = self._label(final.speaker) if answers else "", final.speaker
        for cue in cues(final, self._free_ms.get(channel, 0), self._layout, label=label):
            self._free_ms[channel] = _spoken_ms(cue)
            yield replace(cue, speaker=final.speaker)

    def _joined(self, before: Cue, after: Cue) -> Cue | None:
        """Return one cue in place of two, if the first could not be read before the second begins.

        Each keeps its lines. None if the first stays long enough, or both do not fit.
        """
        (first, *words), *more = after.lines
        apart = (replace(first, blank=" "), *words)  # where a format has one line for all
        lines, start, spoken_ms = (*before.lines, apart, *more), before.start_ms, _spoken_ms(after)
        n_words = len(before.pieces) + len(after.pieces)
        if (
            _ended(before, after.start_ms).end_ms - start >= MIN_CUE_MS
            or before.speaker != after.speaker
            or len(lines) > self._layout.max_lines
            or spoken_ms - start > MAX_CUE_MS
            or 0 < self._layout.max_words < n_words
        ):
            return None
        label_cells = before.label_cells
        wanted_ms = _wanted_ms(label_cells + sum(width(joined(line)) for line in lines))
        return replace(
            after,
            start_ms=start,
            end_ms=_end(start, spoken_ms, wanted_ms),
            lines=lines,
            label_cells=label_cells,
        )

    def _is_ready(self, final: Final, waiting: tuple[int, Cue]) -> bool:
        """Whether nothing that follows `final` can begin before a cue, or end it."""
        channel, cue = waiting
        is_last = [each for number, each in self._waiting if number == channel][-1] is cue
        if final.channel is UNSET:
            return not is_last
        return cue.start_ms <= final.start_ms and not (is_last and cue.end_ms > final.start_ms)

    def _take(self, n: int) -> list[Cue]:
        ready, self._waiting = self._ready(n), self._waiting[n:]
        self._speaker = ready[-1].speaker if ready else self._speaker
        return ready

    def _ready(self, n: int) -> list[Cue]:
        """Return the first cues as they are written."""
        shown: list[Cue] = []
        following = [later.start_ms for _, later in self._waiting[1:]]
        speaker = self._speaker
        for (_, cue), next_ms in zip_longest(self._waiting[:n], following[:n]):
            end_ms = cue.end_ms
            if next_ms is not None:  # of another channel, before which all words stay
                end_ms = min(end_ms, max(next_ms - _APART_MS, _spoken_ms(cue)))
            shown.append(replace(cue, end_ms=end_ms, is_answer=cue.speaker != speaker))
            speaker = cue.speaker
        return shown


def _spoken_ms(cue: Cue) -> int:
    """Return when its last word has ended."""
    return max(cue.pieces[-1].end_ms, cue.start_ms + 1)


def _ended(cue: Cue, next_ms: int) -> Cue:
    """Return a cue that ends before the next one begins: apart, if its words leave the time."""
    latest_ms = max(next_ms - _APART_MS, min(cue.pieces[-1].end_ms, next_ms), cue.start_ms + 1)
    return replace(cue, end_ms=min(cue.end_ms, latest_ms))


def _wanted_ms(cells: int) -> int:
    """Return how long readers need for a text."""
    return max(MIN_CUE_MS, cells * 1000 // CELLS_PER_S)


def _end(start_ms: int, spoken_ms: int, wanted_ms: int) -> int:
    """Return when a cue whose words end at `spoken_ms` ends, if nothing follows."""
    end_ms = min(start_ms + wanted_ms, spoken_ms + _LINGER_MS, start_ms + MAX_CUE_MS)
    return max(spoken_ms, end_ms)


def cues(
    final: Final, not_before_ms: int = 0, layout: CueLayout | None = None, *, label: str = ""
) -> Iterator[Cue]:
    """Yield the cues of `final`, of positive length, in order and without overlap.

    Text that the final's words do not cover gets its share of the final's time. The first cue
    begins at `not_before_ms` or later, and has room for a `label` before its text.
    """
    layout = layout or CueLayout()
    pieces = list(_pieces(final, layout.line_cells))
    unlabelled = pieces[:1]
    pieces[:1] = [replace(first, text=label + first.text) for first in unlabelled]
    text = _Cutter(pieces, layout)
    start, waiting = not_before_ms, None
    for i, k in pairwise(text.cuts()):
        shown = text.pieces[i:k]
        start = max(shown[0].start_ms, start)
        # Words may have no length, or lie before the end of the previous cue.
        spoken_ms = max(shown[-1].end_ms, start + 1)
        end = _end(start, spoken_ms, text.wanted_ms(i, k))
        if waiting is not None:
            yield _ended(waiting, start)
        lines = text.lines(i, k)
        if label and i == 0:
            lines = ((*unlabelled, *lines[0][1:]), *lines[1:])
        waiting = Cue(start, end, lines, label_cells=width(label) if i == 0 else 0)
        start = spoken_ms
    if waiting is not None:
        yield waiting


def _pieces(final: Final, line_cells: int) -> Iterator[Piece]:
    """Yield the words, or where a language writes no blanks, the characters with what `belongs`."""
    # Twice, since a mark may tell that its letter belongs to what is before.
    return _together(_together(_spoken(final, line_cells), line_cells), line_cells)


def _together(pieces: Iterator[Piece], line_cells: int) -> Iterator[Piece]:
    before: Piece | None = None
    for piece in pieces:
        if before is None:
            before = piece
        elif _is_one(before, piece, line_cells):
            text, probs = before.text + piece.text, (before.prob, piece.prob)
            prob = min((prob for prob in probs if prob is not None), default=None)
            before = Piece(before.blank, text, before.start_ms, piece.end_ms, prob)
        else:
            yield before
            before = piece
    if before is not None:
        yield before


def _is_one(before: Piece, piece: Piece, line_cells: int) -> bool:
    if piece.blank or not belongs(before.text, piece.text):
        return False
    return width(before.text) + width(piece.text) <= line_cells


def _spoken(final: Final, line_cells: int) -> Iterator[Piece]:
    at, t_ms = 0, final.start_ms
    for _, end, word in aligned(final.text, final.words):
        t_ms = max(t_ms, word.end_ms)
        spoken = Piece("", final.text[at:end], word.start_ms, t_ms, word.prob)
        yield from _split(spoken, line_cells)
        at = end
    rest = Piece("", final.text[at:], t_ms, max(t_ms, final.end_ms), None)
    yield from _split(rest, line_cells)


def _split(whole: Piece, line_cells: int) -> Iterator[Piece]:
    """Yield the words of a text, long ones cut to fit a line, each with its share of the time."""
    parts = [
        ("" if i else blank, part)
        for blank, word in re.findall(r"(\s*)(\S+)", clean(whole.text))
        for i, part in enumerate(chunks(word, line_cells))
    ]
    start_ms, span_ms = whole.start_ms, whole.end_ms - whole.start_ms
    done = list(accumulate((width(part) for _, part in parts), initial=0))
    times = [start_ms + span_ms * cells // max(done[-1], 1) for cells in done]
    for i, (blank, part) in enumerate(parts):
        yield Piece(" " if blank else "", part, times[i], times[i + 1], whole.prob)


class _Way(NamedTuple):
    """A way to break pieces into lines: longest line (cells), worth of the breaks, line ends."""

    longest: int
    worth: float
    ends: tuple[int, ...]


class _Cutter:
    """The pieces of a final, and where to cut them into cues, and these into lines."""

    def __init__(self, pieces: Sequence[Piece], layout: CueLayout) -> None:
        self.pieces, self._layout = pieces, layout
        # What the first 0, 1, 2 ... pieces take within a line.
        cells = (len(each.blank) + width(each.text) for each in pieces)
        self._cells = list(accumulate(cells, initial=0))
        self._breaks = [_break(pieces, k) for k in range(1, len(pieces))]
        long = (1 if _pause_ms(pieces, k) >= _LONG_PAUSE_MS else 0 for k in range(1, len(pieces)))
        self._n_pauses = list(accumulate(long, initial=0))

    def wanted_ms(self, i: int, k: int) -> int:
        """Return how long readers need for the pieces from `i` to `k`."""
        return _wanted_ms(self._length(i, k))

    def cuts(self) -> list[int]:
        """Return where cues begin, and the end: the best way to cut all of the text.

        Dynamic programming from the end on: `costs[i]` is that of the pieces from `i` on.
        """
        n = len(self.pieces)
        costs, nexts = [0.0] * (n + 1), [n] * (n + 1)
        for i in range(n - 1, -1, -1):
            ends = [k for k in range(i + 1, self._reach(i) + 1) if k == n or self._may_break(k)]
            ways = [(self._cost(i, k) + costs[k], -k) for k in ends or [self._reach(i)]]
            costs[i], last = min(ways)
            nexts[i] = -last
        found = [0]
        while found[-1] < n:
            found.append(nexts[found[-1]])
        return found

    def _length(self, i: int, k: int) -> int:
        return self._cells[k] - self._cells[i] - len(self.pieces[i].blank)

    def lines(self, i: int, k: int) -> tuple[Line, ...]:
        """Break pieces `i` to `k` into as few lines as possible, of similar length.

        They break at a clause if one is near. Dynamic programming: `ways` has the best way to break
        the pieces from each on into the present number of lines; each round puts one more line in
        front.
        """
        limit = self._layout.line_cells

        def cost(way: _Way) -> tuple[bool, float]:
            # A line that overflows is worst. Otherwise the longest line should be short, which
            # makes the lines equal; a break at the end of a sentence outweighs 10 cells, at a
            # clause 5.
            return way.longest > limit, way.longest - 10 * way.worth

        ways = {n: _Way(self._length(n, k), 0.0, (k,)) for n in range(i, k)}
        while ways[i].longest > limit and len(ways) > 1:
            ways = {n: min(self._with_line(n, ways), key=cost) for n in range(i, max(ways))}
        return tuple(tuple(self.pieces[a:b]) for a, b in pairwise((i, *ways[i].ends)))

    def _with_line(self, i: int, ways: Mapping[int, _Way]) -> Iterator[_Way]:
        """Yield the ways that begin with a line from piece `i` on."""
        for k in range(i + 1, max(ways) + 1):
            if k > i + 1:  # a line takes at least one piece, even if that is too long
                if self._length(i, k) > self._layout.line_cells:
                    return
                if not self._may_break(k):
                    continue
            longest = max(self._length(i, k), ways[k].longest)
            yield _Way(longest, self._breaks[k - 1] + ways[k].worth, (k, *ways[k].ends))

    def _may_break(self, k: int) -> bool:
        """Whether there may be a break before piece `k`: not inside "self-evident"."""
        before, piece = self.pieces[k - 1].text, self.pieces[k]
        is_inside = not piece.blank and _LATIN.match(before[-1:]) and _LATIN.match(piece.text[:1])
        return not is_inside or width(before) + width(piece.text) > self._layout.line_cells

    def _reach(self, i: int) -> int:
        """Return how far a cue that begins with piece `i` can go; at least over that piece."""
        pieces, layout = self.pieces, self._layout
        line, begin = 1, i
        for k in range(i + 1, len(pieces) + 1):
            if k - i > 1 and pieces[k - 1].end_ms - pieces[i].start_ms > MAX_CUE_MS:
                return k - 1
            if 0 < layout.max_words < k - i:
                return k - 1
            if k - begin > 1 and self._length(begin, k) > layout.line_cells:
                line, begin = line + 1, k - 1
                if line > layout.max_lines:
                    return k - 1
        return len(pieces)

    def _cost(self, i: int, k: int) -> float:
        """Return how bad a cue is: hurried, short, over a silence, cut at a bad place."""
        is_last = k == len(self.pieces)
        spoken_ms = self.pieces[k - 1].end_ms
        free_ms = _LINGER_MS if is_last else max(0, self.pieces[k].start_ms - spoken_ms)
        shown_ms = max(1, spoken_ms - self.pieces[i].start_ms + min(free_ms, _LINGER_MS))
        speed, length = self._length(i, k) * 1000 / shown_ms, self._length(i, k)
        cost = 0.5 + 0.1 * max(0.0, min(speed, 40) - CELLS_PER_S)
        cost += 1.0 - min(1.0, shown_ms / MIN_CUE_MS)
        cost += 0.6 if length < _ORPHAN_CELLS else 0.0
        cost += 1.5 * (self._n_pauses[k - 1] - self._n_pauses[i])
        return cost if is_last else cost + 1.2 * (1.0 - self._breaks[k - 1])


def _pause_ms(pieces: Sequence[Piece], k: int) -> int:
    """Return the silence before piece `k`."""
    return pieces[k].start_ms - pieces[k - 1].end_ms


def _break(pieces: Sequence[Piece], k: int) -> float:
    """Return how good a break after the first `k` pieces is, from -1 to 1."""
    text, pause_ms = pieces[k - 1].text, _pause_ms(pieces, k)
    if ends_sentence(text):
        return 1.0
    if _CLAUSE_END.search(text) or pause_ms >= _PAUSE_MS:
        return 0.5 if pause_ms < _LONG_PAUSE_MS else 0.75
    if text.lower() in BINDING:
        return -0.5
    return 0.3 if pieces[k].text.lower() in OPENING else 0.0
