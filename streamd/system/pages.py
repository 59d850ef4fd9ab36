"""Memory in pages of the system, of which several blocks can have some in common."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_MAP_FIXED = 0x10
"""On Linux; Python's `mmap` cannot be given an address."""
_FAILED = ctypes.c_void_p(-1).value


def whole_pages(n_bytes: int) -> int:
    """Return the size of the pages that so many bytes need."""
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros, of which what is not written takes no memory.

    A heap does not promise that: it gives what was written before, keeps pieces of what it gets
    back, and numpy asks for huge pages.
    """
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    if not n_bytes:
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


class Template:
    """What blocks of memory hold at first. They share its pages until they write there.

    Only on Linux; elsewhere each block has a copy.
    """

    def __init__(self, n_bytes: int, content: Mapping[int, Bytes]) -> None:
        """`content` are the bytes at some places of a block, each at the beginning of a page.

        All others of the `n_bytes` are zeros, which take no memory until they are written.
        """
        self._n_bytes = n_bytes
        self._places = [(at, len(part)) for at, part in content.items()]
        pieces = [np.pad(part, (0, -len(part) % mmap.PAGESIZE)) for part in content.values()]
        self._copy = np.concatenate([np.zeros(0, np.uint8), *pieces])
        self._file = _stored(self._copy)
        if self._file is not None:
            weakref.finalize(self, os.close, self._file)
            self._copy = self._copy[:0].copy()

    def new_block(self) -> Bytes:
        """Return a new block, (n_bytes,)."""
        block = zeros((self._n_bytes,), np.dtype(np.uint8))
        begin = 0
        for at, n_bytes in self._places:
            # Of the last page, the rest is the block's own.
            n_shared = n_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if not self._share(block[at : at + n_shared], begin):
                n_shared = 0
            self._fill(block[at + n_shared : at + n_bytes], begin + n_shared)
            begin += whole_pages(n_bytes)
        return block

    def _share(self, part: Bytes, begin: int) -> bool:
        """Have pages come from the file until they are written; return whether that worked.

        Where it does not, as where the process has too many mappings, they stay as they were.
        """
        if self._file is None or not len(part):
            return False
        found = _c_mmap()(
            *(ctypes.c_void_p(part.ctypes.data), ctypes.c_size_t(len(part))),
            *(mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED),
            *(self._file, ctypes.c_long(begin)),
        )
        return found != _FAILED

    def _fill(self, part: Bytes, begin: int) -> None:
        if self._file is None:
            part[:] = self._copy[begin : begin + len(part)]
        elif len(part):
            os.preadv(self._file, [part.data], begin)


@cache
def _c_mmap() -> Callable[..., int | None]:
    function = ctypes.CDLL(None).mmap
    function.restype = ctypes.c_void_p
    return function


def _stored(content: Bytes) -> int | None:
    """Return a file without a name that holds the content, or None where there are none."""
    try:
        file = os.memfd_create("streamd")
    except (AttributeError, OSError):
        return None
    with os.fdopen(file, "wb", closefd=False) as writer:
        writer.write(content.data)
    return file
