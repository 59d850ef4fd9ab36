"""Where the streams of a chained file begin: several Ogg or FLAC files in one, end to end.

FFmpeg reads on behind the end of the first, but not if rate or channels differ.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

_OGG = b"OggS\0"
_BEGINS, _ENDS = 2, 4
"""Flags of a page: it is the first of its logical stream, or the last. Source: RFC 3533, 6."""
_PAGE_HEAD = 27
_FLAC = b"fLaC\0\0\0\x22"
"""A stream that begins with its STREAMINFO, of 34 bytes. Source: RFC 9639, 8."""
_MOST = 1_000
"""Parts of one file; what follows belongs to the last."""


def parts(path: str) -> list[tuple[int, int]]:
    """Return where each stream of a file begins and ends; one for all, if it is no chain."""
    starts, end = [0], 0
    with _mapped(path) as data:
        if data is not None and data[:4] in (_OGG[:4], _FLAC[:4]):
            found = _chains(data) if data[:4] == _OGG[:4] else _each(data, _FLAC)
            starts += [at for at in islice(found, _MOST) if at]
            end = len(data)
    return list(zip(starts, [*starts[1:], end], strict=True))


def lacks_end(path: str) -> bool:
    """Whether the last page of an Ogg file says that the stream goes on."""
    with _mapped(path) as data:
        if data is None or data[:4] != _OGG[:4]:
            return False
        at = data.rfind(_OGG)
        return len(data) < at + _PAGE_HEAD or not data[at + 5] & _ENDS


@contextmanager
def _mapped(path: str) -> Iterator[mmap.mmap | None]:
    """Give a file's bytes, or None if it is none that has any."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield None
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _chains(data: mmap.mmap) -> Iterator[int]:
    """Yield where first pages follow other pages: several streams at once begin together."""
    after_first = 0
    for at in _each(data, _OGG + bytes([_BEGINS])):
        if at != after_first:
            yield at
        n_segments = data[at + _PAGE_HEAD - 1] if at + _PAGE_HEAD <= len(data) else 0
        table = data[at + _PAGE_HEAD : at + _PAGE_HEAD + n_segments]
        after_first = at + _PAGE_HEAD + n_segments + sum(table)


def _each(data: mmap.mmap, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)
