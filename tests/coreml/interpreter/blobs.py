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
    "bfloat16": 5,
    "int16": 6,
    "uint16": 7,
    "int4": 8,
    "uint1": 9,
    "uint2": 10,
    "uint4": 11,
    "uint3": 12,
    "uint6": 13,
    "int32": 14,
    "uint32": 15,
}
"""How a header writes the type: ``BlobDataType.hpp``."""
_SUB_BYTE = {
    "int4": (4, True),
    "uint1": (1, False),
    "uint2": (2, False),
    "uint3": (3, False),
    "uint4": (4, False),
    "uint6": (6, False),
}
"""Bits, and whether the highest one is the sign."""


class Blobs:
    """A mapped file of weights; each blob is decoded once."""

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
        bits, _ = _SUB_BYTE.get(dtype, (8 * stored_dtype(dtype).itemsize, False))
        if 8 * len(data) // bits < n or len(data) > -(-n * bits // 8):
            raise ModelError(f"{self._path} is damaged at byte {offset}; build the package again")
        return decoded(data, dtype, n).reshape(shape)


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds MIL's `dtype`."""
    if dtype in _SUB_BYTE:
        return np.dtype(np.int8 if _SUB_BYTE[dtype][1] else np.uint8)
    return np.dtype(dtype)


def decoded(data: NDArray[np.uint8], dtype: str, n: int) -> NDArray[Any]:
    """`n` numbers of type `dtype`: packed without gaps, the lowest bits first."""
    if dtype not in _SUB_BYTE:
        return data.view(stored_dtype(dtype))
    bits, signed = _SUB_BYTE[dtype]
    table = np.unpackbits(data, count=n * bits, bitorder="little").reshape(n, bits)
    values = table @ (1 << np.arange(bits, dtype=np.int16))
    if signed:
        values = np.where(values >= 1 << (bits - 1), values - (1 << bits), values)
    return values.astype(stored_dtype(dtype))
