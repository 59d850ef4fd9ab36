"""MLX's folder for a Whisper model, as mlx-whisper downloads it and mlx-community has it.

``config.json`` has OpenAI's dimensions. The parameters are OpenAI's, except that convolutions have
their axes in another order, layers of an MLP are ``mlp1`` and ``mlp2``, and the encoder's positions
are computed. There is no vocabulary; OpenAI's ship with streamd. Sources: mlx-examples
``whisper/convert.py``, ``mlx_whisper/load_models.py``, ``mlx_whisper/whisper.py``.
"""

import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamd.engine import ModelDimensions
from streamd.engine.catalog import heads
from streamd.engine.formats import safetensors
from streamd.engine.formats.untrusted import open_zip, present, read_json, shown, zip_entry
from streamd.engine.model import MIN_AUDIO_CTX, Model, Outline, check_dimensions, only_language
from streamd.engine.vocabulary import openai_vocabulary
from streamd.engine.weights import Stored, gather
from streamd.errors import ModelError

CONFIG = "config.json"
NPZ, SAFETENSORS = "weights.npz", ("model.safetensors", "weights.safetensors")
_MAX_AUDIO_CTX = 1500
"""The weights do not have this size, so the configuration alone must not decide it."""
_POSITIONS, _HEADS = "encoder.positional_embedding", "alignment_heads"
_MAX_HEADS = 10_000
_HEADER = re.compile(
    rb"\{'descr': '([^']{1,9})', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\),? *\}\s*",
)
"""The header of an array in an .npz, as numpy and MLX write it."""
_MAX_HEADER = 1000
_TYPES: dict[str, tuple[str, DTypeLike]] = {
    "<f2": ("F16", "<f2"),
    "<f4": ("F32", "<f4"),
    "<V2": ("BF16", ml_dtypes.bfloat16),
    "<i4": ("I32", "<i4"),
    "<i8": ("I64", "<i8"),
    "<u4": ("U32", "<u4"),
}
"""By numpy's name; MLX calls bfloat16, which numpy does not know, two bytes of anything."""


class _Quantization(msgspec.Struct):
    bits: int


class _MlxConfig(msgspec.Struct):
    """``config.json``; those of other layouts have no `n_mels`."""

    n_mels: int | None = None
    quantization: _Quantization | None = None


def is_one(folder: Path) -> bool:
    """Return whether the folder is of this layout, by its files' names and its configuration."""
    if present(folder, (NPZ, SAFETENSORS[1])):
        return True
    config = present(folder, (CONFIG,))
    return bool(config) and read_json(config[0], _MlxConfig).n_mels is not None


def load(folder: Path, name: str) -> Model:
    """Load the folder.

    Raises `ModelError` if its files are missing, damaged, quantised or of another architecture.
    """
    dims = outline(folder).dims
    if quantization := read_json(folder / CONFIG, _MlxConfig).quantization:
        raise ModelError(
            f"{folder}: quantised by MLX to {quantization.bits} bits, which streamd does not read; "
            "get the same model in float16"
        )
    with _opened(folder) as stored:
        listed = _listed_heads(stored.pop(_HEADS, None))
        return Model(
            name=name,
            dims=dims,
            weights=gather(folder, dims, _renamed(folder, dims, stored)),
            vocabulary=openai_vocabulary(folder, dims.n_vocab),
            alignment_heads=heads(listed, Path(name), dims),
            language=only_language(dims),
            min_audio_ctx=min(MIN_AUDIO_CTX, dims.n_audio_ctx),
        )


def outline(folder: Path) -> Outline:
    """Describe the folder's model. Raises `ModelError`, as `load` does."""
    path = folder / CONFIG
    dims = read_json(path, ModelDimensions)
    check_dimensions(path, dims, usual=dims.n_audio_ctx <= _MAX_AUDIO_CTX)
    return Outline(dims, only_language(dims))


def files(folder: Path) -> list[Path]:
    """Return the files that `load` reads."""
    return [*present(folder, (CONFIG,)), _weights(folder)]


def _weights(folder: Path) -> Path:
    found = present(folder, (*SAFETENSORS, NPZ))  # mlx-whisper's order
    return found[0] if found else folder / NPZ


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, Stored]]:
    path = _weights(folder)
    if path.name != NPZ:
        yield safetensors.open_file(path)
        return
    with open_zip(path) as opened:
        yield dict(_array(path, opened, info.filename) for info in opened.infolist())


def _array(path: Path, opened: zipfile.ZipFile, name: str) -> tuple[str, Stored]:
    """Read only numpy's header of an entry."""
    with opened.open(name) as file:
        start = file.read(_MAX_HEADER)
    version, n_length = start[6:7], 2 if start[6:7] == b"\1" else 4
    begin = 8 + n_length
    end = begin + int.from_bytes(start[8:begin], "little")
    header = _HEADER.fullmatch(start[begin:end])
    if start[:6] != b"\x93NUMPY" or version not in (b"\1", b"\2") or not header:
        raise zipfile.BadZipFile(f"{shown(name)} is no array")
    kind = header[1].decode("ascii", "replace")
    shape = tuple(int(size) for size in header[3].replace(b" ", b"").split(b",") if size)
    reverse = header[2] == b"True"  # the first axis varies fastest
    dtype, item = _TYPES.get(kind, (kind, ""))
    values = partial(_values, opened, name, end, item, shape[::-1] if reverse else shape)
    read = (lambda: values().T) if reverse else values
    return name.removesuffix(".npy"), Stored(path, shape, dtype, read)


def _values(
    opened: zipfile.ZipFile, name: str, start: int, item: DTypeLike, shape: tuple[int, ...]
) -> NDArray[Any]:
    data = zip_entry(opened, name)
    if len(data) - start != math.prod(shape) * np.dtype(item).itemsize:
        raise zipfile.BadZipFile(f"{shown(name)} does not have its length")
    return np.frombuffer(data, item, offset=start).reshape(shape)


def _listed_heads(stored: Stored | None) -> list[tuple[int, int]] | None:
    if stored is None or stored.dtype not in ("I32", "I64", "U32"):
        return None
    if stored.shape[1:] != (2,) or stored.shape[0] > _MAX_HEADS:
        return None
    return [(int(layer), int(head)) for layer, head in stored.read()]


def _renamed(folder: Path, dims: ModelDimensions, stored: dict[str, Stored]) -> dict[str, Stored]:
    """Return the parameters under OpenAI's names, with OpenAI's order of axes."""
    positions = (dims.n_audio_ctx, dims.n_audio_state)
    renamed = {_POSITIONS: Stored(folder, positions, "F16", partial(sinusoids, *positions))}
    for name, each in stored.items():
        name = name.replace(".mlp1.", ".mlp.0.").replace(".mlp2.", ".mlp.2.")
        if re.fullmatch(r"encoder\.conv[12]\.weight", name) and len(each.shape) == 3:
            n_out, n_taps, n_in = each.shape
            each = replace(each, shape=(n_out, n_in, n_taps), read=partial(_swapped, each))
        renamed[name] = each
    return renamed


def _swapped(convolution: Stored) -> NDArray[Any]:
    return convolution.read().swapaxes(1, 2)


def sinusoids(n_audio_ctx: int, n_audio_state: int) -> NDArray[np.float16]:
    """Compute the encoder's positional embedding, bit for bit that of OpenAI's checkpoints."""
    half = n_audio_state // 2
    scales = np.exp(-math.log(10_000) / max(half - 1, 1) * np.arange(half))
    angles = np.arange(n_audio_ctx)[:, None] * scales
    exact = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return exact.astype(np.float32).astype(np.float16)  # rounded twice, as theirs were
