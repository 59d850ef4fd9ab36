"""Live captions on standard output.

On a terminal finals are paragraphs, which break at blanks and end in pauses. A full row becomes an
ordinary line that is never touched again; the last row of the paragraph and the partial stand below
it, laid out as they will be, so that nothing jumps when the partial becomes final.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from streamd.events import Event, Fault, Final, Gap, Lag, Partial
from streamd.sinks.text import (
    FAINT,
    PARAGRAPH_PAUSE_MS,
    Look,
    Span,
    blank_between,
    caption,
    clean,
    gap_notice,
    paint,
    wrapped,
)
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
        self._line: list[Span] = []  # the last row of the finals, which may go on
        self._end_ms = 0

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
            above = self._append(event) if event.text else ""
        elif isinstance(event, Lag):
            self._behind_s = event.lag_ms // 1000
        elif isinstance(event, Gap):
            above = self._end_paragraph() + gap_notice(event.duration_ms, event.why) + "\r\n"
        elif isinstance(event, Fault):
            above = self._end_paragraph() + f"[{clean(event.message)}]\r\n"
        self._put(self._region.draw(self._rows(), above))

    def _append(self, final: Final) -> str:
        """Add a final to the paragraph, or begin another; return the lines that are complete."""
        above = "" if self._continues(final) else self._end_paragraph()
        rows = wrapped(self._joined(final), self._size()[0])
        self._line, self._end_ms = rows.pop(), final.end_ms
        return above + "".join(f"{paint(row)}\r\n" for row in rows)

    def _end_paragraph(self) -> str:
        ended, self._line = self._line, []
        return f"{paint(ended)}\r\n" if ended else ""

    def _continues(self, event: Partial | Final) -> bool:
        """Whether a caption belongs to the paragraph of the last final; a stamp begins a line."""
        is_soon = event.start_ms - self._end_ms < PARAGRAPH_PAUSE_MS
        return bool(self._line) and is_soon and not self._look.stamp(event.start_ms)

    def _joined(self, event: Partial | Final) -> list[Span]:
        """Return the last row of the finals and the caption after it."""
        spans = caption(event, self._look)
        if not self._line:
            return spans
        return [*self._line, Span(blank_between(self._line[-1].text, event.text)), *spans]

    def _rows(self) -> list[str]:
        """Return what may still change: the last row of the finals, the partial, lag or level."""
        columns, lines = self._size()
        rows, spans = [], self._line
        if self._partial is not None and self._partial.text:
            if self._continues(self._partial):
                spans = self._joined(self._partial)
            else:
                rows, spans = wrapped(self._line, columns), caption(self._partial, self._look)
        if self._behind_s:
            spans = [*spans, Span(f" [{self._behind_s} s behind]", FAINT)]
        elif spans is self._line and self._meter:
            rows, spans = wrapped(self._line, columns), [Span(self._meter, FAINT)]
        rows += wrapped(spans, columns)
        # Only the end of a partial that would fill more than half of the screen: when a window is
        # made half as wide, rows that wrap must not push the region's first one off the screen.
        return [paint(row) for row in rows[-max(1, lines // 2) :]]

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
