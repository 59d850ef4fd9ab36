"""Run calls in threads, and capture what they return or raise."""

import atexit
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import TypeVar

from streamd.system.stdio import ENGINE_THREAD, leave

ResultT = TypeVar("ResultT")


def settle(done: Future[ResultT], call: Callable[[], ResultT]) -> None:
    """Call, and put the result or what was raised into `done`, unless that was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whoever has the future looks at it
        done.set_exception(error)


def in_thread(call: Callable[[], ResultT]) -> Future[ResultT]:
    """Begin a call to native code in a thread of its own, and return the future with its result.

    It is a daemon thread, as the engine's: the end of the program does not wait for long for one
    that hangs.
    """
    done: Future[ResultT] = Future()
    thread = Thread(target=settle, args=(done, call), daemon=True)
    wait_at_exit(thread)
    thread.start()
    return done


_ENDING = f"{ENGINE_THREAD}, ending"
"""The name of threads that the end of the program waits for."""
_EXIT_S = 10.0
"""How long the end of a program that uses the library waits for a call."""


def wait_at_exit(thread: Thread) -> None:
    """Have the end of the program wait for the call of a daemon thread that is about to end."""
    thread.name = _ENDING
    _register()


@cache
def _register() -> None:
    # The command line ends with an exit code of its own: it calls `leave` first.
    atexit.register(
        lambda: leave(
            [each for each in enumerate_threads() if each.name == _ENDING], 1, wait_s=_EXIT_S
        )
    )
