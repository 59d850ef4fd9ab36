"""Reading small files of unknown origin."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

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
