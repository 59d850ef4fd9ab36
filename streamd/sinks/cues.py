"""A final cut into subtitle cues that can be read in passing.

By default at most two lines of 42 cells (Latin letters take one, Chinese and Japanese two) and
seven seconds, cut where a reader would pause: what the subtitling guides of broadcasters ask for.
Pure; knows nothing of file formats.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple

from streamd.events import Event, Final
from streamd.sinks.text import aligned, chunks, clean, width

MAX_CUE_MS = 7000
MIN_CUE_MS = 1000
"""A cue stays this long where the next one leaves the time."""
_PAUSE_MS = 500
"""Silence between two words that is as good a place to cut as a comma."""
_ORPHAN_CELLS = 12
"""Less text than this is not worth a cue of its own."""

_SENTENCE_END = re.compile(r"[.?!…。？！][\"'”’»)」』]*$")
_CLAUSE_END = re.compile(r"[,;:–—、，；：][\"'”’»)」』]*$")


@dataclass(frozen=True, slots=True)
class Layout:
    """How much a cue holds, and what is marked in it.

    `line_cells`, `max_lines`, `max_words` (0: any number) are limits; `highlight`: underline the
    word that is being spoken, with a cue for each; `confidence`: colour doubtful words.
    """

    line_cells: int = 42
    max_lines: int = 2
    max_words: int = 0
    highlight: bool = False
    confidence: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What is never cut: a word, or as much of it as fits into a line.

    `blank` is what stands before it, a blank or nothing; `prob` is None where nobody knows it.
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
        """Those of all lines."""
        return sum(self.lines, ())

    def moments(self) -> Iterator[tuple[int, int, Piece | None]]:
        """(start_ms, end_ms, the word that is spoken) of its parts; a word lasts until the next."""
        at, spoken = self.start_ms, None
        for piece in self.pieces:
            begins = min(piece.start_ms, self.end_ms)
            if begins > at:
                yield at, begins, spoken
                at = begins
            spoken = piece
        if self.end_ms > at:
            yield at, self.end_ms, spoken


def written(line: Sequence[Piece], draw: Callable[[Piece], str] = lambda piece: piece.text) -> str:
    """A line as text, each piece as `draw` writes it, without the blank in front."""
    return "".join((piece.blank if i else "") + draw(piece) for i, piece in enumerate(line))


class Cues:
    """The cues of a stream of events, none before the end of the one before it."""

    def __init__(self, layout: Layout | None = None) -> None:
        self._layout = layout or Layout()
        self._end_ms = 0

    def of(self, event: Event) -> Iterator[Cue]:
        """The cues of a final; none of anything else."""
        if isinstance(event, Final):
            for cue in cues(event, self._end_ms, self._layout):
                self._end_ms = cue.end_ms
                yield cue


def cues(final: Final, not_before_ms: int = 0, layout: Layout | None = None) -> Iterator[Cue]:
    """`final` as cues of positive length, in order and without overlap; none if it has no text.

    Parameters
    ----------
    final : text that its words do not cover is timed by its share of the length
    not_before_ms : end of the cue before
    layout : the limits
    """
    layout = layout or Layout()
    pieces = list(_pieces(final, layout.line_cells))
    free_ms = not_before_ms
    while pieces:
        n = _cut(pieces, layout)
        shown, pieces = pieces[:n], pieces[n:]
        start = max(shown[0].start_ms, free_ms)
        limit = pieces[0].start_ms if pieces else max(final.end_ms, shown[-1].end_ms)
        end = min(max(shown[-1].end_ms, start + MIN_CUE_MS), limit)
        # Words may have no length, or lie before the end of the last cue.
        free_ms = max(end, start + 1)
        yield Cue(start, free_ms, _lines(shown, layout))


def _pieces(final: Final, line_cells: int) -> Iterator[Piece]:
    at, t_ms = 0, final.start_ms
    for _, end, word in aligned(final.text, final.words):
        t_ms = max(t_ms, word.end_ms)
        spoken = Piece("", final.text[at:end], word.start_ms, t_ms, word.prob)
        yield from _timed(spoken, line_cells)
        at = end
    rest = Piece("", final.text[at:], t_ms, max(t_ms, final.end_ms), None)
    yield from _timed(rest, line_cells)


def _timed(whole: Piece, line_cells: int) -> Iterator[Piece]:
    """The words of a text, those too long for a line cut to fit, each with its share of time."""
    parts = [
        (blank if first else "", part)
        for blank, word in re.findall(r"(\s*)(\S+)", clean(whole.text))
        for first, part in _firsts(chunks(word, line_cells))
    ]
    start_ms, span_ms = whole.start_ms, whole.end_ms - whole.start_ms
    done = list(accumulate((width(part) for _, part in parts), initial=0))
    times = [start_ms + span_ms * cells // max(done[-1], 1) for cells in done]
    for i, (blank, part) in enumerate(parts):
        yield Piece(" " if blank else "", part, times[i], times[i + 1], whole.prob)


def _firsts(parts: Iterator[str]) -> Iterator[tuple[bool, str]]:
    return ((i == 0, part) for i, part in enumerate(parts))


def _cells(pieces: Sequence[Piece]) -> list[int]:
    """Cells of the first 0, 1, 2 ... pieces, in one line with others before them."""
    return list(accumulate((len(p.blank) + width(p.text) for p in pieces), initial=0))


def _cut(pieces: Sequence[Piece], layout: Layout) -> int:
    """How many of `pieces` the next cue takes: as many as fit, less for a better break."""
    n = _room(pieces, layout)
    if n == len(pieces):
        return n
    cells = _cells(pieces[: n + _ORPHAN_CELLS])  # of what comes behind, more does not matter

    def worth(k: int) -> float:
        orphan = 0.5 if cells[-1] - cells[k] < _ORPHAN_CELLS else 0.0
        return cells[k] / cells[n] + _break(pieces, k) - orphan

    return max(range(1, n + 1), key=worth)


def _room(pieces: Sequence[Piece], layout: Layout) -> int:
    """How many of `pieces` fit into one cue; at least one."""
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
    """How good a place to cut is behind the first `k` pieces, from 0 to 1."""
    text = pieces[k - 1].text
    if _SENTENCE_END.search(text):
        return 1.0
    pause_ms = pieces[k].start_ms - pieces[k - 1].end_ms
    return 0.5 if _CLAUSE_END.search(text) or pause_ms >= _PAUSE_MS else 0.0


def _lines(pieces: Sequence[Piece], layout: Layout) -> tuple[Line, ...]:
    """As few lines as will do, of about the same length, cut at a clause if one is near."""
    cells, n = _cells(pieces), len(pieces)
    # Of the pieces from the first, the second ... on, in one line; then in two, three ...
    ways = [_Way(_length(pieces, cells, i, n), 0.0, (n,)) for i in range(n)]
    limit = layout.line_cells
    while ways[0].longest > limit and len(ways) > 1:
        ways = [_best_way(pieces, cells, ways, i, limit=limit) for i in range(len(ways) - 1)]
    return tuple(tuple(pieces[i:k]) for i, k in pairwise((0, *ways[0].ends)))


class _Way(NamedTuple):
    """To break pieces into lines: cells of the longest, worth of the breaks, ends of the lines."""

    longest: int
    worth: float
    ends: tuple[int, ...]


def _best_way(
    pieces: Sequence[Piece], cells: Sequence[int], shorter: Sequence[_Way], i: int, *, limit: int
) -> _Way:
    """The best way from piece `i` on, with one line more than the ways of `shorter`."""

    def fits(k: int) -> bool:
        return k == i + 1 or _length(pieces, cells, i, k) <= limit

    ways = (
        _Way(
            max(_length(pieces, cells, i, k), shorter[k].longest),
            _break(pieces, k) + shorter[k].worth,
            (k, *shorter[k].ends),
        )
        for k in takewhile(fits, range(i + 1, len(shorter)))
    )
    return min(ways, key=lambda way: (way.longest > limit, way.longest - 10 * way.worth))


def _length(pieces: Sequence[Piece], cells: Sequence[int], i: int, k: int) -> int:
    """Cells of a line from piece `i` to before piece `k`."""
    return cells[k] - cells[i] - len(pieces[i].blank)
