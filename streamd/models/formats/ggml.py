"""whisper.cpp's files: dimensions, vocabulary and parameters, which may be quantised.

All numbers are little-endian: a magic number and eleven numbers about the model; the mel
filterbank, which streamd computes itself; the text tokens; the tensors. A quantised block has 32
numbers: small integers q and, as float16, their scale d and perhaps their offset m. The first 16
numbers are in the low halves of the bytes, the others in the high halves; a fifth bit is in a word
of 32 bits. Sources: whisper.cpp ``convert-pt-to-ggml.py``, ``whisper_model_load`` in
``whisper.cpp``; ggml ``ggml-common.h``, ``ggml-quants.c`` (``dequantize_row_*``).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats import MAX_TENSORS, BinaryFile, shown
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
_N_BLOCKS = 1 << 15
"""Blocks that are computed at once, on the way in arrays several times as large as the result."""
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
"""ggml's number -> type."""
_K_QUANTS = {10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"}


def dequantise(data: _Bytes, kind: str) -> NDArray[Any]:
    """Return the numbers in (n_bytes,) of the type of that name, (n,), in float32 if quantised."""
    if kind in ("F32", "F16"):
        return data.view("<f4" if kind == "F32" else "<f2")
    n_bytes = next(each.n_bytes for each in GGML_TYPES.values() if each.name == kind)
    blocks = data.reshape(-1, n_bytes)
    numbers = np.empty((len(blocks), _BLOCK), np.float32)
    for begin in range(0, len(blocks), _N_BLOCKS):
        here = slice(begin, begin + _N_BLOCKS)
        numbers[here] = _numbers(blocks[here], kind)
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
        kind = f"{_K_QUANTS[number]}, one of the k-quants" if number in _K_QUANTS else str(number)
        raise ModelError(
            f"{reader.path}: {shown(name)} is of ggml's type {kind}; "
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
