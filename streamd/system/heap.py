"""Settings of glibc's allocator that keep resident memory small; elsewhere they do nothing."""

import ctypes
import weakref

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_END_BYTES, _LARGE_BYTES = 1024**2, 2 * 1024**2
"""For glibc's `mallopt`. Unless they are set, both grow with the blocks that are freed, to 64 MB
and 32 MB."""
_PASS_BYTES = 4 * 1024**2
"""More than the logits of sixteen windows."""


def share_heap() -> None:
    """Limit glibc to one malloc arena.

    By default each thread gets its own, which keeps the memory that a window took. Called before
    there are threads, this saves 4 MB for each thread of the model.
    """
    _call("mallopt", _M_ARENA_MAX, 1)


def return_early() -> None:
    """Return large blocks and the free end of the heap to the system from now on.

    Otherwise glibc keeps what the largest model or window took. Called before anything large is
    allocated, this saves 20 MB of 240.
    """
    _set_limits(_END_BYTES, _LARGE_BYTES)


def keep_for_passes(user: object) -> None:
    """Keep blocks of the size that each batched pass needs, while `user` lives.

    Getting their pages from the system each time takes 5 % of a recording's CPU time.
    """
    _set_limits(_PASS_BYTES, _PASS_BYTES)
    weakref.finalize(user, return_early).atexit = False


def _set_limits(end_bytes: int, large_bytes: int) -> None:
    _call("mallopt", _M_MMAP_THRESHOLD, large_bytes)
    _call("mallopt", _M_TRIM_THRESHOLD, end_bytes)


def trim() -> None:
    """Return free memory to the system."""
    _call("malloc_trim", 0)


def _call(name: str, *values: int) -> None:
    if (function := getattr(ctypes.CDLL(None), name, None)) is not None:
        function(*values)
