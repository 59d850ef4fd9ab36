"""What the daemon holds: no more after many sessions, and what is free is given back."""

import ctypes
from pathlib import Path

import pytest

from streamd.daemon.memory import trim

IS_GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not IS_GLIBC, reason="other C libraries keep less")
def test_what_is_free_is_given_back():
    blocks = [bytearray(64 << 10) for _ in range(1024)]
    del blocks[:-1]  # the last one holds the heap up
    before = resident()
    trim()
    assert before - resident() > 48 * MIB
