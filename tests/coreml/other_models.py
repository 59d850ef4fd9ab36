"""The networks besides Whisper as ML programs, made of the weights that ship in 8 bits.

streamd runs these networks on the CPU (docs/macos.md says why). What is here shows whether packages
of them would compute the same, and which of them the Neural Engine could run.
"""

import runpy
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import coremltools as ct
import numpy as np
import onnx
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

from streamd.engines.coreml.networks import Layers, attend_by_head
from streamd.engines.coreml.package import Meta, NormScale
from streamd.engines.coreml.rounding import norm_scale
from streamd.models import ModelDimensions
from tests.coreml.programs import saved

ROOT = Path(__file__).resolve().parents[2]
N_BANKS = 160
"""Filter banks that the embedding hears: 1.6 s, as much as of a voice in a live stream."""
_TURNS = ModelDimensions(
    n_mels=80,
    n_audio_ctx=400,
    n_audio_state=384,
    n_audio_head=6,
    n_audio_layer=4,
    n_vocab=0,
    n_text_ctx=0,
    n_text_state=0,
    n_text_head=0,
    n_text_layer=0,
)
_BLOCKS = [f"encoder.blocks.{i}." for i in range(_TURNS.n_audio_layer)]
_MATRICES = ("attn.key", "attn.query", "attn.value", "attn.out", "mlp.0", "mlp.2")
_NAMES = {
    "Conv": ["encoder.conv1", "encoder.conv2"],
    "MatMul": [*("".join(each) for each in product(_BLOCKS, _MATRICES)), "pool.0", "pool.2"],
    "Gemm": ["classifier.0", "classifier.4", "classifier.6"],
    "LayerNormalization": [
        *("".join(each) for each in product(_BLOCKS, ("attn_ln", "mlp_ln"))),
        *("encoder.ln_post", "classifier.1"),
    ],
}
"""What smart-turn's parameters are called in Whisper, in the order of its graph."""

Floats = dict[str, np.ndarray]


def unrounded(name: str) -> onnx.ModelProto:
    """A graph of ``models/`` in float32, with the weights that it has in 8 bits."""
    model = onnx.load(ROOT / "models" / name)
    runpy.run_path(str(ROOT / "models/smart-turn/make.py"))["keep_activations"](model.graph)
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # decode the weights, too
    options.log_severity_level = 4
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/made.onnx"
        InferenceSession(model.SerializeToString(), options)
        return onnx.load(options.optimized_model_filepath)


def held(model: onnx.ModelProto) -> InferenceSession:
    """Runs a graph in float32, with its weights as a package holds them."""
    halves = onnx.ModelProto()
    halves.CopyFrom(model)
    for each in halves.graph.initializer:
        if each.data_type == onnx.TensorProto.FLOAT and each.dims:
            half = onnx.numpy_helper.to_array(each).astype(np.float16).astype(np.float32)
            each.CopyFrom(onnx.numpy_helper.from_array(half, each.name))
    return InferenceSession(halves.SerializeToString())


def _weights(model: onnx.ModelProto) -> Floats:
    found = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    return {name: each for name, each in found.items() if each.dtype == np.float32}


def save_embedding(model: onnx.ModelProto, folder: Path) -> Path:
    """What `streamd.engines.voices.listen` runs: (1, 1, 80, n) banks, (1, 256, 10, n / 8).

    `mask` (1, 1, 1, n) has a 1 for each bank that there is. What is computed of the others is made
    zero after each layer, as it is beside the ends of a voice: without that, the vectors of 32
    voices behind which 12 banks are padded have cosines of only 0.895 and more with the right ones.
    """
    weights = {name: each.astype(np.float16) for name, each in _weights(model).items()}
    first = next(node for node in model.graph.node if node.op_type == "Conv")

    def graph(x: Any, mask: Any) -> Any:
        known, masks = {first.input[0]: x}, {N_BANKS: mask}
        y = x
        for node in model.graph.node:
            given = [known[name] for name in node.input if name in known]
            if node.op_type == "Conv":
                kernel, bias = (weights[name] for name in node.input[1:])
                at = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
                top, left, bottom, right = at["pads"]
                pad = {"pad_type": "custom", "pad": [top, bottom, left, right]}
                y = mb.conv(x=given[0], weight=kernel, bias=bias, strides=at["strides"], **pad)
            elif node.op_type == "Add":
                y = mb.add(x=given[0], y=given[1])
            elif node.op_type == "Relu":
                n = given[0].shape[3]
                if n not in masks:
                    every, end = masks[2 * n], [1, 1, 1, 2 * n]
                    masks[n] = mb.slice_by_index(
                        x=every, begin=[0] * 4, end=end, stride=[1, 1, 1, 2]
                    )
                y = mb.mul(x=mb.relu(x=given[0]), y=masks[n])
            elif given:
                break  # what follows only joins channels and bands
            else:
                continue
            known[node.output[0]] = y
        return y

    return saved(folder, graph, {"x": (1, 1, 80, N_BANKS), "mask": (1, 1, 1, N_BANKS)})


def _named(model: onnx.ModelProto) -> Floats:
    """smart-turn's weights under Whisper's names, matrices as (out, in)."""
    weights, nodes = _weights(model), model.graph.node
    (positions,) = (name for name in weights if "embed_positions" in name)
    found = {"encoder.positional_embedding": weights[positions]}
    for kind, names in _NAMES.items():
        of_kind = [n for n in nodes if n.op_type == kind and n.input[1] in weights]
        for node, name in zip(of_kind, names, strict=True):
            weight, biases = weights[node.input[1]], list(node.input[2:])
            if kind == "MatMul":
                weight = weight.T
                adds = [n for n in nodes if n.op_type == "Add" and node.output[0] in n.input]
                biases = [each for n in adds for each in n.input if each in weights]
            found[f"{name}.weight"] = weight
            found |= {f"{name}.bias": weights[each] for each in biases}
    del found["pool.2.bias"]  # the same number for all positions, which a softmax does not see
    return found


def norms(model: onnx.ModelProto, mels: Sequence[np.ndarray]) -> dict[str, NormScale]:
    """The scales of smart-turn's layer norms, from their inputs for these log-mels, (80, 800)."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    nodes = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    for node in nodes:
        observed.graph.output.add().name = node.input[0]
    session, largest = InferenceSession(observed.SerializeToString()), np.zeros(len(nodes))
    for mel in mels:
        _, *inputs = session.run(None, {"input_features": mel[None]})
        sums = [np.square(x - x.mean(-1, keepdims=True)).sum(-1).max() for x in inputs]
        largest = np.maximum(largest, sums)
    pairs = zip(_NAMES["LayerNormalization"], largest.tolist(), strict=True)
    return {name: norm_scale(each) for name, each in pairs}


def save_turns(model: onnx.ModelProto, scales: dict[str, NormScale], folder: Path) -> Path:
    """smart-turn: (1, 80, 1, 800) log-mel, (1, 1, 1, 1), of which the probability is a sigmoid."""
    meta = Meta(
        name="smart-turn",
        coremltools=ct.__version__,
        dims=_TURNS,
        alignment_heads=(),
        contexts=(_TURNS.n_audio_ctx,),
        norms=scales,
    )
    layers = Layers(meta, _named(model))

    def graph(x: Any) -> Any:
        for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
            x = mb.gelu(x=layers.convolution(x, name, stride=stride), mode="EXACT")
        places = layers.weights["encoder.positional_embedding"].T[None, :, None]
        x = mb.add(x=x, y=layers.constant("positions", places))
        for name in _BLOCKS:
            block, y = name[:-1], layers.layer_norm(x, f"{name}attn_ln")
            keys = mb.transpose(x=layers.linear(y, f"{name}attn.key"), perm=[0, 3, 2, 1])
            attended = attend_by_head(
                layers.query(y, f"{name}attn", n_head=_TURNS.n_audio_head),
                keys,
                layers.linear(y, f"{name}attn.value"),
                n_head=_TURNS.n_audio_head,
                mask=np.float16(0),
            )
            x = mb.add(x=x, y=layers.linear(attended, f"{name}attn.out"))
            x = mb.add(x=x, y=layers.feed_forward(x, block))
        x = layers.layer_norm(x, "encoder.ln_post")
        scores = layers.linear(mb.tanh(x=layers.linear(x, "pool.0")), "pool.2")
        shares = mb.softmax(x=mb.transpose(x=scores, perm=[0, 3, 2, 1]), axis=1)
        x = mb.einsum(values=(x, shares), equation="nchw,nwhu->nchu")
        x = layers.layer_norm(layers.linear(x, "classifier.0"), "classifier.1")
        x = layers.linear(mb.gelu(x=x, mode="EXACT"), "classifier.4")
        return layers.linear(mb.gelu(x=x, mode="EXACT"), "classifier.6")

    return saved(folder, graph, {"x": (1, 80, 1, 800)})
