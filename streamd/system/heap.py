"""Memory that the C library holds for the program, where that is glibc."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_END_BYTES, _LARGE_BYTES = 1024**2, 2 * 1024**2
"""For glibc's `mallopt`. Unless they are set, both grow with the blocks that are freed, to 64 MB
and 32 MB."""
_PASS_BYTES = 4 * 1024**2
"""More than the logits of sixteen windows."""


def return_early() -> None:
    """From now on, return large blocks, and what is free at the end of a heap, to the system.

    glibc, if it is the C library, has a heap for each thread. It would keep there what the largest
    model or window took. Called before anything large is in a heap, it saves 20 MB of 240.
    """
    _set_limits(_END_BYTES, _LARGE_BYTES)


def keep_for_passes() -> None:
    """From now on, keep blocks of a size that each pass of several windows needs again.

    To get their pages from the system each time takes 5 % of a recording's CPU time.
    """
    _set_limits(_PASS_BYTES, _PASS_BYTES)


def _set_limits(end_bytes: int, large_bytes: int) -> None:
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, large_bytes)
        mallopt(_M_TRIM_THRESHOLD, end_bytes)


def trim() -> None:
    """Return free memory to the system, where the C library is glibc."""
    if (release := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        release(0)
