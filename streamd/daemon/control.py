"""Signals of the user and the service manager.

SIGINT, SIGTERM: stop and make final what was captured; a second one exits at once, with 130.
SIGHUP: read the token again, or stop if the terminal was closed. SIGUSR1: pause and resume live
captions. SIGUSR2: log the state of every session. SIGWINCH: the terminal was resized.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

INTERRUPTED = 130
"""Exit code."""

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Control:
    """Whether to stop or pause, and what to do at each signal.

    An action belongs to the part of the program that is running (an open source, a server, a
    screen), so each is installed by a context manager: `stopping` and `on`.
    """

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.paused = False
        self._stopped_s: float | None = None  # of the loop's time
        self._reason: Exception | None = None
        self._stop_actions: list[Callable[[], None]] = []
        self._actions: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGINT: self.stop,
            signal.SIGTERM: self.stop,
            signal.SIGHUP: self.stop,
            signal.SIGUSR1: lambda: None,
            signal.SIGUSR2: lambda: None,
            signal.SIGWINCH: lambda: None,
        }

    def stop(self, reason: Exception | None = None) -> None:
        """Take no more audio; from now on an interrupt exits at once.

        `reason`: the error that stopped the program, if it was not the user; see `check`.
        """
        if reason is not None:
            self.note(reason)
        if self.stopped.is_set():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            # Not through the event loop: it may be what hangs.
            signal.signal(number, lambda *_: os._exit(INTERRUPTED))
        self._stopped_s = loop.time()
        self.stopped.set()
        for action in self._stop_actions:
            action()

    def note(self, reason: Exception) -> None:
        """Go on, and have `check` raise this error at the end."""
        self._reason = self._reason or reason

    def end_by(self, within_s: float) -> float:
        """Return by when, in the loop's time, all has to be over that may take `within_s`.

        That counts from the moment at which the program was stopped, or from now before that; so
        whatever waits until then, one after the other, ends in time.
        """
        since_s = self._stopped_s
        return (asyncio.get_running_loop().time() if since_s is None else since_s) + within_s

    def check(self) -> None:
        """Raise the first error that `stop` or `note` was called with."""
        if self._reason is not None:
            raise self._reason

    def toggle_pause(self) -> None:
        """Drop audio until the next call."""
        self.paused = not self.paused
        log.info("paused" if self.paused else "resumed")

    @contextmanager
    def stopping(self, action: Callable[[], None]) -> Iterator[None]:
        """Call `action` if the program is stopped while the context lasts."""
        self._stop_actions.append(action)
        try:
            yield
        finally:
            self._stop_actions.remove(action)

    @contextmanager
    def on(self, number: signal.Signals, action: Callable[[], object]) -> Iterator[None]:
        """Call `action` at a signal while the context lasts, instead of the action before."""
        before, self._actions[number] = self._actions[number], action
        try:
            yield
        finally:
            self._actions[number] = before

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle the process's signals."""
        loop = asyncio.get_running_loop()
        for number in self._actions:
            loop.add_signal_handler(number, self._handle, number)
        try:
            yield
        finally:
            for number in self._actions:
                loop.remove_signal_handler(number)

    def _handle(self, number: signal.Signals) -> None:
        self._actions[number]()


async def until_first_error(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run it; of several errors at once raise only the first."""
    try:
        return await work
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
