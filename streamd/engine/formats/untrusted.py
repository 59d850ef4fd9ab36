"""Reads files of unknown origin: small ones, zip archives, and binary ones piece by piece.

Nothing in them is executed, and no size in them is believed before it was compared with the file's.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.engine.weights import shown
from streamd.errors import ModelError

MAX_BYTES = 16_000_000
"""Of any file but the weights; the largest, tokenizer.json, has 4 MB."""

T = TypeVar("T")


def existing(path: Path) -> Path:
    """`path`, if it is a file; else `ModelError`."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file; get the model's files again")
    return path


def present(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of these names that are there, in this order."""
    return [path for name in names if (path := folder / name).is_file()]


def read(path: Path) -> bytes:
    """The bytes of a small file. Raises `ModelError`: missing, unreadable or not small."""
    try:
        if existing(path).stat().st_size > MAX_BYTES:
            raise ModelError(f"{path}: larger than any model's; get the model's files again")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, kind: type[T]) -> T:
    """A small JSON file as `kind`. Raises `ModelError`: as `read`, or it is not of that kind."""
    try:
        return msgspec.json.decode(read(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: {error}; get the model's files again") from error


ZIP_MAGIC = b"PK\x03\x04"
_ZIP_FAILURES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
"""What `zipfile` raises on damaged and on encrypted files."""


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The file, open until the block is left.

    Raises `ModelError` if it is damaged; also where that shows only when it is read, in the block.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _ZIP_FAILURES as error:
        raise ModelError(f"{path}: damaged ({error}); get the model's file again") from error


def zip_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of an entry, which are as many as in the file, since nothing is compressed.

    Raises `BadZipFile` if the entry is missing, compressed or cut off.
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


MAX_TENSORS = 100_000
"""In one file; large-v3 has 1259."""
_MAX_TEXT = 1000
"""Bytes of a token or of a tensor's name."""


class BinaryFile:
    """A file that is mapped, not read, and the place that was reached in it: byte `at`.

    Raises `ModelError` if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        try:
            self.data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:  # ValueError: it is empty
            raise ModelError(f"{path}: cannot be read ({error})") from error

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        """The next bytes, still on disk. Raises `ModelError`: there are fewer."""
        if not 0 <= n_bytes <= len(self.data) - self.at:
            raise self.damaged("it ends early")
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def numbers(self, form: str) -> tuple[int, ...]:
        """The next integers, little-endian, of the types that `struct` calls `form`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")).tobytes())

    def text(self, n_bytes: int) -> bytes:
        """A token or a name. Raises `ModelError`: it is longer than any."""
        if n_bytes > _MAX_TEXT:
            raise self.damaged("no text where there should be one")
        return self.take(n_bytes).tobytes()

    def damaged(self, why: str) -> ModelError:
        """The error to raise."""
        return ModelError(f"{self.path}: damaged ({why}); get the model's file again")
