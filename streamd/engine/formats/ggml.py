"""whisper.cpp's files: one file with dimensions, vocabulary and parameters, perhaps quantised.

Little-endian throughout: a magic number and eleven of the model's; the mel filterbank, which we
compute ourselves; the text tokens; then one tensor behind the other. Sources: whisper.cpp
``convert-pt-to-ggml.py``, ``whisper_model_load`` in ``whisper.cpp``.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions
from streamd.engine.formats.binary import MAX_TENSORS, BinaryFile
from streamd.engine.formats.ggml_types import GGML_TYPES, dequantise, unread
from streamd.engine.model import (
    MIN_AUDIO_CTX,
    Model,
    Outline,
    is_whisper,
    only_language,
    usual_heads,
)
from streamd.engine.vocabulary import check_size, numbered
from streamd.engine.weights import Stored, gather, shown
from streamd.errors import ModelError

MAGIC = b"lmgg"
_QUANTISATION_VERSION = 2
"""Since May 2023; older quantised files have other blocks."""
_MAX_AXES = 4


def load(path: Path, name: str) -> Model:
    """Load the file.

    Raises
    ------
    ModelError
        It is damaged, or of another architecture.
    """
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
