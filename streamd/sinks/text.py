"""Text functions for all sinks: make text harmless, measure it in terminal cells, find words."""

import re
from collections.abc import Iterator, Sequence

from wcwidth import iter_graphemes, wcswidth, wcwidth

from streamd.events import TimedWord

_BREAKS = re.compile("[\t\n\v\f\r\x85\u2028\u2029]")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` as one line without terminal commands.

    Line breaks and tabs become blanks. Control characters (an escape sequence could retitle the
    window or worse), bidirectional overrides and lone surrogates become U+FFFD, one for one, so
    that offsets into the text still hold.
    """
    return _UNSAFE.sub("\ufffd", _BREAKS.sub(" ", text))


def cells(grapheme: str) -> int:
    """Return the terminal cells that one grapheme takes at most.

    Some terminals draw joined emoji as one glyph of two cells, others draw every part. This is the
    larger count, so a row that fits by it fits everywhere.
    """
    return max(wcswidth(grapheme), sum(max(0, wcwidth(char)) for char in grapheme))


def width(text: str) -> int:
    """Return the terminal cells that a line of text takes at most."""
    return sum(cells(grapheme) for grapheme in iter_graphemes(text))


def chunks(text: str, columns: int, used: int = 0) -> Iterator[str]:
    """Cut cleaned `text` where a terminal would wrap it, into at least one chunk.

    The first row has `used` cells that are taken; if nothing fits after them, the first chunk is
    empty. A grapheme that is wider than `columns` gets a row of its own.
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
    """Yield (start, end, word): the place of each word in `text`, in order.

    Words come without the blanks between them (and some languages have none), so each is expected
    right after the previous one. At the first that is not there, alignment ends; the places before
    it are right.
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
