"""Writes Moonshine tiny as GGUF, from the int8 graphs that the package moonshine-voice brings.

It is the model of 2024, which does not stream (MIT). Tensors are named as in transcribe.cpp
(``src/arch/moonshine/weights.cpp``), and stored in float16.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import onnxruntime.tools.ort_format_model  # noqa: F401 - which makes the next one importable
from gguf import GGMLQuantizationType
from ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

from tests.support.gguf_models import GgufModel

DTYPES = {1: np.float32, 2: np.uint8}
WIDTH, LAYERS, HEADS = 288, 6, 8
BLOCK = re.compile(r"layers\.(\d+)[./](self_attn|encoder_attn|mlp|\w+_layernorm)[./]?(\w*)")
PARTS = {
    "enc": {"self_attn": "attn", "mlp": "ffn"},
    "dec": {"self_attn": "self_attn", "encoder_attn": "cross_attn", "mlp": "ffn"},
}
NORMS = {
    "enc": {"input_layernorm": "attn", "post_attention_layernorm": "ffn"},
    "dec": {
        "input_layernorm": "self",
        "post_attention_layernorm": "cross",
        "final_layernorm": "ffn",
    },
}
EMBEDDING = "dec.token_embd.weight"
TOP = {
    "onnx::Mul_2080": "enc.conv.norm.weight",
    "onnx::Add_2081": "enc.conv.norm.bias",
    "layer_norm.weight": "enc.final_norm.weight",
    "model.decoder.norm.weight": "dec.final_norm.weight",
}


def write(folder: Path, path: Path) -> Path:
    tensors = {}
    for side, name in ("enc", "encoder_model.ort"), ("dec", "decoder_model_merged.ort"):
        content = bytearray((folder / name).read_bytes())
        graph = InferenceSession.GetRootAsInferenceSession(content, 0).Model().Graph()
        tensors |= _tensors(side, graph)
    shapes = {name: weights.shape for name, weights in tensors.items()}
    rng = np.random.default_rng(0)
    model = GgufModel("moonshine", _metadata(folder), shapes, rng, replaced=tensors)
    return model.write(path, lambda _, each: (each.astype(np.float16), GGMLQuantizationType.F16))


def _graphs(graph: object) -> Iterator[object]:
    """The graph and those inside: the decoder's are the branches with and without a cache."""
    yield graph
    for node in map(graph.Nodes, range(graph.NodesLength())):
        for attribute in map(node.Attributes, range(node.AttributesLength())):
            if (inner := attribute.G()) is not None:
                yield from _graphs(inner)


def _tensors(side: str, graph: object) -> Iterator[tuple[str, np.ndarray]]:
    graphs = [*_graphs(graph)]
    stored = dict(chain(*map(_stored, graphs)))
    yield from filter(None, (_as_it_is(side, *each) for each in stored.items()))
    for each in graphs:
        for node in map(each.Nodes, range(each.NodesLength())):
            inputs = [
                node.Inputs(i).decode().replace("_merged_0", "") for i in range(node.InputsLength())
            ]
            weights = next((i for i in inputs if i.endswith("_quantized") and i in stored), "")
            if weights and (name := _matrix(side, node.Name().decode())):
                of = weights.removesuffix("_quantized")
                floats = stored[weights].astype(np.float32) - stored[f"{of}_zero_point"]
                floats *= stored[f"{of}_scale"]
                yield name, floats if name == EMBEDDING else floats.T


def _stored(graph: object) -> Iterator[tuple[str, np.ndarray]]:
    """The numbers in a graph, by their names there."""
    for tensor in map(graph.Initializers, range(graph.InitializersLength())):
        if (dtype := DTYPES.get(tensor.DataType())) is not None:
            shape = [tensor.Dims(i) for i in range(tensor.DimsLength())]
            values = np.frombuffer(tensor.RawDataAsNumpy().tobytes(), dtype).reshape(shape)
            yield tensor.Name().decode().replace("_merged_0", ""), values


def _as_it_is(side: str, name: str, values: np.ndarray) -> tuple[str, np.ndarray] | None:
    """A tensor that is not quantised, under the library's name."""
    if found := BLOCK.search(name):
        layer, part, which = found.groups()
        if part == "mlp" and name.endswith(".bias"):
            return f"{side}.blocks.{layer}.ffn.{which}.bias", values
        if part in NORMS[side] and name.endswith(".weight"):
            return f"{side}.blocks.{layer}.norm_{NORMS[side][part]}.weight", values
    if name in TOP:
        return TOP[name], values.reshape(WIDTH)
    if found := re.fullmatch(r"conv(\d)\.(weight|bias)(_add_tensor)?", name):
        return f"enc.conv.{int(found[1]) - 1}.{found[2]}", values
    return None


def _matrix(side: str, node: str) -> str:
    """The library's name of the matrix that a node multiplies with; empty: it has none."""
    if node.endswith("embed_tokens/Gather"):
        return EMBEDDING
    if not (found := BLOCK.search(node)):
        return ""
    layer, part, which = found.groups()
    which = which if part == "mlp" else which.removesuffix("_proj").replace("o", "out")
    return f"{side}.blocks.{layer}.{PARTS[side][part]}.{which}.weight"


def _tokens(content: bytes) -> Iterator[str]:
    """The texts of a tokenizer.bin, each behind its length."""
    at = 0
    while at < len(content):
        length, at = content[at], at + 1
        if length >= 128:
            length, at = content[at] * 128 + length - 128, at + 1
        yield content[at : at + length].decode(errors="replace")
        at += length


def _metadata(folder: Path) -> dict[str, object]:
    tokens, key = [*_tokens((folder / "tokenizer.bin").read_bytes())], "stt.moonshine."
    sides = {
        f"{key}{side}.{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "n_layers": LAYERS,
            "d_model": WIDTH,
            "n_heads": HEADS,
            "ffn_dim": 4 * WIDTH,
            "activation": "gelu" if side == "encoder" else "silu",
        }.items()
    }
    return sides | {
        "general.name": "moonshine-tiny",
        "general.languages": ["en"],
        "stt.variant": "moonshine-tiny",
        "stt.frontend.type": "raw",
        "stt.frontend.num_mels": 1,
        "stt.frontend.sample_rate": 16_000,
        "tokenizer.ggml.model": "bpe",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.byte_fallback": True,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        f"{key}decoder.vocab_size": len(tokens),
        f"{key}decoder.max_position_embeddings": 194,
        f"{key}decoder_start_token_id": 1,
        f"{key}bos_token_id": 1,
        f"{key}eos_token_id": 2,
        f"{key}pad_token_id": 2,
        f"{key}conv_stem.channels": [WIDTH, 2 * WIDTH, WIDTH],
        f"{key}conv_stem.kernel_sizes": [127, 7, 3],
        f"{key}conv_stem.strides": [64, 3, 2],
    }
