"""Zip files of unknown origin, as torch and numpy write them: without compression."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamd.engine.weights import shown
from streamd.errors import ModelError

MAGIC = b"PK\x03\x04"
_FAILURES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
"""What `zipfile` raises on damaged and on encrypted files."""


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The file, open until the block is left.

    Raises
    ------
    ModelError
        It is damaged; also where that shows only when it is read, in the block.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _FAILURES as error:
        raise ModelError(f"{path}: damaged ({error}); get the model's file again") from error


def entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of an entry, which are as many as in the file, since nothing is compressed.

    Raises
    ------
    BadZipFile
        The entry is missing, compressed or cut off.
    """
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise zipfile.BadZipFile(f"{shown(name)} is missing") from error
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise zipfile.BadZipFile(f"{shown(name)} is compressed")
    with archive.open(info) as file:
        data = file.read()
    if len(data) != info.file_size:
        raise zipfile.BadZipFile(f"{shown(name)} is cut off")
    return data
