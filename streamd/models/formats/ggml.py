"""whisper.cpp's files: dimensions, vocabulary and parameters, which may be quantised.

All numbers are little-endian: a magic number and eleven numbers about the model; the mel
filterbank, which streamd computes itself; the text tokens; the tensors. A quantised block has 32
numbers: small integers q and, as float16, their scale d and perhaps their offset m. The first 16
numbers are in the low halves of the bytes, the others in the high halves; a fifth bit is in a word
of 32 bits. A block of a k-quant has 256 numbers in parts of 16 or 32, each with a small scale, and
perhaps an offset, in units of the block's. Sources: whisper.cpp ``convert-pt-to-ggml.py``,
``whisper_model_load`` in ``whisper.cpp``; ggml ``ggml-common.h``, ``ggml-quants.c``
(``dequantize_row_*``).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats.reading import MAX_TENSORS, BinaryFile, shown
from streamd.models.model import (
    Contents,
    Outline,
    Stored,
    check_dimensions,
    numbered,
    only_language,
)

MAGIC = b"lmgg"
_QUANTISATION_VERSION = 2
"""That of May 2023; older quantised files have other blocks."""
_MAX_AXES = 4
_BLOCK = 32
_K_BLOCK = 256
_N_AT_ONCE = 1 << 20
"""Numbers that are computed at once, on the way in arrays several times as large as the result."""
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
    10: GgmlType("Q2_K", _K_BLOCK, 16 + 64 + 2 + 2),
    11: GgmlType("Q3_K", _K_BLOCK, 32 + 64 + 12 + 2),
    12: GgmlType("Q4_K", _K_BLOCK, 2 + 2 + 12 + 128),
    13: GgmlType("Q5_K", _K_BLOCK, 2 + 2 + 12 + 32 + 128),
    14: GgmlType("Q6_K", _K_BLOCK, 128 + 64 + 16 + 2),
}
"""ggml's number -> type."""


def dequantise(data: _Bytes, kind: str) -> NDArray[Any]:
    """Return the numbers in (n_bytes,) of the type of that name, (n,), in float32 if quantised."""
    if kind in ("F32", "F16"):
        return data.view("<f4" if kind == "F32" else "<f2")
    known = next(each for each in GGML_TYPES.values() if each.name == kind)
    blocks, n_blocks = data.reshape(-1, known.n_bytes), _N_AT_ONCE // known.n_items
    numbers, of_block = np.empty((len(blocks), known.n_items), np.float32), _OF_K.get(kind)
    for begin in range(0, len(blocks), n_blocks):
        here = slice(begin, begin + n_blocks)
        numbers[here] = of_block(blocks[here]) if of_block else _numbers(blocks[here], kind)
    return numbers.reshape(-1)


def _numbers(blocks: _Bytes, kind: str) -> _Floats:
    d = _float(blocks, 0)
    if kind == "Q4_0":
        return d * (_halves(blocks[:, 2:]) - np.float32(8))
    if kind == "Q4_1":
        return d * _halves(blocks[:, 4:]) + _float(blocks, 2)
    if kind == "Q5_0":
        q = _halves(blocks[:, 6:]) + _fifth_bits(blocks[:, 2:6])
        return d * (q - np.float32(16))
    if kind == "Q5_1":
        q = _halves(blocks[:, 8:]) + _fifth_bits(blocks[:, 4:8])
        return d * q + _float(blocks, 2)
    return d * blocks[:, 2:].view(np.int8).astype(np.float32)  # Q8_0


def _float(blocks: _Bytes, at: int) -> _Floats:
    """Return the float16 at byte `at` of each block, (n, 1)."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _halves(packed: _Bytes) -> _Floats:
    """Unpack (n, 16) bytes into (n, 32) numbers from 0 to 15."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1).astype(np.float32)


def _fifth_bits(packed: _Bytes) -> _Floats:
    """Unpack (n, 4) bytes into (n, 32) numbers, each 0 or 16; number i has bit i."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32) * np.float32(16)


def _parts(packed: _Bytes, n_bits: int, n_bytes: int) -> _Bytes:
    """Unpack (n, bytes) into (n, numbers), for one group of `n_bytes` after the other.

    Their lowest bits are the first numbers, the next bits those that follow.
    """
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    groups = packed.reshape(len(packed), -1, 1, n_bytes) >> shifts
    return (groups & np.uint8((1 << n_bits) - 1)).reshape(len(packed), -1)


def _scaled(q: NDArray[Any], scales: _Floats) -> _Floats:
    """Multiply the numbers (n, 256) of each of a block's equal parts by its scale (n, n_parts)."""
    parts = q.reshape(*scales.shape, -1).astype(np.float32) * scales[..., None]
    return parts.reshape(len(q), -1)


def _q2_k(blocks: _Bytes) -> _Floats:
    scales, q = blocks[:, :16], _parts(blocks[:, 16:80], 2, 32)
    offsets = _float(blocks, 82) * (scales >> 4).astype(np.float32)
    found = _scaled(q, _float(blocks, 80) * (scales & 15).astype(np.float32))
    return found - _scaled(np.ones_like(q), offsets)


def _q3_k(blocks: _Bytes) -> _Floats:
    third, q = _parts(blocks[:, :32], 1, 32), _parts(blocks[:, 32:96], 2, 32)
    low, high = _parts(blocks[:, 96:104], 4, 8), _parts(blocks[:, 104:108], 2, 4)
    scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    signed = q.astype(np.int8) - np.where(third, 0, 4).astype(np.int8)
    return _scaled(signed, _float(blocks, 108) * scales)


def _q4_k(blocks: _Bytes) -> _Floats:
    return _with_offsets(blocks, _parts(blocks[:, 16:144], 4, 32))


def _q5_k(blocks: _Bytes) -> _Floats:
    fifth = _parts(blocks[:, 16:48], 1, 32)
    return _with_offsets(blocks, _parts(blocks[:, 48:176], 4, 32) + fifth * np.uint8(16))


def _with_offsets(blocks: _Bytes, q: _Bytes) -> _Floats:
    """Scale the numbers of a block with eight scales and offsets of 6 bits, from byte 4 on.

    The first four of each have a byte of their own, whose upper bits are those of the others.
    """
    first, second, rest = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    offsets = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    found = _scaled(q, _float(blocks, 0) * scales.astype(np.float32))
    return found - _scaled(np.ones_like(q), _float(blocks, 2) * offsets.astype(np.float32))


def _q6_k(blocks: _Bytes) -> _Floats:
    q = _parts(blocks[:, :128], 4, 64) | (_parts(blocks[:, 128:192], 2, 32) << 4)
    scales = blocks[:, 192:208].copy().view(np.int8).astype(np.float32)
    return _scaled(q.astype(np.int8) - np.int8(32), _float(blocks, 208) * scales)


_OF_K: Mapping[str, Callable[[_Bytes], _Floats]] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def outline(path: Path) -> Outline:
    """Read the numbers at the beginning."""
    dims = _dims(BinaryFile(path))
    return Outline(dims, only_language(dims))


@contextmanager
def contents(path: Path) -> Iterator[Contents]:
    """Read the text tokens, and where the tensors are."""
    yield _contents(BinaryFile(path))


def _contents(reader: BinaryFile) -> Contents:
    dims = _dims(reader)
    reader.skip(4 * math.prod(reader.numbers("2i")))
    (n_tokens,) = reader.numbers("i")
    if not 0 <= n_tokens <= dims.n_vocab:
        raise reader.damaged(f"{n_tokens} tokens of {dims.n_vocab}")
    tokens = [reader.text(*reader.numbers("i")) for _ in range(n_tokens)]
    stored: dict[str, Stored] = {}
    while reader.n_left:
        parameter, tensor = _tensor(reader)
        if parameter in stored or len(stored) >= MAX_TENSORS:
            raise reader.damaged(f"{shown(parameter)} is too much")
        stored[parameter] = tensor
    return Contents(stored, numbered(reader.path, tokens))


def files(path: Path) -> list[Path]:
    """Return the only file."""
    return [path]


def _dims(reader: BinaryFile) -> ModelDimensions:
    reader.skip(len(MAGIC))
    n_vocab, *rest, n_mels, kind = reader.numbers("11i")
    audio, text = rest[:4], rest[4:]  # context, state, heads and layers of both, as in `dims`
    dims = ModelDimensions(*[n_mels, *audio, n_vocab, *text])
    check_dimensions(reader.path, dims)
    version, whole = divmod(kind, 1000)
    if whole > 1 and version != _QUANTISATION_VERSION:
        raise ModelError(
            f"{reader.path}: quantised by an old whisper.cpp (version {version}); "
            "quantise the model again"
        )
    return dims


def _tensor(reader: BinaryFile) -> tuple[str, Stored]:
    n_axes, n_name, number = reader.numbers("3i")
    if not 0 < n_axes <= _MAX_AXES:
        raise reader.damaged("no tensor where there should be one")
    sizes = reader.numbers(f"{n_axes}i")[::-1]
    name = reader.text(n_name).decode("ascii", "backslashreplace")
    if number not in GGML_TYPES:
        raise ModelError(
            f"{reader.path}: {shown(name)} is of ggml's type {number}; "
            f"quantise the model to {', '.join(each.name for each in GGML_TYPES.values())}"
        )
    found = GGML_TYPES[number]
    if min(sizes) <= 0 or sizes[-1] % found.n_items:
        raise reader.damaged(f"{shown(name)} has shape {list(sizes)}")
    data = reader.skip(math.prod(sizes) // found.n_items * found.n_bytes)
    # the convolutions' biases are columns here, to be added to (channels, time)
    column = name.startswith("encoder.conv") and name.endswith(".bias") and sizes[-1] == 1
    shape = sizes[:-1] if column else sizes
    return name, Stored(
        reader.path, shape, found.name, lambda: dequantise(data.read(), found.name).reshape(shape)
    )
