"""Writes whisper.cpp's file format (ggml, version 1; facts from convert-pt-to-ggml.py there)."""

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from streamd.models.model import Model
from streamd.whisper.mel import mel_filters

_MAGIC, _F32, _F16 = 0x67676D6C, 0, 1


def write(model: Model, out: Path) -> Path:
    """Write ``out``/ggml-model.bin: biases in float32, matrices rounded to float16."""
    path = out / "ggml-model.bin"
    d = model.dims
    with path.open("wb") as file:
        header = (
            d.n_vocab, d.n_audio_ctx, d.n_audio_state, d.n_audio_head, d.n_audio_layer,
            d.n_text_ctx, d.n_text_state, d.n_text_head, d.n_text_layer, d.n_mels,
        )  # fmt: skip
        file.write(struct.pack("<12i", _MAGIC, *header, _F16))
        filters = mel_filters(d.n_mels)
        file.write(struct.pack("<2i", *filters.shape) + filters.astype("<f4").tobytes())
        file.write(struct.pack("<i", len(model.vocabulary)))
        for token in model.vocabulary:
            file.write(struct.pack("<i", len(token)) + token)
        for name, array in model.weights.items():
            _tensor(file, name, array)
    return path


def _tensor(file: BinaryIO, name: str, array: NDArray[np.float32]) -> None:
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        array = array[:, None]  # added to (channels, time)
    exact = array.ndim < 2 or name.endswith(("positional_embedding", "conv1.bias", "conv2.bias"))
    data = np.ascontiguousarray(array, dtype="<f4") if exact else array.astype("<f2")
    label = name.encode()
    file.write(struct.pack("<3i", array.ndim, len(label), _F32 if exact else _F16))
    file.write(struct.pack(f"<{array.ndim}i", *array.shape[::-1]))
    file.write(label + data.tobytes())
