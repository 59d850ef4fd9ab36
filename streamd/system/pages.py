"""Memory in pages of the system, of which several blocks can have some in common."""

import errno
import mmap
import os
import weakref
from collections.abc import Mapping
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


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
    """What blocks of memory hold at first. They share its pages until they write there."""

    def __init__(self, n_bytes: int, content: Mapping[int, Bytes]) -> None:
        """`content` are the bytes at some places of a block; all others of `n_bytes` are zeros."""
        self._n_bytes = n_bytes
        # A file without a name, in memory where there are such.
        make = getattr(os, "memfd_create", None)
        file = os.fdopen(make("streamd"), "w+b") if make else TemporaryFile()  # noqa: SIM115 - as below
        weakref.finalize(self, file.close)
        file.truncate(n_bytes)
        for at, part in content.items():
            file.seek(at)
            file.write(part.data)
        file.flush()
        self._file = file.fileno()

    def new_block(self) -> Bytes:
        """Return a new block, (n_bytes,); where no file descriptor is free, it shares nothing."""
        if not self._n_bytes:
            return np.zeros(0, np.uint8)
        try:
            pages = mmap.mmap(self._file, self._n_bytes, mmap.MAP_PRIVATE)
        except OSError as error:  # it duplicates the descriptor
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            block = zeros((self._n_bytes,), np.dtype(np.uint8))
            os.preadv(self._file, [block.data], 0)
            return block
        return np.frombuffer(pages, np.uint8)
