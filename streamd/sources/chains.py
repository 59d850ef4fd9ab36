"""Where the streams of a chained file begin: several Ogg or FLAC files in one, end to end.

FFmpeg reads on behind the end of the first, but not if rate or channels differ.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import BufferedReader, RawIOBase
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Self

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_OGG = b"OggS\0"
_BEGINS, _ENDS = 2, 4
"""Flags of a page: it is the first of its logical stream, or the last. Source: RFC 3533, 6."""
_PAGE_HEAD = 27
_FLAC = b"fLaC\0\0\0\x22"
"""A stream that begins with its STREAMINFO, of 34 bytes. Source: RFC 9639, 8."""
_LONGEST_PAGE = _PAGE_HEAD + 255 * 256
_READ_BYTES = 1 << 20
_MOST = 1_000
"""Parts of one file; what follows belongs to the last."""


class FilePart(RawIOBase):
    """Bytes `begin` to `end` of an open file, which stays open; 0: to its end.

    Each has a place of its own, so several may read one file at once.
    """

    def __init__(self, file: int, begin: int = 0, end: int = 0) -> None:
        self._file, self._begin, self._at = file, begin, 0
        self._n_bytes = (end or os.fstat(file).st_size) - begin

    def again(self) -> Self:
        """Return the same part, to be read from its beginning."""
        return type(self)(self._file, self._begin, self._begin + self._n_bytes)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        n = max(0, min(len(view), self._n_bytes - self._at))
        data = os.pread(self._file, n, self._begin + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._n_bytes}[whence]
        self._at = max(0, origin + offset)
        return self._at


def _opened(file: str | int) -> AbstractContextManager[BinaryIO]:
    return open(file, "rb") if isinstance(file, str) else BufferedReader(FilePart(file))


def parts(file: str | int) -> list[tuple[int, int]]:
    """Return where each stream of a file begins and ends; one for all, if it is no chain.

    `file` is its path, or its descriptor. Raises `OSError`.
    """
    starts = [0]
    with _opened(file) as opened:
        kind = opened.read(4)
        if kind in (_OGG[:4], _FLAC[:4]):
            found = _chains(opened) if kind == _OGG[:4] else _each(opened, _FLAC)
            starts += [at for at in islice(found, _MOST) if at]
        end = opened.seek(0, os.SEEK_END)
    return list(zip(starts, [*starts[1:], end], strict=True))


def lacks_end(file: str | int) -> bool:
    """Whether the last page of an Ogg file says that the stream goes on. Raises `OSError`."""
    with _opened(file) as opened:
        if opened.read(4) != _OGG[:4]:
            return False
        end = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, end - _LONGEST_PAGE))
        page = opened.read()[-_LONGEST_PAGE:]
        at = page.rfind(_OGG)
        return at >= 0 and (len(page) < at + _PAGE_HEAD or not page[at + 5] & _ENDS)


def has(file: str | int, wanted: bytes, *, after: int) -> bool:
    """Whether a file has these bytes behind its first `after` ones. Raises `OSError`."""
    with _opened(file) as opened:
        return next(_each(opened, wanted, after), None) is not None


def _chains(file: BinaryIO) -> Iterator[int]:
    """Yield where first pages follow other pages: several streams at once begin together."""
    after_first = 0
    for at in _each(file, _OGG + bytes([_BEGINS])):
        if at != after_first:
            yield at
        file.seek(at)
        page = file.read(_PAGE_HEAD + 255)
        n_segments = page[_PAGE_HEAD - 1] if len(page) >= _PAGE_HEAD else 0
        table = page[_PAGE_HEAD : _PAGE_HEAD + n_segments]
        after_first = at + _PAGE_HEAD + n_segments + sum(table)


def _each(file: BinaryIO, wanted: bytes, at: int = 0) -> Iterator[int]:
    # Not mapped into memory: a read that fails there would end the process.
    before = b""
    while True:
        file.seek(at)
        data = file.read(_READ_BYTES)
        if not data:
            return
        block, begin = before + data, at - len(before)
        place = block.find(wanted)
        while place >= 0:
            yield begin + place
            place = block.find(wanted, place + 1)
        at += len(data)
        before = block[-len(wanted) + 1 :]
