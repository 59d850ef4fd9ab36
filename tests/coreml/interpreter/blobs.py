"""The file of weights beside an ML program: blobs behind headers, found by their offset.

Knows nothing of what the numbers mean. Format: apple/coremltools ``mlmodel/src/MILBlob/Blob/
StorageFormat.hpp``.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError

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
        """The array whose header lies at `offset`.

        Raises
        ------
        ModelError
            There is none, or it has another type, or is not as large as its type says.
        """
        if offset not in self._known:
            self._known[offset] = self._read(offset, dtype, shape)
        return self._known[offset]

    def _read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        header = self._bytes[offset : offset + _HEADER.size].tobytes()
        n, data = int(np.prod(shape)), np.empty(0, np.uint8)
        if len(header) == _HEADER.size:
            sentinel, code, n_bytes, start = _HEADER.unpack(header)
            if (sentinel, code) == (_SENTINEL, _CODES.get(dtype)):
                data = self._bytes[start : start + n_bytes]
        if len(data) != n * np.dtype(dtype).itemsize:
            raise ModelError(f"{self._path} is damaged at byte {offset}; build the package again")
        return data.view(dtype).reshape(shape)
