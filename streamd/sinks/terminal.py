"""Live captions on standard output.

On a terminal a final becomes an ordinary line that is never touched again: the terminal wraps it
itself, so it is copied as one line and wraps again when the window is resized. The partial stands
below it, laid out as that line will be, so that nothing jumps when it becomes final.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from streamd.events import Event, Fault, Final, Gap, Lag, Partial
from streamd.sinks.text import FAINT, Look, Span, caption, chunks, clean, gap_notice, paint, width
from streamd.stdio import put

Size = Callable[[], tuple[int, int]]
"""Returns the terminal's (columns, lines)."""

_WIPE = "\r\x1b[K\x1b[C\x1b[J\r"
"""Erases from the cursor's row downwards.

Not ``ESC[J`` in the first column: in the first row, tmux takes that for a wish to clear the screen
and saves what stood there, every outdated partial, in its scrollback.
"""
_WRAP_OFF, _WRAP_ON = "\x1b[?7l", "\x1b[?7h"
_CURSOR_OFF, _CURSOR_ON = "\x1b[?25l", "\x1b[?25h"


_MIC = "microphone"
_METER_CELLS = 10
_FLOOR_DB = -60
"""Level at which the meter shows nothing: that of a quiet room."""


class Region:
    """The rows at the bottom of a terminal that are redrawn; it returns what to write.

    The cursor rests at the *first* cell of the region. To wipe the region it is then enough to
    erase from the cursor downwards, without counting rows: it does not matter whether the terminal
    wraps the rows again when it is resized or cuts them off (xterm), or how it counts the cells of
    an emoji. While the region is drawn, automatic wrapping is off: each row takes one row.

    One flaw remains: a terminal that is made much narrower may push the first rows of the region
    out of the screen, where nothing can erase them.
    """

    def __init__(self) -> None:
        self._rows: list[str] = []

    def draw(self, rows: Sequence[str], above: str = "", *, anew: bool = False) -> str:
        """Return what replaces the present rows; empty if nothing changes, unless it is `anew`.

        The `rows` must fit the terminal; `above` is whole lines, each ended by CR LF, to leave
        above the region.
        """
        if not above and not anew and list(rows) == self._rows:
            return ""
        wipe = _WIPE if self._rows else ""
        show = _CURSOR_ON if self._rows and not rows else ""
        self._rows = list(rows)
        if not rows:
            return wipe + show + above
        up = f"\x1b[{len(rows) - 1}A" if len(rows) > 1 else ""
        drawn = _CURSOR_OFF + _WRAP_OFF + "\r\n".join(rows) + _WRAP_ON + "\r" + up
        return wipe + above + drawn

    def leave(self) -> str:
        """Return what leaves the present rows standing and moves the cursor below them."""
        end = "\r\n" * len(self._rows) + _CURSOR_ON if self._rows else ""
        self._rows = []
        return end


class TerminalSink:
    """Shows live captions on the terminal of `stream`, whose `size` is asked by default."""

    def __init__(self, stream: TextIO, look: Look, *, size: Size | None = None) -> None:
        self._stream, self._look = stream, look
        self._size = size or (lambda: terminal_size(stream))
        self._region = Region()
        self._partial: Partial | None = None
        self._behind_s = 0
        self._meter = ""

    def write(self, event: Event) -> None:
        """Show `event` at once."""
        above = ""
        if isinstance(event, Partial):
            self._partial = event
            if self._behind_s:  # an engine that has caught up shows it only in its next partial
                self._behind_s = event.lag_ms // 1000
        elif isinstance(event, Final):
            if self._partial is not None and self._partial.seg <= event.seg:
                self._partial = None
            self._behind_s = 0
            above = paint(caption(event, self._look)) + "\r\n" if event.text else ""
        elif isinstance(event, Lag):
            self._behind_s = event.lag_ms // 1000
        elif isinstance(event, Gap):
            above = gap_notice(event.duration_ms, event.why) + "\r\n"
        elif isinstance(event, Fault):
            above = f"[{clean(event.message)}]\r\n"
        self._put(self._region.draw(self._rows(), above))

    def _rows(self) -> list[str]:
        """Return the rows of the partial, with the lag if the engine is behind."""
        spans: list[Span] = []
        if self._partial is not None and self._partial.text:
            spans = caption(self._partial, self._look)
        if self._behind_s:
            spans.append(Span(f" [{self._behind_s} s behind]", FAINT))
        if not spans and self._meter:
            spans.append(Span(self._meter, FAINT))
        columns, lines = self._size()
        # Only the end of a partial that would fill more than half of the screen: when a window is
        # made half as wide, rows that wrap must not push the region's first one off the screen.
        return _laid_out(spans, columns)[-max(1, lines // 2) :]

    def meter(self, peak: float) -> None:
        """Show how loud the microphone is, 0 to 1, while there are no captions."""
        level_db = 20 * math.log10(max(peak, 1e-6))
        n_lit = round(_METER_CELLS * min(1.0, max(0.0, 1 - level_db / _FLOOR_DB)))
        self._meter = f"{_MIC} {'█' * n_lit}{'░' * (_METER_CELLS - n_lit)}"
        self._put(self._region.draw(self._rows()))

    def redraw(self) -> None:
        """Fit the partial to the terminal's present size: call it on SIGWINCH."""
        self._put(self._region.draw(self._rows(), anew=True))

    @contextmanager
    def above(self) -> Iterator[None]:
        """Keep whole lines that are written to the same terminal inside above the partial."""
        self._put(self._region.draw([]))
        try:
            yield
        finally:
            self.redraw()

    def close(self) -> None:
        """Leave the cursor, visible, below everything; words that never became final stay."""
        self._meter = ""
        self._put(self._region.draw(self._rows()) + self._region.leave())

    def _put(self, text: str) -> None:
        if text:
            put(self._stream, text)


def _laid_out(spans: list[Span], columns: int) -> list[str]:
    """Return rows of at most `columns` cells, each with its own styles."""
    rows: list[list[Span]] = [[]]
    used = 0
    for span in spans:
        for i, chunk in enumerate(chunks(span.text, columns, used)):
            if i:
                rows.append([])
                used = 0
            rows[-1].append(Span(chunk, span.sgr))
            used += width(chunk)
    return [paint(row) for row in rows] if spans else []


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal that obeys escape sequences."""
    return stream.isatty() and environ.get("TERM") != "dumb"


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return (columns, lines) of the stream's terminal, or 80 x 24 if it is unknown.

    ``COLUMNS`` is ignored: a shell that exports it freezes the width of its start.
    """
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns = lines = 0
    return columns or 80, lines or 24
