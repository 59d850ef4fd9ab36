"""Live captions on standard output.

On a terminal a final becomes an ordinary line that is never touched again: the terminal itself
wraps it, so it is copied as one line and wraps anew when the window is resized. Below it stands the
partial, laid out as that line will be, so that nothing jumps when it becomes final: its committed
words in normal weight, its tentative end faint. Anywhere else standard output gets the finals only,
one line each, or all events as JSON lines.

Logs belong on standard error; where that is the same terminal, write them inside `above`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TextIO

from streamd.events import Event, Fault, Final, Gap, Lag, Partial
from streamd.sinks import CaptionSink
from streamd.sinks.cues import Layout
from streamd.sinks.files import StreamSink
from streamd.sinks.formats import FORMATS
from streamd.sinks.lines import Text, Wire
from streamd.sinks.look import FAINT, Look, Span, caption, gap_notice, paint
from streamd.sinks.region import Region
from streamd.sinks.text import chunks, clean, width
from streamd.stdio import put

Size = Callable[[], tuple[int, int]]
"""Asks the terminal for its (columns, lines)."""


class Captions:
    """The terminal renderer: events in, what to write to the terminal out. Pure but for `size`."""

    def __init__(self, look: Look, size: Size) -> None:
        self._look = look
        self._size = size
        self._region = Region()
        self._partial: Partial | None = None
        self._behind_s = 0

    def feed(self, event: Event) -> str:
        """What to write for `event`; empty if the screen stays as it is."""
        above = ""
        if isinstance(event, Partial):
            self._partial = event
            if self._behind_s:  # A recovered engine says so only by its next partial.
                self._behind_s = event.lag_ms // 1000
        elif isinstance(event, Final):
            above = self._final(event)
        elif isinstance(event, Lag):
            self._behind_s = event.lag_ms // 1000
        elif isinstance(event, Gap):
            above = gap_notice(event.duration_ms, event.why) + "\r\n"
        elif isinstance(event, Fault):
            above = f"[{clean(event.message)}]\r\n"
        return self._region.draw(self._rows(), above)

    def _final(self, final: Final) -> str:
        if self._partial is not None and self._partial.seg <= final.seg:
            self._partial = None
        self._behind_s = 0
        return paint(caption(final, self._look)) + "\r\n" if final.text else ""

    def _rows(self) -> list[str]:
        """The region: the partial and, while the engine is behind, by how much."""
        spans: list[Span] = []
        if self._partial is not None and self._partial.text:
            spans = caption(self._partial, self._look)
        if self._behind_s:
            spans.append(Span(f" [{self._behind_s} s behind]", FAINT))
        columns, lines = self._size()
        # Only the end of a partial that would fill more than half of the screen: when a window is
        # made half as wide, rows that wrap must not push the region's first one out of reach.
        return _laid_out(spans, columns)[-max(1, lines // 2) :]

    def hide(self) -> str:
        """What takes the partial off the screen until `redraw`."""
        return self._region.draw([])

    def redraw(self) -> str:
        """What draws the partial anew, for the terminal's present size."""
        return self._region.draw(self._rows()) or self._region.redraw()

    def finish(self) -> str:
        """What leaves the screen in order: words that never became final stay visible."""
        return self._region.leave()


def _laid_out(spans: list[Span], columns: int) -> list[str]:
    """Rows of at most `columns` cells, each with its own styles."""
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


class TerminalSink:
    """Live captions on a terminal.

    Parameters
    ----------
    stream : text stream of the terminal
    look : the user's choices
    size : asks for (columns, lines); by default the stream's own terminal
    """

    def __init__(self, stream: TextIO, look: Look, *, size: Size | None = None) -> None:
        self._stream = stream
        self._captions = Captions(look, size or (lambda: terminal_size(stream)))

    def write(self, event: Event) -> None:
        """Show `event`, at once."""
        self._put(self._captions.feed(event))

    def redraw(self) -> None:
        """Fit the partial to the terminal's present size: call it on SIGWINCH."""
        self._put(self._captions.redraw())

    @contextmanager
    def above(self) -> Iterator[None]:
        """Whole lines written to the same terminal inside stay above the partial."""
        self._put(self._captions.hide())
        try:
            yield
        finally:
            self.redraw()

    def close(self) -> None:
        """Leave the cursor, visible, below everything."""
        self._put(self._captions.finish())

    def _put(self, text: str) -> None:
        if text:
            put(self._stream, text)


def open_captions(
    stream: TextIO, look: Look, *, form: str, layout: Layout, environ: Mapping[str, str]
) -> CaptionSink:
    """The sink for standard output.

    Parameters
    ----------
    stream : standard output; what its encoding lacks becomes a question mark from now on
    look : the user's choices; only ``text`` has looks
    form : ``text`` is live on a terminal, else finals only; ``jsonl`` is every event in wire form;
        or another one of `FORMATS`
    layout : of subtitles
    environ : for ``TERM``: a dumb terminal is served like a pipe
    """
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")
    if form == "text":
        if is_terminal(stream, environ):
            return TerminalSink(stream, look)
        return StreamSink(stream, Text(look))
    return StreamSink(stream, Wire() if form == "jsonl" else FORMATS[form](layout))


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal that obeys escape sequences."""
    return stream.isatty() and environ.get("TERM") != "dumb"


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """(columns, lines) of the terminal behind `stream`; 80 x 24 if it does not tell.

    ``COLUMNS`` is not asked: a shell that exports it would freeze the width at its start.
    """
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns = lines = 0
    return columns or 80, lines or 24
