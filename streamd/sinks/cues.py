"""Cuts a final into subtitle cues that are easy to read.

By default a cue has at most two lines of 42 cells (Latin letters take one cell, Chinese and
Japanese characters two) and seven seconds, and ends where a reader would pause, as broadcasters'
subtitling guides ask.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from streamd.events import Event, Final
from streamd.options import CueLayout
from streamd.sinks.text import SENTENCE_END, aligned, chunks, clean, width

MAX_CUE_MS = 7000
MIN_CUE_MS = 1000
"""A cue stays this long if the next one leaves the time."""
_PAUSE_MS = 500
"""A silence between two words that is as good a break as a comma."""
_ORPHAN_CELLS = 12
"""Less text than this should not be left for a cue of its own."""

_CLAUSE_END = re.compile(r"[,;:–—、，；：][\"'”’»)」』]*$")


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
    """Makes the cues of a stream of events; none begins before the previous one has ended."""

    def __init__(self, layout: CueLayout) -> None:
        self._layout = layout
        self._end_ms = 0

    def of(self, event: Event) -> Iterator[Cue]:
        """Yield the cues of a final; other events have none."""
        if isinstance(event, Final):
            for cue in cues(event, self._end_ms, self._layout):
                self._end_ms = cue.end_ms
                yield cue


def cues(final: Final, not_before_ms: int = 0, layout: CueLayout | None = None) -> Iterator[Cue]:
    """Yield the cues of `final`, of positive length, in order and without overlap.

    Text that the final's words do not cover gets its share of the final's time. The first cue
    begins at `not_before_ms` or later.
    """
    layout = layout or CueLayout()
    pieces = list(_pieces(final, layout.line_cells))
    free_ms = not_before_ms
    while pieces:
        n = _cut(pieces, layout)
        shown, pieces = pieces[:n], pieces[n:]
        start = max(shown[0].start_ms, free_ms)
        limit = pieces[0].start_ms if pieces else max(final.end_ms, shown[-1].end_ms)
        end = min(max(shown[-1].end_ms, start + MIN_CUE_MS), limit)
        # Words may have no length, or lie before the end of the previous cue.
        free_ms = max(end, start + 1)
        yield Cue(start, free_ms, _lines(shown, layout))


def _pieces(final: Final, line_cells: int) -> Iterator[Piece]:
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


def _cells(pieces: Sequence[Piece]) -> list[int]:
    """Return the cells that the first 0, 1, 2 ... pieces take within a line."""
    return list(accumulate((len(p.blank) + width(p.text) for p in pieces), initial=0))


def _cut(pieces: Sequence[Piece], layout: CueLayout) -> int:
    """Return how many of `pieces` the next cue takes: all that fit, or fewer for a better break."""
    n = _n_that_fit(pieces, layout)
    if n == len(pieces):
        return n
    # Only whether an orphan follows matters, so a few pieces beyond the cue are enough. Without
    # this bound a long final would take quadratic time.
    cells = _cells(pieces[: n + _ORPHAN_CELLS])

    def worth(k: int) -> float:
        orphan = 0.5 if cells[-1] - cells[k] < _ORPHAN_CELLS else 0.0
        return cells[k] / cells[n] + _break(pieces, k) - orphan

    return max(range(1, n + 1), key=worth)


def _n_that_fit(pieces: Sequence[Piece], layout: CueLayout) -> int:
    """Return how many of `pieces` fit into one cue; at least one."""
    line, used = 1, 0
    for n, piece in enumerate(pieces):
        if n and (piece.end_ms - pieces[0].start_ms > MAX_CUE_MS or 0 < layout.max_words <= n):
            return n
        cells = width(piece.text)
        if used and used + len(piece.blank) + cells > layout.line_cells:
            line, used = line + 1, 0
            if line > layout.max_lines:
                return n
        used += cells + (len(piece.blank) if used else 0)
    return len(pieces)


def _break(pieces: Sequence[Piece], k: int) -> float:
    """Return how good a break after the first `k` pieces is, from 0 to 1."""
    text = pieces[k - 1].text
    if SENTENCE_END.search(text):
        return 1.0
    pause_ms = pieces[k].start_ms - pieces[k - 1].end_ms
    return 0.5 if _CLAUSE_END.search(text) or pause_ms >= _PAUSE_MS else 0.0


class _Way(NamedTuple):
    """A way to break pieces into lines: longest line (cells), worth of the breaks, line ends."""

    longest: int
    worth: float
    ends: tuple[int, ...]


def _lines(pieces: Sequence[Piece], layout: CueLayout) -> tuple[Line, ...]:
    """Break a cue into as few lines as possible, of similar length, at a clause if one is near.

    Dynamic programming: `ways[i]` is the best way to break the pieces from `i` on into the present
    number of lines; each round puts one more line in front.
    """
    cells, n, limit = _cells(pieces), len(pieces), layout.line_cells

    def length(i: int, k: int) -> int:
        return cells[k] - cells[i] - len(pieces[i].blank)

    def longer(i: int, shorter: Sequence[_Way]) -> Iterator[_Way]:
        for k in range(i + 1, len(shorter)):
            # A line takes at least one piece, even if that is too long.
            if k > i + 1 and length(i, k) > limit:
                return
            longest = max(length(i, k), shorter[k].longest)
            worth = _break(pieces, k) + shorter[k].worth
            yield _Way(longest, worth, (k, *shorter[k].ends))

    def cost(way: _Way) -> tuple[bool, float]:
        # A line that overflows is worst. Otherwise the longest line should be short, which makes
        # the lines equal; a break at the end of a sentence outweighs 10 cells, at a clause 5.
        return way.longest > limit, way.longest - 10 * way.worth

    ways = [_Way(length(i, n), 0.0, (n,)) for i in range(n)]
    while ways[0].longest > limit and len(ways) > 1:
        ways = [min(longer(i, ways), key=cost) for i in range(len(ways) - 1)]
    return tuple(tuple(pieces[i:k]) for i, k in pairwise((0, *ways[0].ends)))
