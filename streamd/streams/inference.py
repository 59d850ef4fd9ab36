"""The threads that the model runs in, each with one window at a time and a deadline."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from streamd.errors import EngineError
from streamd.system.calls import settle, wait_at_exit
from streamd.system.stdio import ENGINE_THREAD

STEP_DEADLINES = 5
"""How many deadlines of a live window a recording's may take: it is longer, and is decoded again
at all temperatures before its words are aligned."""
_TICK_S = 1.0
"""The deadline counts in steps of this: a process that was stopped for an hour (SIGSTOP, Ctrl-Z)
finds that only one of them has passed."""

ResultT = TypeVar("ResultT")


class HangError(EngineError):
    """The engine does not return from a window; its thread cannot be ended."""


class EngineThread(Executor):
    """A thread for the calls of an engine; call `close` when it is no longer needed.

    It is a daemon thread instead of a pool's: Python waits for those of a pool when the program
    ends, but a hung engine never returns. It is an executor that is called through the event loop,
    because a loop with a simulated clock counts the time of its executors
    (``benchmarks/lab/clock.py``).
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=ENGINE_THREAD, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - as the standard library has it
        """Call `fn` in the thread; the event loop uses this."""
        done: Future[Any] = Future()
        self._tasks.put((done, partial(fn, *args, **kwargs)))
        return done

    async def run(
        self, call: Callable[[], ResultT], *, deadline_s: float
    ) -> asyncio.Future[ResultT]:
        """Call in the thread, and return the finished future; one call at a time.

        The future has what the call raises. Raises `HangError` after the deadline (0: none); then
        the thread is of no more use.
        """
        waiting = asyncio.get_running_loop().run_in_executor(self, call)
        left_s = deadline_s or float("inf")
        try:
            while left_s > 0 and not waiting.done():
                tick_s = min(_TICK_S, left_s)
                await asyncio.wait({waiting}, timeout=tick_s)
                left_s -= tick_s
            if waiting.done():
                return waiting
        finally:
            waiting.cancel()  # a late result is dropped
        raise HangError(
            f"the engine has not finished a window within {deadline_s:g} s: it hangs, or "
            "the model is far too slow for this machine (then raise decoding.engine_deadline_ms)"
        )

    def close(self) -> None:
        """End the thread after its current call, for which only the end of the program waits."""
        self._tasks.put(None)
        wait_at_exit(self._thread)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            settle(*task)
            del task  # while it waits for the next, its window's states could not be freed
