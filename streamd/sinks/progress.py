"""How far a long file has been transcribed: one line at the bottom of standard error.

The line is drawn only on a terminal. Captions that go to the same terminal are printed inside
`ProgressBar.above`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from streamd.sinks.look import clock
from streamd.sinks.terminal import Region, Size, terminal_size
from streamd.sinks.text import chunks, clean, width

_MIN_BAR_CELLS = 10
_MAX_BAR_CELLS = 40
_REDRAW_S = 0.1


def progress_line(
    label: str, *, position_ms: int, duration_ms: int, elapsed_s: float, columns: int
) -> str:
    """One line of at most `columns` cells.

    Parameters
    ----------
    label : what is being transcribed, such as a file name
    position_ms, duration_ms : audio done and audio there is; 0 if unknown
    elapsed_s : seconds since the beginning
    """
    speed = position_ms / 1000 / elapsed_s if elapsed_s > 0 else 0.0
    done = clock(position_ms)
    if not duration_ms:
        return _fitted(f"{clean(label)}  {done}  {speed:.1f}x real time", columns)
    share = min(position_ms / duration_ms, 1.0)
    left = clock(max(round((duration_ms - position_ms) / speed), 0)) if speed else "-:--:--"
    numbers = f"{share:4.0%}  {done} / {clock(duration_ms)}  {speed:.1f}x real time  {left} left"
    room = columns - width(numbers) - 2
    if room < _MIN_BAR_CELLS:
        return _fitted(numbers, columns)
    name = clean(label) + "  "
    if width(name) > room - _MIN_BAR_CELLS:
        name = ""
    cells = min(room - width(name), _MAX_BAR_CELLS)
    filled = round(share * cells)
    return f"{name}{'█' * filled}{'░' * (cells - filled)}  {numbers}"


def _fitted(text: str, columns: int) -> str:
    shown = next(chunks(text, columns))
    return shown if width(shown) <= columns else ""  # one cell, and a wide character


class ProgressBar:
    """The progress of one file on a terminal.

    Parameters
    ----------
    stream : standard error, a terminal
    label : what is being transcribed
    size : asks for (columns, lines); by default the stream's own terminal
    now_s : a monotonic clock
    """

    def __init__(
        self,
        stream: TextIO,
        label: str,
        *,
        size: Size | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._label = label
        self._size = size or (lambda: terminal_size(stream))
        self._now_s = now_s
        self._began_s = now_s()
        self._drawn_s = self._began_s - _REDRAW_S
        self._region = Region()
        self._rows: list[str] = []

    def update(self, position_ms: int, duration_ms: int) -> None:
        """Show that the audio before `position_ms` is done; at most ten times a second.

        `duration_ms`: of the whole file, 0 if unknown.
        """
        now_s = self._now_s()
        if now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        line = progress_line(
            self._label,
            position_ms=position_ms,
            duration_ms=duration_ms,
            elapsed_s=now_s - self._began_s,
            columns=self._size()[0],
        )
        self._rows = [line]
        self._put(self._region.draw(self._rows))

    @contextmanager
    def above(self) -> Iterator[None]:
        """Whole lines written to the same terminal inside stay above the bar."""
        self._put(self._region.draw([]))
        try:
            yield
        finally:
            self._put(self._region.draw(self._rows))

    def close(self) -> None:
        """Take the bar away."""
        self._put(self._region.draw([]))

    def _put(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()
