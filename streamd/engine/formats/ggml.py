"""Reads whisper.cpp's files: dimensions, vocabulary and parameters, which may be quantised.

Little-endian throughout: a magic number and eleven numbers of the model; the mel filterbank, which
streamd computes itself; the text tokens; then the tensors. A quantised block has 32 numbers: small
integers q and, as float16, their scale d and perhaps their offset m. The first 16 numbers are in
the low halves of the bytes, the others in the high halves; a fifth bit is in a word of 32 bits.
Sources: whisper.cpp ``convert-pt-to-ggml.py``, ``whisper_model_load`` in ``whisper.cpp``; ggml
``ggml-common.h``, ``ggml-quants.c`` (``dequantize_row_*``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions
from streamd.engine.catalog import usual_heads
from streamd.engine.formats.untrusted import MAX_TENSORS, BinaryFile
from streamd.engine.model import MIN_AUDIO_CTX, Model, Outline, is_whisper, only_language
from streamd.engine.vocabulary import check_size, numbered
from streamd.engine.weights import Stored, gather, shown
from streamd.errors import ModelError

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


MAGIC = b"lmgg"
_QUANTISATION_VERSION = 2
"""Since May 2023; older quantised files have other blocks."""
_MAX_AXES = 4


def load(path: Path, name: str) -> Model:
    """Load the file. Raises `ModelError` if it is damaged, or of another architecture."""
    reader = BinaryFile(path)
    dims = _dims(reader)
    reader.take(4 * math.prod(reader.numbers("2i")))
    (n_tokens,) = reader.numbers("i")
    if not 0 <= n_tokens <= dims.n_vocab:
        raise reader.damaged(f"{n_tokens} tokens of {dims.n_vocab}")
    tokens = [reader.text(*reader.numbers("i")) for _ in range(n_tokens)]
    vocabulary = check_size(path, numbered(path, tokens), dims.n_vocab)
    stored: dict[str, Stored] = {}
    while reader.at < len(reader.data):
        parameter, tensor = _tensor(reader)
        if parameter in stored or len(stored) >= MAX_TENSORS:
            raise reader.damaged(f"{shown(parameter)} is too much")
        stored[parameter] = tensor
    return Model(
        name=name,
        dims=dims,
        weights=gather(path, dims, stored),
        vocabulary=vocabulary,
        alignment_heads=usual_heads(path, dims),
        language=only_language(dims),
        min_audio_ctx=min(MIN_AUDIO_CTX, dims.n_audio_ctx),
    )


def outline(path: Path) -> Outline:
    """Describe the file's model. Raises `ModelError`, as `load` does."""
    dims = _dims(BinaryFile(path))
    return Outline(dims, only_language(dims))


def files(path: Path) -> list[Path]:
    """The files that `load` reads."""
    return [path]


def _dims(reader: BinaryFile) -> ModelDimensions:
    reader.take(len(MAGIC))
    n_vocab, *audio, n_text_ctx, n_state, n_head, n_layer, n_mels, kind = reader.numbers("11i")
    n_audio_ctx, n_audio_state, n_audio_head, n_audio_layer = audio
    dims = ModelDimensions(
        n_mels=n_mels,
        n_audio_ctx=n_audio_ctx,
        n_audio_state=n_audio_state,
        n_audio_head=n_audio_head,
        n_audio_layer=n_audio_layer,
        n_vocab=n_vocab,
        n_text_ctx=n_text_ctx,
        n_text_state=n_state,
        n_text_head=n_head,
        n_text_layer=n_layer,
    )
    if not is_whisper(dims):
        raise ModelError(f"{reader.path}: describes no Whisper model; get the model's file again")
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
            f"{reader.path}: {shown(name)} is of ggml's type {unread(number)}; "
            f"quantise the model to {', '.join(kind.name for kind in GGML_TYPES.values())}"
        )
    kind = GGML_TYPES[number]
    if min(sizes) <= 0 or sizes[-1] % kind.n_items:
        raise reader.damaged(f"{shown(name)} has shape {list(sizes)}")
    data = reader.take(math.prod(sizes) // kind.n_items * kind.n_bytes)
    shape = _openai_shape(name, sizes)
    read = partial(_values, data, kind.name, shape)
    return name, Stored(path=reader.path, shape=shape, dtype=kind.name, read=read)


def _openai_shape(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """The convolutions' biases are columns there, to be added to (channels, time)."""
    column = name.startswith("encoder.conv") and name.endswith(".bias") and sizes[-1] == 1
    return tuple(sizes[:-1] if column else sizes)


def _values(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return dequantise(data, kind).reshape(shape)
