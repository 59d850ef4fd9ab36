"""MLX's folder for a Whisper model, as mlx-whisper downloads it and mlx-community stores it.

``config.json`` has OpenAI's dimensions. The parameters are OpenAI's, except that convolutions have
their axes in another order, layers of an MLP are ``mlp1`` and ``mlp2``, and the encoder's positions
are computed. There is no vocabulary; OpenAI's ship with streamd. In a quantised folder a matrix
``X.weight`` may be integers of few bits, one after the other in words of 32, with a scale and an
offset for each group of a row in ``X.scales`` and ``X.biases``. Sources: mlx-examples
``whisper/convert.py``, ``mlx_whisper/load_models.py``, ``mlx_whisper/whisper.py``, ``mx.quantize``.
"""

import io
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats import safetensors
from streamd.models.formats.reading import (
    bad_file,
    item_type,
    open_zip,
    present,
    read_json,
    shown,
    zip_entry,
)
from streamd.models.model import Contents, Outline, Stored, check_dimensions, only_language

CONFIG = "config.json"
NPZ, SAFETENSORS = "weights.npz", ("model.safetensors", "weights.safetensors")
_MAX_AUDIO_CTX = 1500
"""The weights do not have this size, so the configuration alone must not decide it."""
_POSITIONS, _HEADS = "encoder.positional_embedding", "alignment_heads"
_MAX_HEADS = 10_000
_TYPES = {
    "float16": "F16",
    "float32": "F32",
    "bfloat16": "BF16",
    "int32": "I32",
    "int64": "I64",
    "uint32": "U32",
}
"""numpy's name -> that of `Stored`."""


_BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
"""Those of ``mx.quantize`` in its mode "affine"."""
_ROWS_AT_ONCE = 256
"""Rows whose bits are taken apart at a time: each takes a byte then, and four more."""


class _Quantization(msgspec.Struct):
    bits: int
    group_size: int = 64
    mode: str = "affine"


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


def outline(folder: Path) -> Outline:
    """Read the configuration."""
    dims = read_dimensions(folder / CONFIG)
    return Outline(dims, only_language(dims))


def read_dimensions(path: Path) -> ModelDimensions:
    """Read a ``config.json``. Raises `ModelError` if it is damaged or of another architecture."""
    dims = read_json(path, ModelDimensions)
    check_dimensions(path, dims, usual=dims.n_audio_ctx <= _MAX_AUDIO_CTX)
    return dims


@contextmanager
def contents(folder: Path) -> Iterator[Contents]:
    """Open the file with the parameters.

    Raises `ModelError` if they are quantised in a way that is not known, too.
    """
    form = read_json(folder / CONFIG, _MlxConfig).quantization
    if form and not (form.mode == "affine" and form.bits in _BITS and form.group_size in _GROUPS):
        raise ModelError(
            f"{folder}: quantised by MLX ({shown(form.mode)}, {form.bits} bits in groups of "
            f"{form.group_size}), which streamd does not read; get the same model in float16"
        )
    dims = outline(folder).dims
    with _opened(folder) as stored:
        heads = _listed_heads(stored.pop(_HEADS, None))
        if form:
            stored = _with_scales(stored, form)
        yield Contents(_renamed(folder, dims, stored), heads=heads)


def files(folder: Path) -> list[Path]:
    """Return the configuration and the file with the parameters."""
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
    try:
        with opened.open(name) as file:
            short = npy.read_magic(file) == (1, 0)
            read_header = npy.read_array_header_1_0 if short else npy.read_array_header_2_0
            shape, _, kind = read_header(file)
    except (ValueError, SyntaxError, TokenError) as error:  # the last two: not Python's literals
        raise zipfile.BadZipFile(f"{shown(name)} is no array") from error
    # MLX calls bfloat16, which numpy does not know, two bytes of anything.
    item = item_type("BF16") if kind.str == "|V2" else kind
    dtype = _TYPES.get(item.name, kind.str)
    read = partial(_values, opened, name, item)
    return name.removesuffix(".npy"), Stored(path, shape, dtype, read)


def _values(opened: zipfile.ZipFile, name: str, item: np.dtype[Any]) -> NDArray[Any]:
    entry = io.BytesIO(zip_entry(opened, name))
    return np.asarray(npy.read_array(entry, allow_pickle=False)).view(item)


def _with_scales(stored: dict[str, Stored], form: _Quantization) -> dict[str, Stored]:
    """Join each quantised matrix with its scales and offsets, which are no parameters."""
    joined = dict(stored)
    for name in stored:
        base = name.removesuffix(".scales")
        if base == name or not (matrix := joined.get(f"{base}.weight")):
            continue
        scales, offsets = joined.pop(name), joined.pop(f"{base}.biases", None)
        n_out, n_groups = scales.shape if len(scales.shape) == 2 else (0, 0)
        n_in = form.group_size * n_groups
        packed = matrix.dtype == "U32" and matrix.shape == (n_out, n_in * form.bits // 32)
        if not packed or not n_groups or offsets is None or offsets.shape != scales.shape:
            why = f"{shown(base)} is not quantised as {CONFIG} says"
            raise bad_file(matrix.path, why)
        read = partial(_dequantised, matrix.read, scales.read, offsets.read, form.bits)
        joined[f"{base}.weight"] = replace(
            matrix, shape=(n_out, n_in), dtype=scales.dtype, read=read
        )
    return joined


def _dequantised(
    read: Callable[[], NDArray[Any]],
    read_scales: Callable[[], NDArray[Any]],
    read_offsets: Callable[[], NDArray[Any]],
    bits: int,
) -> NDArray[np.float32]:
    packed = np.ascontiguousarray(read(), "<u4")
    scales, offsets = (each().astype(np.float32) for each in (read_scales, read_offsets))
    found = np.empty((*scales.shape, packed.shape[1] * 32 // bits // scales.shape[1]), np.float32)
    places = np.float32(2) ** np.arange(bits, dtype=np.float32)
    for begin in range(0, len(packed), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        each_bit = np.unpackbits(packed[rows].view(np.uint8), axis=1, bitorder="little")
        shape = (*found[rows].shape, bits)
        found[rows] = each_bit.reshape(shape).astype(np.float32) @ places
    found *= scales[..., None]
    found += offsets[..., None]
    return found.reshape(len(packed), -1)


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
            swapped = partial(lambda read: read().swapaxes(1, 2), each.read)
            each = replace(each, shape=(n_out, n_in, n_taps), read=swapped)
        renamed[name] = each
    return renamed


def sinusoids(n_audio_ctx: int, n_audio_state: int) -> NDArray[np.float16]:
    """Compute the encoder's positional embedding, bit for bit that of OpenAI's checkpoints."""
    half = n_audio_state // 2
    scales = np.exp(-math.log(10_000) / max(half - 1, 1) * np.arange(half))
    angles = np.arange(n_audio_ctx)[:, None] * scales
    exact = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return exact.astype(np.float32).astype(np.float16)  # rounded twice, as theirs were
