"""What the user says by signals.

SIGINT, SIGTERM: stop, and make final what was said; the second one exits at once, with 130.
SIGHUP: read the token anew, or stop if it was the terminal that hung up. SIGUSR1: pause and resume.
SIGUSR2: log the state of every session. SIGWINCH: the terminal was resized.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130

log = logging.getLogger(__name__)


class Control:
    """Stop and pause, and who wants to know of them."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.paused = False
        self._reason: Exception | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.on_hangup: Callable[[], None] = self.stop
        self.on_resize: Callable[[], object] = lambda: None
        self.on_dump: Callable[[], None] = lambda: None

    def stop(self, reason: Exception | None = None) -> None:
        """Take no more audio; the next interrupt does not wait for anything.

        `reason`: what failed, if it was not the user who wanted it; see `check`.
        """
        self._reason = self._reason or reason
        if self.stopped.is_set():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            # Not through the event loop: that may be what hangs.
            signal.signal(number, lambda *_: os._exit(INTERRUPTED))
        self.stopped.set()
        self.on_stop()

    def check(self) -> None:
        """Raise the first failure that `stop` was called for, when everything has been said."""
        if self._reason is not None:
            raise self._reason

    def toggle_pause(self) -> None:
        """Leave out audio until the next time."""
        self.paused = not self.paused
        log.info("paused" if self.paused else "resumed")

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Listen to the process's signals."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGINT: self.stop,
            signal.SIGTERM: self.stop,
            signal.SIGHUP: lambda: self.on_hangup(),
            signal.SIGUSR1: self.toggle_pause,
            signal.SIGUSR2: lambda: self.on_dump(),
            signal.SIGWINCH: lambda: self.on_resize(),
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)


async def until_first_error(work: Coroutine[Any, Any, None]) -> None:
    """Run it; of several errors at once only the first is the user's concern."""
    try:
        await work
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
