"""Writes a model in the one form that streamd keeps and reads: a folder that `huggingface` reads.

``model.safetensors`` has OpenAI's names. Parameters in float32, float16 and bfloat16 and int8 rows
stay as they are; those in blocks of fewer bits become float16, whose rounding is far smaller than
theirs.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.models import ModelDimensions
from streamd.models.formats import huggingface, safetensors
from streamd.models.formats.reading import item_type
from streamd.models.model import INT8_ROWS, OUTPUT, Model, StoredWeights, letters_of

_LARGEST = 127
"""Of the integers of a row."""
_KEPT = ("F32", "F16", "BF16")


class _WrittenArray(NamedTuple):
    """An array of the file; `convert` makes its values from those of the parameter `source`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str
    convert: Callable[[NDArray[np.float32]], NDArray[Any]]


def write(folder: Path, model: Model, weights: StoredWeights) -> None:
    """Write all files of the model, whose parameters are `weights`, into an empty folder.

    One parameter is in memory at a time. Raises `ModelError` if one is damaged, `OSError`.
    """
    generation = {
        "is_multilingual": model.language is None,
        "alignment_heads": model.alignment_heads,
        "suppress_tokens": model.suppress_tokens,
        "begin_suppress_tokens": model.begin_suppress_tokens,
    }
    known = {name: value for name, value in generation.items() if value is not None}
    ids = {letters_of(token): i for i, token in enumerate(model.vocabulary)}
    for name, content in (
        (huggingface.CONFIG, _config(model.dims, tied=OUTPUT not in weights)),
        (huggingface.GENERATION, known),
        (huggingface.VOCABULARIES[-1], ids),
    ):
        (folder / name).write_bytes(msgspec.json.encode(content))
    _write_weights(folder / safetensors.SINGLE, weights)


def _config(dims: ModelDimensions, *, tied: bool) -> dict[str, object]:
    return {
        "model_type": "whisper",
        "vocab_size": dims.n_vocab,
        "num_mel_bins": dims.n_mels,
        "d_model": dims.n_text_state,
        "encoder_layers": dims.n_audio_layer,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "decoder_layers": dims.n_text_layer,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "max_source_positions": dims.n_audio_ctx,
        "max_target_positions": dims.n_text_ctx,
        "tie_word_embeddings": tied,
    }


def _write_weights(path: Path, weights: StoredWeights) -> None:
    """Write the parameters one after the other, which the library cannot.

    Source: https://github.com/huggingface/safetensors#format
    """
    parts = [part for name in weights for part in _parts(name, weights)]
    header, at = {}, 0
    for part in parts:
        end = at + int(np.prod(part.shape)) * item_type(part.dtype).itemsize
        header[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": (at, end)}
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            values = part.convert(weights[part.source])
            file.write(np.ascontiguousarray(values, item_type(part.dtype)).tobytes())


def _parts(name: str, weights: StoredWeights) -> Iterator[_WrittenArray]:
    stored = weights.stored(name)
    if stored.dtype == INT8_ROWS and len(stored.shape) == 2:
        scale = (stored.shape[0], 1)
        yield _WrittenArray(
            name, "I8", stored.shape, name, lambda values: np.rint(values / _scale(values))
        )
        yield _WrittenArray(name + safetensors.SCALE, "F32", scale, name, _scale)
    else:
        dtype = stored.dtype if stored.dtype in _KEPT else "F16"
        yield _WrittenArray(name, dtype, stored.shape, name, partial(np.asarray, dtype=np.float32))


def _scale(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the integers of each row were multiplied by, (n_out, 1)."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    return np.where(largest > 0, largest / np.float32(_LARGEST), np.float32(1))
