"""A download as a person sees it: how large, from where, how far.

On a terminal one line shows how far it is; elsewhere a line is logged at every tenth.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from streamd.config import Output
from streamd.engine.catalog import megabytes
from streamd.engine.store.download import Offer, Told, fetch
from streamd.engine.store.places import Places
from streamd.sinks.look import clock
from streamd.sinks.terminal import is_terminal, terminal_size

log = logging.getLogger(__name__)

_BAR_CELLS = 20
_REDRAW_S = 0.1
_CLEAR = "\r\x1b[K"


def download(name: str, offer: Offer, here: Places, output: Output) -> None:
    """Download what is offered, and tell how it goes on.

    Raises
    ------
    ModelError : it failed; what came is kept
    """
    if not offer.n_missing:
        log.info("all of %s is here; checking it", name)
        fetch(offer, here)
        return
    size = megabytes(offer.n_missing)
    log.info("downloading %s, %s, from %s to %s", name, size, here.host, here.cache)
    with _progress(name, output) as told:
        fetch(offer, here, told=told)


@contextmanager
def _progress(name: str, output: Output) -> Iterator[Told]:
    plain = output.quiet or output.log_format == "json"
    if plain or not is_terminal(sys.stderr, os.environ):
        yield _Tenths(name).reached
        return
    line = ProgressLine(sys.stderr, name)
    try:
        yield line.reached
    finally:
        line.close()


class _Tenths:
    """Logs a line whenever another tenth is there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tenth = 0

    def reached(self, n_here: int, n_all: int) -> None:
        tenth = 10 * n_here // n_all if n_all else 10
        if tenth > self._tenth:
            self._tenth = tenth
            log.info("%s: %d %% of %s", self._name, 10 * tenth, megabytes(n_all))


class ProgressLine:
    """One line at the bottom of a terminal, drawn anew at most ten times a second."""

    def __init__(
        self, stream: TextIO, name: str, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._name = name
        self._now_s = now_s
        self._began: tuple[float, int] | None = None
        self._drawn_s = now_s() - _REDRAW_S

    def reached(self, n_here: int, n_all: int) -> None:
        """Show that so many bytes of all are here."""
        now_s = self._now_s()
        began_s, n_before = self._began = self._began or (now_s, n_here)
        if now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        speed = (n_here - n_before) / (now_s - began_s) if now_s > began_s else 0.0
        columns, _ = terminal_size(self._stream)
        line = download_line(self._name, n_here=n_here, n_all=n_all, speed=speed)
        self._put(f"{_CLEAR}{line[: columns - 1]}")

    def close(self) -> None:
        """Take the line away."""
        self._put(_CLEAR)

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def download_line(name: str, *, n_here: int, n_all: int, speed: float) -> str:
    """How far it is; `speed` is in bytes per second, 0 if unknown."""
    share = n_here / n_all if n_all else 1.0
    filled = round(share * _BAR_CELLS)
    bar = "█" * filled + "░" * (_BAR_CELLS - filled)
    left = f"  {clock(round((n_all - n_here) / speed * 1000))} left" if speed else ""
    per_second = f"  {speed / 1e6:.1f} MB/s" if speed else ""
    return f"{name}  {bar}  {share:4.0%} of {megabytes(n_all)}{per_second}{left}"
