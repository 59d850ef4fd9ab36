"""A model's parameters: their names and shapes (openai/whisper ``model.py``), and their checks.

The modules of `formats` know how files store them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions, Weights
from streamd.engine.formats import bad_file, shown
from streamd.errors import ModelError

Shapes = dict[str, tuple[int, ...]]

OUTPUT = "proj_out.weight"
"""Only models whose output layer is not the token embedding have it; OpenAI's have none."""
INT8_ROWS = "I8 with a scale per row"
_READABLE = ("F16", "BF16", "F32", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", INT8_ROWS)


@dataclass(frozen=True, slots=True)
class Stored:
    """A parameter on disk: its file, shape and type, and a function that reads its values."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a model's files hold, their parameters still on disk; None is what they do not tell.

    `vocabulary` maps the text tokens to their ids. `heads` are the alignment heads that the files
    list, which need not exist. The other two are as in `Model`.
    """

    stored: Mapping[str, Stored]
    vocabulary: dict[bytes, int] | None = None
    heads: Iterable[tuple[int, int]] | None = None
    suppress_tokens: Iterable[int] | None = None
    begin_suppress_tokens: Iterable[int] | None = None


def parameter_shapes(dims: ModelDimensions, *, tied: bool = True) -> Shapes:
    """Return name and shape of every parameter that a model of these dimensions has.

    `tied` says that the token embedding is the output layer too.
    """
    audio, text = dims.n_audio_state, dims.n_text_state
    shapes: Shapes = {
        "encoder.conv1.weight": (audio, dims.n_mels, 3),
        "encoder.conv1.bias": (audio,),
        "encoder.conv2.weight": (audio, audio, 3),
        "encoder.conv2.bias": (audio,),
        "encoder.positional_embedding": (dims.n_audio_ctx, audio),
        **_norm("encoder.ln_post", audio),
        "decoder.token_embedding.weight": (dims.n_vocab, text),
        "decoder.positional_embedding": (dims.n_text_ctx, text),
        **_norm("decoder.ln", text),
    }
    for layer in range(dims.n_audio_layer):
        shapes |= _block(f"encoder.blocks.{layer}", audio)
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        shapes |= _block(block, text) | _attention(f"{block}.cross_attn", text)
    return shapes if tied else shapes | {OUTPUT: (dims.n_vocab, text)}


def gather(path: Path, dims: ModelDimensions, stored: Mapping[str, Stored]) -> Weights:
    """Read a model's parameters as float32.

    Names, shapes and types are compared with `dims` before any data is read, so that a damaged or
    foreign file costs neither time nor memory. Raises `ModelError` if the model is of another
    architecture, is damaged, or holds NaN or infinity; `path` is the file or folder to name where a
    parameter is missing.
    """
    expected = parameter_shapes(dims, tied=OUTPUT not in stored)
    if wrong := sorted(stored.keys() ^ expected.keys()):
        name = wrong[0]
        what = "is missing" if name in expected else "is not a part of a model of its dimensions"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ModelError(f"{path}: {shown(name)}{more} {what}; dimensions and weights do not match")
    for name, shape in expected.items():
        each = stored[name]
        if each.shape != shape:
            raise ModelError(
                f"{each.path}: {name} has shape {list(each.shape)}, not {list(shape)}; "
                "dimensions and weights do not match"
            )
        if each.dtype not in _READABLE:
            raise ModelError(
                f"{each.path}: {name} is of type {shown(each.dtype)}; "
                f"convert the model to {', '.join(_READABLE)}"
            )
    weights = {}
    for name in expected:
        values = stored[name].read().astype(np.float32, order="C")  # engines need contiguous rows
        if not np.isfinite(values).all():
            raise bad_file(stored[name].path, f"{name} holds NaN or infinity")
        weights[name] = values
    return weights


def _norm(name: str, n_state: int) -> Shapes:
    return {f"{name}.weight": (n_state,), f"{name}.bias": (n_state,)}


def _linear(name: str, n_out: int, n_in: int) -> Shapes:
    return {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}


def _attention(name: str, n_state: int) -> Shapes:
    shapes: Shapes = {f"{name}.key.weight": (n_state, n_state)} | _norm(f"{name}_ln", n_state)
    for projection in ("query", "value", "out"):
        shapes |= _linear(f"{name}.{projection}", n_state, n_state)
    return shapes


def _block(name: str, n_state: int) -> Shapes:
    return {
        **_attention(f"{name}.attn", n_state),
        **_norm(f"{name}.mlp_ln", n_state),
        **_linear(f"{name}.mlp.0", 4 * n_state, n_state),
        **_linear(f"{name}.mlp.2", n_state, 4 * n_state),
    }
