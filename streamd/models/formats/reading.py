"""Files of models, read without trust: a `ModelError` names the one that is damaged."""

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError

MAX_BYTES = 16_000_000
"""Limit for all files but the weights; the largest, tokenizer.json, has 4 MB."""
MAX_TENSORS = 100_000
"""Limit for one file; large-v3 has 1259."""
_MAX_TEXT = 1000
"""Limit for the bytes of a token or of a tensor's name."""
_MAX_SHOWN = 100
ZIP_MAGIC = b"PK\x03\x04"
_ZIP_FAILURES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
"""What `zipfile` raises on damaged and on encrypted files."""

T = TypeVar("T")


_ITEMS = {"F16": "<f2", "F32": "<f4", "I8": "i1", "I16": "<i2", "I32": "<i4"}


def item_type(name: str) -> np.dtype[Any]:
    """Return numpy's type of the values that safetensors calls `name`."""
    if name == "BF16":
        import ml_dtypes  # here because a prepared model does not need it

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_ITEMS[name])


def shown(name: str) -> str:
    """Return a name from a file as it may stand in a message: one line of limited length."""
    plain = ascii(name)[1:-1]
    return plain if len(plain) <= _MAX_SHOWN else plain[:_MAX_SHOWN] + "..."


def bad_file(path: Path, why: object) -> ModelError:
    """Return the error for a file that is not as its format demands."""
    return ModelError(f"{path}: {why}; get the model's files again")


def existing(path: Path) -> Path:
    """Return `path`. Raises `ModelError` if it is not a file."""
    if not path.is_file():
        raise bad_file(path, "no such file")
    return path


def present(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return which of these files the folder has, in this order."""
    return [path for name in names if (path := folder / name).is_file()]


def read(path: Path) -> bytes:
    """Read a small file. Raises `ModelError` if it is missing, unreadable or not small."""
    try:
        if existing(path).stat().st_size > MAX_BYTES:
            raise bad_file(path, "larger than any model's")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def read_start(path: Path, n_bytes: int) -> bytes:
    """Read the first bytes of a file. Raises `ModelError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, kind: type[T]) -> T:
    """Read a small JSON file. Raises `ModelError` as `read` does, or if it is not a `kind`."""
    try:
        return msgspec.json.decode(read(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_file(path, error) from error


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file until the block is left.

    Raises `ModelError` if it is damaged, also where only reading an entry in the block shows that.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _ZIP_FAILURES as error:
        raise bad_file(path, f"damaged ({error})") from error


def zip_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read an entry. Raises `BadZipFile` if it is missing, compressed or cut off.

    Models' entries are not compressed; a compressed one could be far larger than the file.
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


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, on disk until they are read."""

    path: Path
    at: int
    n_bytes: int

    def read(self) -> NDArray[np.uint8]:
        """Map these bytes, for as long as the array is there. Raises `ModelError` on failure.

        If the whole file was mapped, all that was read of it would stay resident.
        """
        return _mapped(self.path, self.at, self.n_bytes)


def _mapped(path: Path, at: int = 0, n_bytes: int | None = None) -> NDArray[np.uint8]:
    try:
        return np.memmap(path, np.uint8, "r", at, None if n_bytes is None else (n_bytes,))
    except (OSError, ValueError) as error:  # ValueError: it is empty, or shorter than it was
        raise ModelError(f"{path}: cannot be read ({error})") from error


class BinaryFile:
    """A file that is mapped, not read; `at` is the next byte.

    All methods raise `ModelError`, as does the constructor if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self._data = _mapped(path)

    @property
    def n_left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self.at

    def skip(self, n_bytes: int) -> Part:
        """Return where the next bytes are."""
        if not 0 <= n_bytes <= self.n_left:
            raise self.damaged("it ends early")
        self.at += n_bytes
        return Part(self.path, self.at - n_bytes, n_bytes)

    def numbers(self, form: str) -> tuple[int, ...]:
        """Return the next little-endian integers; `form` gives their types as `struct` does."""
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))

    def text(self, n_bytes: int) -> bytes:
        """Return a token or a name."""
        if n_bytes > _MAX_TEXT:
            raise self.damaged("no text where there should be one")
        return self._take(n_bytes)

    def _take(self, n_bytes: int) -> bytes:
        self.skip(n_bytes)
        return self._data[self.at - n_bytes : self.at].tobytes()

    def damaged(self, why: str) -> ModelError:
        """Return the error to raise."""
        return bad_file(self.path, f"damaged ({why})")
