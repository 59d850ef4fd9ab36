"""Blocking calls in a thread, such that being cancelled loses nothing."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one blocking call at a time in a thread of the event loop's pool.

    A thread cannot be cancelled. When the caller is, the call goes on, and the next `run` gets its
    result instead of starting another.
    """

    def __init__(self) -> None:
        self._running: asyncio.Future[T] | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Give what `call` returns or raises, or what the call does that is still running."""
        if self._running is None:
            self._running = asyncio.get_running_loop().run_in_executor(None, call)
        await asyncio.wait([self._running])
        done, self._running = self._running, None
        return done.result()

    async def join(self) -> None:
        """Wait until nothing is running, whatever comes of it."""
        if self._running is not None:
            await asyncio.wait([self._running])
            self._running.exception()
            self._running = None
