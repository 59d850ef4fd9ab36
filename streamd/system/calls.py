"""Calls whose result or error is kept in a future: another thread's, or those of one of many."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

ResultT = TypeVar("ResultT")


def settle(done: Future[ResultT], call: Callable[[], ResultT]) -> None:
    """Call, and put the result or what was raised into `done`, unless that was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whoever has the future looks at it
        done.set_exception(error)


def outcome(call: Callable[[], ResultT]) -> Future[ResultT]:
    """Call, and return the finished future, which has the result or what was raised.

    For calls on behalf of one session or connection, whose bug must not end the others: whoever
    calls looks at ``exception()`` and reports it.
    """
    done: Future[ResultT] = Future()
    settle(done, call)
    return done
