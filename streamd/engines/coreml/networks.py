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
from dataclasses import dataclass
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
from streamd.engines.coreml.rounding import HeldWeights, Palette, epsilon
from streamd.models.silence import SilenceStates

_MOST_QUERIES = 512
"""The score matrix of more queries does not fit into the Neural Engine's own memory."""
_PRODUCT = "nchw,nwhu->nchu"


@dataclass(frozen=True, slots=True)
class Layers:
    """A model's layers, for the functions of one package."""

    meta: Meta
    weights: HeldWeights
    silence: SilenceStates | None

    def parameter(self, name: str, *shape: int) -> Var:
        """Add a parameter, as it is held, in a shape."""
        held = self.weights.held(name)
        if not isinstance(held, Palette):
            return shared(name, held.reshape(shape))
        # The operands as macOS 15 and later take them.
        return mb.constexpr_lut_to_dense(
            indices=shared(f"{name}.indices", held.indices.reshape(shape)),
            lut=shared(f"{name}.lut", held.colours.reshape(*[1] * len(shape), -1, 1)),
        )

    def linear(self, x: Var, name: str, *, kernel: int = 1, stride: int = 1) -> Var:
        """Compute ``W @ x + b``, scaled if it is a query, or convolve over positions.

        The projections to keys have no bias. A kernel of 3 gets a column of padding at both ends.
        """
        return mb.conv(
            x=x,
            weight=self.parameter(f"{name}.weight", -1, x.shape[1], 1, kernel),
            bias=self.parameter(f"{name}.bias", -1) if f"{name}.bias" in self.weights else None,
            pad_type="custom" if kernel > 1 else "valid",
            pad=[0, 0, kernel // 2, kernel // 2],
            strides=[1, stride],
            name=name.replace(".", "_"),
        )

    def layer_norm(self, x: Var, name: str) -> Var:
        """Normalise each position's channels."""
        scale = self.meta.norms[name]
        return mb.layer_norm(
            x=mb.mul(x=x, y=np.float16(scale)),
            axes=[1],
            gamma=self.parameter(f"{name}.weight", -1),
            beta=self.parameter(f"{name}.bias", -1),
            epsilon=epsilon(scale),
            name=name.replace(".", "_"),
        )

    def attend(self, q: Var, k: Var, v: Var, mask: Var) -> Var:
        """Attend head by head, with at most 512 queries at a time.

        `q` is (1, n_state, 1, n), `k` (1, m, 1, n_state), `v` (1, n_state, 1, m); `mask`
        (1, m, 1, 1) is added to the scores. Returns (1, n_state, 1, n).
        """
        n, n_head = q.shape[3], self.meta.dims.n_audio_head
        ks, vs, chunks = split(k, n_head, axis=3), split(v, n_head, axis=1), []
        for start in range(0, n, _MOST_QUERIES):
            qs = split(cut(q, 3, start, min(n, start + _MOST_QUERIES)), n_head, axis=1)
            heads = []
            for one, its_k, its_v in zip(qs, ks, vs, strict=True):
                scores = mb.einsum(values=(its_k, one), equation=_PRODUCT)  # (1, m, 1, n)
                weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=1)
                heads.append(mb.einsum(values=(its_v, weights), equation=_PRODUCT))
            chunks.append(concat(heads, axis=1))
        return concat(chunks, axis=3)

    def front(self, inputs: Mapping[str, Var]) -> Var:
        """Two convolutions, of which the second halves the rate, and the positional embedding."""
        x = mb.gelu(x=self.linear(inputs["mel"], "encoder.conv1", kernel=3), mode="EXACT")
        x = self.linear(x, "encoder.conv2", kernel=3, stride=2)
        return mb.add(x=mb.gelu(x=x, mode="EXACT"), y=inputs["positions"])

    def with_silence(self, x: Var, layer: int) -> Var:
        """Append the states of silence of a layer, and copies of the last as padding."""
        assert self.silence is not None
        states = self.silence.states[layer]
        more = padded(len(states)) - len(states)
        rows = np.pad(states, ((0, more), (0, 0)), mode="edge").T[None, :, None, :]
        return concat([x, shared(f"silence.{layer}", rows)], axis=3)


def concat(values: Sequence[Var], axis: int) -> Var:
    """Concatenate tensors; a single one is returned as it is."""
    return mb.concat(values=values, axis=axis) if len(values) > 1 else values[0]


def split(x: Var, n: int, *, axis: int) -> list[Var]:
    """Split an axis into equal parts; a single one is the tensor itself."""
    return list(mb.split(x=x, num_splits=n, axis=axis)) if n > 1 else [x]


def cut(x: Var, axis: int, start: int, stop: int) -> Var:
    """Slice one axis of a tensor of rank 4."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    begin, end = [0] * 4, list(x.shape)
    begin[axis], end[axis] = start, stop
    return mb.slice_by_index(x=x, begin=begin, end=end)


def shared(name: str, values: NDArray[Any]) -> Var:
    """Add a float16 constant; functions of a package that use the same name share it on disk."""
    constant = mb.const(val=values)
    constant.op.weight_id = name
    return constant


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


def encode(function: Function, layers: Layers, inputs: Mapping[str, Var]) -> dict[str, Var]:
    """Run the layers of one part; the first starts with the log-mel, the last ends with a norm.

    Positions that the mask hides get numbers too, but no position attends to them.
    """
    dims, part = layers.meta.dims, layers.meta.layers[function.part]
    x = layers.front(inputs) if function.part == 0 else inputs["hidden"]
    new: dict[str, list[Var]] = {name: [] for name in function.outputs if name != "encoded"}
    for at, layer in enumerate(part):
        block = f"encoder.blocks.{layer}"
        y = layers.layer_norm(x, f"{block}.attn_ln")
        context = layers.with_silence(y, layer) if function.n_ctx < dims.n_audio_ctx else y
        keys = layers.linear(context, f"{block}.attn.key")
        keys = mb.transpose(x=keys, perm=[0, 3, 2, 1])
        values = layers.linear(context, f"{block}.attn.value")
        if new:
            n = function.outputs["new_v"][3]
            new["new_k"].append(cut(keys, 1, 0, n))
            new["new_v"].append(cut(values, 3, 0, n))
        if "kept_k" in inputs:
            keys = concat([cut(inputs["kept_k"], 0, at, at + 1), keys], axis=1)
            values = concat([cut(inputs["kept_v"], 0, at, at + 1), values], axis=3)
        queries = layers.linear(y, f"{block}.attn.query")
        attended = layers.attend(queries, keys, values, inputs["mask"])
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.attn.out"))
        y = layers.linear(layers.layer_norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")
        x = mb.add(x=x, y=layers.linear(mb.gelu(x=y, mode="EXACT"), f"{block}.mlp.2"))
    if part.stop == dims.n_audio_layer:
        x = layers.layer_norm(x, "encoder.ln_post")
    return {"encoded": x, **{name: concat(each, axis=0) for name, each in new.items()}}


def save_package(path: Path, functions: Sequence[Function], layers: Layers) -> None:
    """Write one package. Raises `ModelError` if float16 cannot hold a weight, or `OSError`."""
    program = Program()
    for function in functions:
        given = {name: mb.placeholder(of, dtype=types.fp16) for name, of in function.inputs.items()}
        with MilFunction(given, opset_version=TARGET) as made:
            outputs = encode(function, layers, made.inputs)
            for name, value in outputs.items():
                value.set_name(name)
            made.set_outputs(list(outputs.values()))
        program.add_function(function.name, made)
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
