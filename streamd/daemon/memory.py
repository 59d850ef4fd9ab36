"""Memory that the C library keeps for later, given back to the system."""

import ctypes


def trim() -> None:
    """Give back what is free; nothing happens where the C library is not glibc.

    glibc has a heap for each thread and keeps what the largest window took there, for ever.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
