"""A final cut into subtitle cues that can be read in passing.

At most two lines of 42 cells (Latin letters take one, Chinese and Japanese two) and seven seconds,
cut where a reader would pause: what the subtitling guides of broadcasters ask for. Pure; knows
nothing of file formats.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamd.events import Final
from streamd.sinks.text import aligned, chunks, clean, width

LINE_CELLS = 42
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
class Cue:
    """One subtitle: one or two lines, shown from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is never cut: a word with the blank before it."""

    text: str
    start_ms: int
    end_ms: int


def cues(final: Final, not_before_ms: int = 0) -> Iterator[Cue]:
    """`final` as cues of positive length, in order and without overlap; none if it has no text.

    Parameters
    ----------
    final : text that its words do not cover is timed by its share of the length
    not_before_ms : end of the cue before
    """
    pieces = list(_pieces(final))
    free_ms = not_before_ms
    while pieces:
        n = _cut(pieces)
        shown, pieces = pieces[:n], pieces[n:]
        start = max(shown[0].start_ms, free_ms)
        limit = pieces[0].start_ms if pieces else max(final.end_ms, shown[-1].end_ms)
        end = min(max(shown[-1].end_ms, start + MIN_CUE_MS), limit)
        # Words may have no length, or lie before the end of the last cue.
        free_ms = max(end, start + 1)
        yield Cue(start, free_ms, _lines(shown))


def _pieces(final: Final) -> Iterator[_Piece]:
    at, t_ms = 0, final.start_ms
    for _, end, word in aligned(final.text, final.words):
        t_ms = max(t_ms, word.end_ms)
        yield from _timed(final.text[at:end], word.start_ms, t_ms)
        at = end
    yield from _timed(final.text[at:], t_ms, max(t_ms, final.end_ms))


def _timed(text: str, start_ms: int, end_ms: int) -> Iterator[_Piece]:
    """The words of `text`, those too long for a line cut to fit, each with its share of time."""
    words = re.findall(r"\s*\S+", clean(text))
    parts = [part for word in words for part in chunks(word, LINE_CELLS)]
    total = sum(map(width, parts))
    done = 0
    for part in parts:
        begins = start_ms + (end_ms - start_ms) * done // max(total, 1)
        done += width(part)
        yield _Piece(part, begins, start_ms + (end_ms - start_ms) * done // max(total, 1))


def _cut(pieces: Sequence[_Piece]) -> int:
    """How many of `pieces` the next cue takes: as many as fit, less for a better break."""
    n = _room(pieces)
    if n == len(pieces):
        return n
    cells = [width(piece.text) for piece in pieces]

    def worth(k: int) -> float:
        fill = sum(cells[:k]) / (2 * LINE_CELLS)
        orphan = 0.5 if sum(cells[k:]) < _ORPHAN_CELLS else 0.0
        return fill + _break(pieces, k) - orphan

    return max(range(1, n + 1), key=worth)


def _room(pieces: Sequence[_Piece]) -> int:
    """How many of `pieces` fit into one cue; at least one."""
    line, used = 1, 0
    for n, piece in enumerate(pieces):
        if n and piece.end_ms - pieces[0].start_ms > MAX_CUE_MS:
            return n
        if used and used + width(piece.text) > LINE_CELLS:
            line, used = line + 1, 0
            if line > 2:
                return n
        used += width(piece.text if used else piece.text.strip())
    return len(pieces)


def _break(pieces: Sequence[_Piece], k: int) -> float:
    """How good a place to cut is behind the first `k` pieces, from 0 to 1."""
    text = pieces[k - 1].text
    if _SENTENCE_END.search(text):
        return 1.0
    pause_ms = pieces[k].start_ms - pieces[k - 1].end_ms
    return 0.5 if _CLAUSE_END.search(text) or pause_ms >= _PAUSE_MS else 0.0


def _lines(pieces: Sequence[_Piece]) -> tuple[str, ...]:
    """One line if that is enough, else two of about the same length, cut at a clause if near."""
    text = _joined(pieces)
    if width(text) <= LINE_CELLS:
        return (text,)

    def cost(k: int) -> float:
        first, second = width(_joined(pieces[:k])), width(_joined(pieces[k:]))
        longest = max(first, second)
        too_long = 1000 if longest > LINE_CELLS else 0
        return too_long + longest - 10 * _break(pieces, k)

    k = min(range(1, len(pieces)), key=cost)
    return _joined(pieces[:k]), _joined(pieces[k:])


def _joined(pieces: Sequence[_Piece]) -> str:
    return "".join(piece.text for piece in pieces).strip()
