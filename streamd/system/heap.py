"""Memory that the C library holds for the program, where that is glibc."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_END_BYTES, _LARGE_BYTES = 1024**2, 2 * 1024**2
"""For glibc's `mallopt`. Unless they are set, both grow with the blocks that are freed, to 64 MB
and 32 MB."""


def return_early() -> None:
    """From now on, return large blocks, and what is free at the end of a heap, to the system.

    glibc, if it is the C library, has a heap for each thread. It would keep there what the largest
    model or window took. Called before anything large is in a heap, it saves 20 MB of 240.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _END_BYTES)


def trim() -> None:
    """Return free memory to the system, where the C library is glibc."""
    if (release := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        release(0)
