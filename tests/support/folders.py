"""Folders as CTranslate2, MLX and transformers (with torch's weights) write them, for tests.

`ct2` writes what CTranslate2 4.8 does with a converted model, in each of its types; what it is
imitating was read by our loader for tiny.en and base, with the integers of CTranslate2's files.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from streamd.models import ModelDimensions
from tests.support import torch_file

Weights = Mapping[str, np.ndarray]
_TYPES = ("float32", "int8", "int16", "int32", "float16")
_STACKED = {
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
    "ffn/linear_0": ("mlp.0",),
    "ffn/linear_1": ("mlp.2",),
}
_NORMS = {
    "self_attention/layer_norm": "attn_ln",
    "attention/layer_norm": "cross_attn_ln",
    "ffn/layer_norm": "mlp_ln",
}


_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
_LETTERS = {b: chr(b) for b in _VISIBLE} | {b: chr(0x100 + i) for i, b in enumerate(_HIDDEN)}


def letters(token: bytes) -> str:
    """A token in GPT-2's letters."""
    return "".join(_LETTERS[byte] for byte in token)


# -- CTranslate2 -------------------------------------------------------------------------------


def ct2(
    folder: Path,
    dims: ModelDimensions,
    weights: Weights,
    tokens: list[bytes],
    kind: str = "float16",
    heads: list[list[int]] | None = None,
) -> Path:
    """Write the folder; `kind` is CTranslate2's name of a quantisation."""
    folder.mkdir()
    (folder / "model.bin").write_bytes(ct2_file(ct2_variables(dims, weights, kind)))
    heads = heads or [[dims.n_text_layer - 1, 0]]
    config = {
        "alignment_heads": heads,
        "lang_ids": [],
        "suppress_ids": [2, 1],
        "suppress_ids_begin": [3],
    }
    (folder / "config.json").write_text(json.dumps(config))
    specials = ["<|endoftext|>", "<|startoftranscript|>"]
    (folder / "vocabulary.json").write_text(json.dumps([*map(letters, tokens), *specials]))
    return folder


def ct2_variables(dims: ModelDimensions, weights: Weights, kind: str) -> dict[str, np.ndarray]:
    """The variables of ``model.bin`` under their names, with their types."""
    variables: dict[str, np.ndarray] = {
        "decoder/activation": np.int8(3),
        "decoder/scale_embeddings": np.int8(0),
        "decoder/num_heads": np.int16(dims.n_text_head),
        "encoder/num_heads": np.int16(dims.n_audio_head),
    }
    for part, ours in (("encoder", "ln_post"), ("decoder", "ln")):
        positions = weights[f"{part}.positional_embedding"]
        variables[f"{part}/position_encodings/encodings"] = positions
        variables |= _norm(f"{part}/layer_norm", weights, f"{part}.{ours}")
    for conv in ("conv1", "conv2"):
        for leaf in ("weight", "bias"):
            variables[f"encoder/{conv}/{leaf}"] = weights[f"encoder.{conv}.{leaf}"]
    variables["decoder/embeddings/weight"] = weights["decoder.token_embedding.weight"]
    for part, n_layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        for i in range(n_layers):
            variables |= _layer(f"{part}/layer_{i}", weights, f"{part}.blocks.{i}")
    return _typed(variables, kind)


def _layer(theirs: str, weights: Weights, ours: str) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for name, modules in _STACKED.items():
        if f"{ours}.{modules[0]}.weight" in weights:
            matrices = [weights[f"{ours}.{module}.weight"] for module in modules]
            zeros = [np.zeros(len(matrix), matrix.dtype) for matrix in matrices]
            biases = [
                weights.get(f"{ours}.{m}.bias", z) for m, z in zip(modules, zeros, strict=True)
            ]
            made[f"{theirs}/{name}/weight"] = np.concatenate(matrices)
            made[f"{theirs}/{name}/bias"] = np.concatenate(biases)
    for name, module in _NORMS.items():
        if f"{ours}.{module}.weight" in weights:
            made |= _norm(f"{theirs}/{name}", weights, f"{ours}.{module}")
    return made


def _norm(theirs: str, weights: Weights, ours: str) -> dict[str, np.ndarray]:
    return {f"{theirs}/gamma": weights[f"{ours}.weight"], f"{theirs}/beta": weights[f"{ours}.bias"]}


def _typed(variables: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """As CTranslate2 stores them: int8 for matrices and convolutions, else what is named."""
    made = {}
    others = {"int8": "float32", "int8_float16": "float16"}.get(kind, kind)
    for name, values in variables.items():
        if kind.startswith("int8") and name.endswith("weight"):
            rows = values.reshape(len(values), -1).astype(np.float32)
            scales = np.float32(127) / np.abs(rows).max(axis=1)
            integers = np.rint(rows * scales[:, None]).astype(np.int8)
            made[name] = integers.reshape(values.shape)
            made[f"{name}_scale"] = scales
        else:
            made[name] = values.astype(others) if values.ndim else values
    return made


def ct2_file(
    variables: Weights,
    *,
    spec: str = "WhisperSpec",
    version: int = 6,
    aliases: Mapping[str, str] | None = None,
) -> bytes:
    """``model.bin``. The output layer is another name of the embedding, unless it is there."""
    if aliases is None:
        tied = "decoder/projection/weight" not in variables
        aliases = {"decoder/projection/weight": "decoder/embeddings/weight"} if tied else {}
    parts = [struct.pack("<I", version), _text(spec), struct.pack("<2I", 3, len(variables))]
    for name, values in sorted(variables.items()):
        shape = struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        size = struct.pack("<BI", _TYPES.index(values.dtype.name), values.nbytes)
        parts += [_text(name), shape, size, values.tobytes()]
    parts.append(struct.pack("<I", len(aliases)))
    parts += [_text(alias) + _text(name) for alias, name in aliases.items()]
    return b"".join(parts)


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


# -- MLX -----------------------------------------------------------------------------------------


def mlx(
    folder: Path,
    dims: ModelDimensions,
    weights: Weights,
    file: str = "weights.npz",
    heads: list[list[int]] | None = None,
) -> Path:
    """Write the folder, the weights in their own type."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(asdict(dims) | {"model_type": "whisper"}))
    theirs = {}
    for name, values in weights.items():
        if name != "encoder.positional_embedding":
            name = name.replace(".mlp.0.", ".mlp1.").replace(".mlp.2.", ".mlp2.")
            theirs[name] = (
                np.ascontiguousarray(values.swapaxes(1, 2)) if values.ndim == 3 else values
            )
    if heads:
        theirs["alignment_heads"] = np.array(heads, np.int64)
    if file.endswith(".npz"):
        np.savez(folder / file, **theirs)
    else:
        save_file(theirs, folder / file)
    return folder


# -- torch's weights in Hugging Face's folder ------------------------------------------------------


def torch_weights(path: Path, weights: Weights) -> Path:
    """``pytorch_model.bin``: the parameters alone, under the names that they have."""
    tensors = {
        name: torch_file.tensor(torch_file.KINDS[array.dtype.str[1:]], str(i), array.shape)
        for i, (name, array) in enumerate(weights.items())
    }
    pickle = torch_file.pickled(torch_file.mapping(tensors))
    return torch_file.write_zip(path, pickle, [array.tobytes() for array in weights.values()])
