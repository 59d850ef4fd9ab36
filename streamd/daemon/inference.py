"""The threads that the model runs in: one window each at a time, and not for ever."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from streamd.errors import EngineError
from streamd.types import Hypothesis, Window

_TICK_S = 1.0
"""A process that was stopped for an hour (SIGSTOP, Ctrl-Z) has let one of these pass."""
_LEAVE_S = 10.0


class HangError(EngineError):
    """The engine has a window and does not come back; its thread cannot be ended either."""


class Recognizer(Protocol):
    """Hears what is said in a window."""

    def recognize(self, window: Window) -> Hypothesis:
        """Transcribe the window; slow, called in another thread, for one window at a time."""
        ...


class InferenceThread(Executor):
    """A thread of its own for `recognizer`; call `close` in the end.

    Not one of a pool's: these are waited for when the program ends, and a dead engine's thread
    never comes back. It is an executor, asked through the event loop, for one whose clock is
    simulated counts the time that it takes (``benchmarks/lab/clock.py``).

    Parameters
    ----------
    deadline_s : for how long a window may be out; 0: for ever
    """

    def __init__(self, recognizer: Recognizer, *, deadline_s: float) -> None:
        self._recognizer, self._deadline_s = recognizer, deadline_s
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._is_dead = False
        self._thread = Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    async def recognize(self, window: Window) -> Hypothesis:
        """What the recognizer hears in the window; call it again when this has returned.

        Raises
        ------
        EngineError : it failed
        HangError : it has not come back: nothing more can be had from it
        """
        loop = asyncio.get_running_loop()
        waiting = loop.run_in_executor(self, self._recognizer.recognize, window)
        left_s = self._deadline_s or float("inf")
        try:
            while left_s > 0 and not waiting.done():
                tick_s = min(_TICK_S, left_s)
                await asyncio.wait({waiting}, timeout=tick_s)
                left_s -= tick_s
            if waiting.done():
                return waiting.result()
        finally:
            waiting.cancel()  # what comes of it now is nobody's concern
        self._is_dead = True
        raise HangError(
            f"the engine has not come back from a window for {self._deadline_s:g} s: it hangs, or "
            "the model is far too slow for this machine (then raise --engine-deadline-ms)"
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - as the standard library has it
        """Have the thread call it; for the event loop."""
        done: Future[Any] = Future()
        self._tasks.put((partial(fn, *args, **kwargs), done))
        return done

    def close(self) -> None:
        """End the thread, which waits for the window that it has, unless that has been given up."""
        self._tasks.put(None)
        if not self._is_dead:
            self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            call, done = task
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001 - for whoever waits for the window
                done.set_exception(error)
