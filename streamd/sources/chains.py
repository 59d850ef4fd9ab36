"""Where the streams of a chained file begin: several Ogg or FLAC files in one, end to end.

FFmpeg reads on behind the end of the first, but not if rate or channels differ.
"""

import os
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

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


def parts(path: str) -> list[tuple[int, int]]:
    """Return where each stream of a file begins and ends; one for all, if it is no chain.

    Raises `OSError`.
    """
    starts = [0]
    with open(path, "rb") as file:
        kind = file.read(4)
        if kind in (_OGG[:4], _FLAC[:4]):
            found = _chains(file) if kind == _OGG[:4] else _each(file, _FLAC)
            starts += [at for at in islice(found, _MOST) if at]
        end = file.seek(0, os.SEEK_END)
    return list(zip(starts, [*starts[1:], end], strict=True))


def lacks_end(path: str) -> bool:
    """Whether the last page of an Ogg file says that the stream goes on. Raises `OSError`."""
    with open(path, "rb") as file:
        if file.read(4) != _OGG[:4]:
            return False
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _LONGEST_PAGE))
        page = file.read()[-_LONGEST_PAGE:]
        at = page.rfind(_OGG)
        return at >= 0 and (len(page) < at + _PAGE_HEAD or not page[at + 5] & _ENDS)


def has(path: str, wanted: bytes, *, after: int) -> bool:
    """Whether a file has these bytes behind its first `after` ones. Raises `OSError`."""
    with open(path, "rb") as file:
        return next(_each(file, wanted, after), None) is not None


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
