"""The file of weights beside an ML program: blobs behind headers, found by their offset.

Knows nothing of what the numbers mean. Format: apple/coremltools ``mlmodel/src/MILBlob/Blob/
StorageFormat.hpp``.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SENTINEL = 0xDEADBEEF
_HEADER = struct.Struct("<IIQQ")
"""Sentinel, type, bytes of data, offset of data in the file; what follows is reserved."""
_CODES = {
    "float16": 1,
    "float32": 2,
    "uint8": 3,
    "int8": 4,
    "int16": 6,
    "uint16": 7,
    "int32": 14,
}
"""How a header writes the type: ``BlobDataType.hpp``."""


class Blobs:
    """A mapped file of weights; each blob is one array."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises `OSError`."""
        self._path = path
        self._bytes = np.memmap(path, np.uint8, mode="r")
        self._known: dict[int, NDArray[Any]] = {}

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The array whose header lies at `offset`."""
        if offset not in self._known:
            header = self._bytes[offset : offset + _HEADER.size].tobytes()
            sentinel, code, n_bytes, start = _HEADER.unpack(header)
            assert (sentinel, code) == (_SENTINEL, _CODES[dtype])
            found = self._bytes[start : start + n_bytes].view(dtype)
            self._known[offset] = found.reshape(shape)
        return self._known[offset]
