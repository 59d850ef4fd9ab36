"""An event loop whose clock is simulated: hours of audio in minutes, on a machine that is busy.

Waiting costs no time: when nothing is ready, the clock jumps to the next timer. What runs in an
executor runs at once, alone, and then takes as long on this clock as it took by a stopwatch. So the
daemon's own scheduling is measured, with the latencies of a machine that does nothing else. Work on
the loop itself is free. No other thread may wake this loop.
"""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVarTuple

ArgsT = TypeVarTuple("ArgsT")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Give it to `asyncio.Runner(loop_factory=...)`. Inherits, as asyncio's loops are extended."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        """`stopwatch` gives seconds; what an executor runs takes their difference."""
        self._now_s = 0.0
        self._stopwatch = stopwatch
        super().__init__(_Hurried(self._skip))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*ArgsT], Any], *args: *ArgsT
    ) -> asyncio.Future[Any]:
        """Run it here and now; its result is there when the clock has run as long as it took."""
        done: asyncio.Future[Any] = self.create_future()
        begun_s = self._stopwatch()
        result = func(*args)  # what it raises is a failed measurement, and ends it
        self.call_later(self._stopwatch() - begun_s, _settle, done, result)
        return done

    def _skip(self, seconds: float) -> None:
        self._now_s += seconds


def _settle(done: asyncio.Future[Any], result: object) -> None:
    if not done.cancelled():
        done.set_result(result)


class _Hurried(selectors.DefaultSelector):
    """Does not wait for what has a time; says how long it did not."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip_wait = skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self._skip_wait(timeout)
            timeout = 0
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return ready
