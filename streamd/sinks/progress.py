"""One line at the bottom of a terminal that shows how far a long task is."""

import time
from collections.abc import Callable
from functools import partial

from wcwidth import iter_graphemes

from streamd.sinks.text import clean, clock, width
from streamd.system.disk import megabytes

_MIN_BAR_CELLS = 10
_MAX_BAR_CELLS = 40
_REDRAW_S = 0.1

Render = Callable[[int, int, float, int], str]
"""Makes a line from the amounts done and in all, the amount per second (0: unknown) and the number
of columns."""


def transcription_line(
    label: str, position_ms: int, duration_ms: int, speed: float, columns: int
) -> str:
    """Say how much of a recording is transcribed, in a line of at most `columns` cells.

    `speed` is in milliseconds of audio per second, 0 if unknown, as is `duration_ms`.
    """
    done, times = clock(position_ms), f"{speed / 1000:.1f}x real time"
    if not duration_ms:
        return _fitted(f"{clean(label)}  {done}  {times}", columns)
    left = clock(max(round((duration_ms - position_ms) / speed * 1000), 0)) if speed else "-:--:--"
    share = min(position_ms / duration_ms, 1.0)
    numbers = f"{share:4.0%}  {done} / {clock(duration_ms)}  {times}  {left} left"
    return _with_bar(label, share, numbers, columns)


def download_line(label: str, n_done: int, n_bytes: int, speed: float, columns: int) -> str:
    """Say how much is downloaded, in at most `columns` cells; `speed` is in bytes/s, or 0."""
    share = n_done / n_bytes if n_bytes else 1.0
    numbers = f"{share:4.0%} of {megabytes(n_bytes)}"
    if speed:
        left = clock(round((n_bytes - n_done) / speed * 1000))
        numbers += f"  {speed / 1e6:.1f} MB/s  {left} left"
    return _with_bar(label, share, numbers, columns)


def _with_bar(label: str, share: float, numbers: str, columns: int) -> str:
    available = columns - width(numbers) - 2
    if available < _MIN_BAR_CELLS:
        return _fitted(numbers, columns)
    name = clean(label) + "  "
    if width(name) > available - _MIN_BAR_CELLS:
        name = ""
    cells = min(available - width(name), _MAX_BAR_CELLS)
    filled = round(share * cells)
    return f"{name}{'█' * filled}{'░' * (cells - filled)}  {numbers}"


def _fitted(text: str, columns: int) -> str:
    shown = ""
    for grapheme in iter_graphemes(text):
        if width(shown + grapheme) > columns:
            break
        shown += grapheme
    return shown


class Progress:
    """Has `show` show the line that `render` makes of the progress of one task.

    `start` is what was done before the task began; it does not count for the speed.
    """

    def __init__(
        self,
        show: Callable[[Callable[[int], str]], object],
        render: Render,
        *,
        start: int = 0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._render, self._start, self._now_s = show, render, start, now_s
        self._began_s = now_s()
        self._shown_s = self._began_s - _REDRAW_S

    def update(self, done: int, total: int) -> None:
        """Show how much is done, at most ten times a second; a `total` of 0 means unknown."""
        now_s = self._now_s()
        if now_s - self._shown_s < _REDRAW_S:
            return
        self._shown_s = now_s
        elapsed_s = now_s - self._began_s
        speed = (done - self._start) / elapsed_s if elapsed_s > 0 else 0.0
        self._show(partial(self._render, done, total, speed))
