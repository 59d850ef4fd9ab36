"""A model's parameters: which ones there must be, and how they are read from safetensors.

Knows nothing of vocabularies or of where models are kept (`store` does). Names and shapes:
openai/whisper ``model.py``.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from streamd.engine import ModelDimensions, Weights
from streamd.errors import ModelError

Shapes = dict[str, tuple[int, ...]]

_READABLE = ("F16", "F32")


def parameter_shapes(dims: ModelDimensions) -> Shapes:
    """Name and shape of every parameter that a model of these dimensions has."""
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
    return shapes


def read_safetensors(path: Path, dims: ModelDimensions) -> Weights:
    """Read a model's parameters as float32.

    Names, shapes and types are compared with `dims` before any data is read, so that a damaged or
    foreign file costs neither time nor memory.

    Raises
    ------
    ModelError
        The file is missing, damaged, of another architecture, or holds values that are no numbers.
    """
    expected = parameter_shapes(dims)
    try:
        with safe_open(path, framework="np") as file:
            _check_names(path, expected, found=set(file.keys()))
            for name, shape in expected.items():
                lazy = file.get_slice(name)
                _check_tensor(f"{path}: {name}", lazy.get_dtype(), lazy.get_shape(), shape)
            return {name: _float32(path, name, file.get_tensor(name)) for name in expected}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error}); get the model's files again") from error


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


def _check_names(path: Path, expected: Shapes, *, found: set[str]) -> None:
    odd = sorted(found ^ expected.keys())
    if odd:
        what = "is missing" if odd[0] in expected else "is not a part of a model of its dimensions"
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        raise ModelError(f"{path}: {odd[0]}{more} {what}; config.json and weights do not match")


def _check_tensor(place: str, dtype: str, found: list[int], expected: tuple[int, ...]) -> None:
    if tuple(found) != expected:
        raise ModelError(
            f"{place} has shape {found}, not {list(expected)}; config.json and weights do not match"
        )
    if dtype not in _READABLE:
        raise ModelError(f"{place} is of type {dtype}; convert the model to {_READABLE}")


def _float32(path: Path, name: str, tensor: NDArray[np.generic]) -> NDArray[np.float32]:
    values = tensor.astype(np.float32)
    if not np.isfinite(values).all():
        raise ModelError(f"{path}: {name} holds NaN or infinity; get the model's files again")
    return values
