"""Whisper's encoder as Core ML functions, and the packages that hold them.

The graphs are operations of coremltools' MIL builder. Tensors are (1, channels, 1, positions), as
the Neural Engine wants them: a linear layer is a 1x1 convolution. Attention is computed one head at
a time, with keys along the channel axis (Apple, ``coreai-models``: neural_engine_rules.md;
apple/ml-ane-transformers). There is neither gather nor scatter, and all shapes are static. Weights
are float16 or palettes; functions of a package that use the same parameter share one copy of it on
disk. Operations are named after their parameters, so that plans and errors of Core ML can be read.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Function as MilFunction
from coremltools.converters.mil.mil import Program, Var, types
from numpy.typing import NDArray

from streamd.engines.coreml.package import Function, Meta, padded
from streamd.engines.coreml.rounding import HeldWeights, Palette
from streamd.models.silence import SilenceStates

_MOST_QUERIES = 512
"""The score matrix of more queries does not fit into the Neural Engine's own memory."""


class Layers:
    """A model's layers, for the functions of one package."""

    def __init__(
        self, meta: Meta, weights: HeldWeights, silence: SilenceStates | None = None
    ) -> None:
        self.meta, self.dims, self.weights, self.silence = meta, meta.dims, weights, silence

    def parameter(self, name: str, shape: Sequence[int] = ()) -> Var:
        """Add a parameter, as it is held, in a shape."""
        held = self.weights.held(name)
        if not isinstance(held, Palette):
            return shared(name, held.reshape(shape or held.shape))
        # The operands as macOS 15 and later take them.
        indices = held.indices.reshape(shape or held.indices.shape)
        lut = held.colours.reshape(*[1] * indices.ndim, -1, 1)
        return mb.constexpr_lut_to_dense(
            indices=shared(f"{name}.indices", indices), lut=shared(f"{name}.lut", lut)
        )

    def linear(self, x: Var, name: str) -> Var:
        """Compute ``W @ x + b``, scaled if it is a query; the projections to keys have no bias."""
        return mb.conv(
            x=x,
            weight=self.parameter(f"{name}.weight", (-1, x.shape[1], 1, 1)),
            bias=self.parameter(f"{name}.bias") if f"{name}.bias" in self.weights else None,
            pad_type="valid",
            name=_identifier(name),
        )

    def convolution(self, x: Var, name: str, *, stride: int) -> Var:
        """Convolve over positions with kernel 3 and one column of padding at both ends."""
        return mb.conv(
            x=x,
            weight=self.parameter(f"{name}.weight", (-1, x.shape[1], 1, 3)),
            bias=self.parameter(f"{name}.bias"),
            pad_type="custom",
            pad=[0, 0, 1, 1],
            strides=[1, stride],
            name=_identifier(name),
        )

    def layer_norm(self, x: Var, name: str) -> Var:
        """Normalise each position's channels."""
        norm = self.meta.norms[name]
        return mb.layer_norm(
            x=mb.mul(x=x, y=np.float16(norm.scale)),
            axes=[1],
            gamma=self.parameter(f"{name}.weight"),
            beta=self.parameter(f"{name}.bias"),
            epsilon=np.float16(norm.epsilon),
            name=_identifier(name),
        )

    def feed_forward(self, x: Var, block: str) -> Var:
        """Compute a layer norm, then two linear layers with an exact GELU between them."""
        y = self.linear(self.layer_norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")
        return self.linear(mb.gelu(x=y, mode="EXACT"), f"{block}.mlp.2")


def concat(values: Sequence[Var], axis: int) -> Var:
    """Concatenate tensors; a single one is returned as it is."""
    return mb.concat(values=values, axis=axis) if len(values) > 1 else values[0]


def cut(x: Var, axis: int, start: int, stop: int) -> Var:
    """Slice one axis of a tensor of rank 4."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    begin, end = [0] * 4, list(x.shape)
    begin[axis], end[axis] = start, stop
    return mb.slice_by_index(x=x, begin=begin, end=end)


def _identifier(name: str) -> str:
    """Make a parameter's name valid in MIL; for multifunction packages coremltools does not."""
    return name.replace(".", "_")


def shared(name: str, values: NDArray[Any]) -> Var:
    """Add a float16 constant; functions of a package that use the same name share it on disk."""
    constant = mb.const(val=values)
    constant.op.weight_id = name
    return constant


def attend_by_head(q: Var, k: Var, v: Var, *, n_head: int, mask: Var) -> Var:
    """Attend head by head, with at most 512 queries at a time.

    `q` is (1, n_state, 1, n), `k` (1, m, 1, n_state), `v` (1, n_state, 1, m); `mask` (1, m, 1, 1)
    is added to the scores. Returns (1, n_state, 1, n).
    """
    n = q.shape[3]
    ks = _split(k, n_head, axis=3)
    vs = _split(v, n_head, axis=1)
    chunks = []
    for start in range(0, n, _MOST_QUERIES):
        qs = _split(cut(q, 3, start, min(n, start + _MOST_QUERIES)), n_head, axis=1)
        heads = zip(qs, ks, vs, strict=True)
        chunks.append(concat([_attend_one(*head, mask) for head in heads], axis=1))
    return concat(chunks, axis=3)


def _attend_one(q: Var, k: Var, v: Var, mask: Var) -> Var:
    """Attend with one head: q, v (1, d, 1, n), k (1, m, 1, d)."""
    scores = mb.einsum(values=(k, q), equation="nchw,nwhu->nchu")  # (1, m, 1, n)
    weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=1)
    return mb.einsum(values=(v, weights), equation="nchw,nwhu->nchu")


def _split(x: Var, n: int, *, axis: int) -> list[Var]:
    return list(mb.split(x=x, num_splits=n, axis=axis)) if n > 1 else [x]


Inputs = Mapping[str, Var]
Outputs = dict[str, Var]

TARGET = ct.target.iOS18
"""macOS 15 and later, the first with several functions in a package."""

_PASSES = (
    "common::const_elimination",
    "common::cast_optimization",
    "common::dead_code_elimination",
    "common::const_deduplication",
    "common::dedup_op_and_var_names",
)
"""What coremltools does to the graphs. The rest of its ninety passes, which clean up after other
frameworks, change nothing in graphs that were written for Core ML, and take five times as long."""


def encode(function: Function, layers: Layers, inputs: Inputs) -> Outputs:
    """Run the layers of one part; the first starts with the log-mel, the last ends with a norm.

    Positions that the mask hides get numbers too, but no position attends to them.
    """
    dims, part = layers.dims, layers.meta.layers[function.part]
    silence = layers.silence if function.n_ctx < dims.n_audio_ctx else None
    x = _front(layers, inputs) if function.part == 0 else inputs["hidden"]
    new: dict[str, list[Var]] = {t.name: [] for t in function.outputs if t.name != "encoded"}
    for at, layer in enumerate(part):
        block = f"encoder.blocks.{layer}"
        y = layers.layer_norm(x, f"{block}.attn_ln")
        context = _extended(y, layer, layers, silence)
        keys = layers.linear(context, f"{block}.attn.key")
        keys = mb.transpose(x=keys, perm=[0, 3, 2, 1])
        values = layers.linear(context, f"{block}.attn.value")
        if new:
            n = function.outputs[-1].shape[3]
            new["new_k"].append(cut(keys, 1, 0, n))
            new["new_v"].append(cut(values, 3, 0, n))
        if function.kind == "resume":
            keys = concat([cut(inputs["kept_k"], 0, at, at + 1), keys], axis=1)
            values = concat([cut(inputs["kept_v"], 0, at, at + 1), values], axis=3)
        attended = attend_by_head(
            layers.linear(y, f"{block}.attn.query"),
            keys,
            values,
            n_head=dims.n_audio_head,
            mask=inputs["mask"],
        )
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.attn.out"))
        x = mb.add(x=x, y=layers.feed_forward(x, block))
    if part.stop == dims.n_audio_layer:
        x = layers.layer_norm(x, "encoder.ln_post")
    return {"encoded": x, **{name: concat(each, axis=0) for name, each in new.items()}}


def _extended(x: Var, layer: int, layers: Layers, silence: SilenceStates | None) -> Var:
    """Append the states of silence of this layer, and copies of the last as padding."""
    if silence is None:
        return x
    states = silence.states[layer]
    more = padded(len(states)) - len(states)
    rows = np.pad(states, ((0, more), (0, 0)), mode="edge").T[None, :, None, :]
    return concat([x, shared(f"silence.{layer}", rows)], axis=3)


def _front(layers: Layers, inputs: Inputs) -> Var:
    """Two convolutions, of which the second halves the rate, and the positional embedding."""
    x = mb.gelu(x=layers.convolution(inputs["mel"], "encoder.conv1", stride=1), mode="EXACT")
    x = mb.gelu(x=layers.convolution(x, "encoder.conv2", stride=2), mode="EXACT")
    if "positions" in inputs:
        return mb.add(x=x, y=inputs["positions"])
    n = x.shape[3]
    table = layers.weights["encoder.positional_embedding"][:n].astype(np.float16)
    # Copies beyond the trained context, where the mask hides the positions.
    embedding = np.pad(table, ((0, n - len(table)), (0, 0)), mode="edge").T[None, :, None, :]
    return mb.add(x=x, y=shared(f"encoder.positional_embedding.{n}", embedding))


def save_package(
    path: Path,
    functions: Sequence[Function],
    meta: Meta,
    weights: HeldWeights,
    silence: SilenceStates | None,
) -> None:
    """Write one package. Raises `ModelError` if float16 cannot hold a weight, or `OSError`."""
    layers = Layers(meta, weights, silence)
    program = Program()
    for function in functions:
        program.add_function(function.name, mil_function(function, layers))
    # Core ML tells the devices of no other function.
    program.default_function_name = functions[0].name
    program.export_as_multifunction = True
    # coremltools prints progress bars, and leaves its temporary folder to the garbage collector.
    with redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=TARGET,
            compute_precision=ct.precision.FLOAT32,  # convert nothing: all is float16 already
            pass_pipeline=ct.PassPipeline(list(_PASSES), "cleaning"),
            skip_model_load=True,
            package_dir=str(path),  # without it, a copy stays in the temporary folder
        )


def mil_function(function: Function, layers: Layers) -> MilFunction:
    """Make coremltools' form of a function, not yet part of a program."""
    inputs = {t.name: mb.placeholder(t.shape, dtype=types.fp16) for t in function.inputs}
    with MilFunction(inputs, opset_version=TARGET) as made:
        outputs = encode(function, layers, made.inputs)
        for name, value in outputs.items():
            value.set_name(name)
        made.set_outputs(list(outputs.values()))
    return made
