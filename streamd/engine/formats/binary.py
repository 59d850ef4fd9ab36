"""Walks through a binary file of unknown origin: what would lead beyond its end is damage."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError

MAX_TENSORS = 100_000
"""In one file; large-v3 has 1259."""
_MAX_TEXT = 1000
"""Bytes of a token or of a tensor's name."""


class BinaryFile:
    """A file that is mapped, not read, and the place that was reached in it: byte `at`.

    Raises
    ------
    ModelError
        The file cannot be read.
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
