"""ggml's types of numbers: what a block of them looks like, and what it stands for.

A quantised block has 32 numbers: small integers q and, as float16, their scale d and perhaps their
offset m. The first 16 numbers are in the low halves of the bytes, the others in the high halves; a
fifth bit is in a word of 32 bits. Source: ggml ``ggml-common.h``, ``ggml-quants.c``
(``dequantize_row_*``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK = 32
_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GgmlType:
    """`n_items` numbers take `n_bytes`."""

    name: str
    n_items: int
    n_bytes: int


GGML_TYPES: Mapping[int, GgmlType] = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", _BLOCK, 2 + 16),
    3: GgmlType("Q4_1", _BLOCK, 2 + 2 + 16),
    6: GgmlType("Q5_0", _BLOCK, 2 + 4 + 16),
    7: GgmlType("Q5_1", _BLOCK, 2 + 2 + 4 + 16),
    8: GgmlType("Q8_0", _BLOCK, 2 + 32),
}
"""By ggml's number for it."""


_K_QUANTS = {10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"}


def unread(number: int) -> str:
    """Return the name of a type that is not among `GGML_TYPES`."""
    return f"{_K_QUANTS[number]}, one of the k-quants" if number in _K_QUANTS else str(number)


def dequantise(data: _Bytes, kind: str) -> _Floats:
    """The numbers in (n_bytes,) of the type of that name, as float32 (n,)."""
    if kind in _WHOLE:
        return data.view(_WHOLE[kind]).astype(np.float32)
    n_bytes = next(each.n_bytes for each in GGML_TYPES.values() if each.name == kind)
    return _DEQUANTISED[kind](data.reshape(-1, n_bytes)).reshape(-1)


def _q4_0(blocks: _Bytes) -> _Floats:
    return _float(blocks, 0) * (_halves(blocks[:, 2:]) - np.float32(8))


def _q4_1(blocks: _Bytes) -> _Floats:
    return _float(blocks, 0) * _halves(blocks[:, 4:]) + _float(blocks, 2)


def _q5_0(blocks: _Bytes) -> _Floats:
    q = _halves(blocks[:, 6:]) + _fifth_bits(blocks[:, 2:6])
    return _float(blocks, 0) * (q - np.float32(16))


def _q5_1(blocks: _Bytes) -> _Floats:
    q = _halves(blocks[:, 8:]) + _fifth_bits(blocks[:, 4:8])
    return _float(blocks, 0) * q + _float(blocks, 2)


def _q8_0(blocks: _Bytes) -> _Floats:
    return _float(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _float(blocks: _Bytes, at: int) -> _Floats:
    """(n, 1): the float16 at that byte of each block."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _halves(packed: _Bytes) -> _Floats:
    """(n, 16) bytes to (n, 32) numbers from 0 to 15."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1).astype(np.float32)


def _fifth_bits(packed: _Bytes) -> _Floats:
    """(n, 4) bytes to (n, 32) times 0 or 16; number i has bit i."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32) * np.float32(16)


_WHOLE = {"F32": "<f4", "F16": "<f2"}
_DEQUANTISED: Mapping[str, Callable[[_Bytes], _Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
}
