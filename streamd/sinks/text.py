"""Transcript text as characters and terminal cells: made harmless, measured, found again.

Knows nothing of events, styles or files.
"""

import re
from collections.abc import Iterator, Sequence

from wcwidth import iter_graphemes, wcswidth, wcwidth

from streamd.events import TimedWord

_BREAKS = re.compile("[\t\n\v\f\r\x85\u2028\u2029]")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` as one line that cannot command a terminal.

    Line breaks and tabs become blanks. Control characters (an escape sequence in a transcript could
    retitle the window or worse), bidirectional overrides and lone surrogates become U+FFFD, one for
    one, so that offsets into the text still hold.
    """
    return _UNSAFE.sub("\ufffd", _BREAKS.sub(" ", text))


def cells(grapheme: str) -> int:
    """Terminal cells that one grapheme takes at most.

    Terminals disagree about joined emoji: some draw one glyph of two cells, some every part. This
    is the larger answer, so that a row that fits by this count fits everywhere.
    """
    return max(wcswidth(grapheme), sum(max(0, wcwidth(char)) for char in grapheme))


def width(text: str) -> int:
    """Terminal cells that a line of text takes at most."""
    return sum(cells(grapheme) for grapheme in iter_graphemes(text))


def chunks(text: str, columns: int, used: int = 0) -> Iterator[str]:
    """Cut `text` where a terminal would wrap it; the first `used` cells of its row are taken.

    Parameters
    ----------
    text : cleaned
    columns : cells in a row, at least 1; a wider grapheme gets a row of its own
    used : cells before `text` in the first row; where nothing fits behind them, the first chunk
        is empty

    Yields
    ------
    At least one chunk, one for each row; their concatenation is `text`.
    """
    start = end = 0
    for grapheme in iter_graphemes(text):
        n_cells = cells(grapheme)
        if used and used + n_cells > columns:
            yield text[start:end]
            start, used = end, 0
        end += len(grapheme)
        used += n_cells
    yield text[start:]


def aligned(text: str, words: Sequence[TimedWord]) -> Iterator[tuple[int, int, TimedWord]]:
    """Where in `text` each word stands, as (start, end, word), in order.

    Words lack the blanks between them (and some languages have none), so they are looked for one
    behind the other. At the first that does not follow, alignment ends: what was found is right.
    """
    at = 0
    for word in words:
        start = at
        while start < len(text) and text[start].isspace():
            start += 1
        if not text.startswith(word.text, start):
            return
        at = start + len(word.text)
        yield start, at, word
