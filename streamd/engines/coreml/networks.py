"""Whisper's encoder and decoder as Core ML functions, and the packages that hold them.

The graphs are operations of coremltools' MIL builder. Tensors are (1, channels, 1, positions), as
the Neural Engine wants them: a linear layer is a 1x1 convolution. Weights are float16 or palettes;
functions of a package that use the same parameter share one copy of it on disk. Operations are
named after their parameters, so that plans and errors of Core ML can be read.

Attention comes in two forms. The encoder attends one head at a time with keys along the channel
axis, as the Neural Engine wants it (Apple, ``coreai-models``: neural_engine_rules.md;
apple/ml-ane-transformers). The decoder has few queries and attends with all heads in one matrix
product: its graphs have a fraction of the operations, so they compile faster, and
argmaxinc/WhisperKit runs such graphs on the Neural Engine, too. Queries come scaled.

The decoder has neither gather nor scatter, and all shapes are static: the host looks up embeddings,
a product with a one-hot matrix writes new keys into their columns, and masks say what each token
sees. `Function` documents the tensors of each function; here is how they depend on each other.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
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

from streamd.engines.coreml.package import Function, FunctionKind, Meta, logit_chunks, padded
from streamd.engines.coreml.rounding import is_compressible, palette
from streamd.errors import ModelError
from streamd.models import Weights
from streamd.models.model import OUTPUT
from streamd.models.silence import SilenceStates

Half = NDArray[np.float16]

_MOST_QUERIES = 512
"""The score matrix of more queries does not fit into the Neural Engine's own memory."""


class Layers:
    """A model's layers, for the functions of one package."""

    def __init__(self, meta: Meta, weights: Weights, silence: SilenceStates | None = None) -> None:
        self.meta, self.dims, self.weights, self.silence = meta, meta.dims, weights, silence
        self._halves: dict[str, Half] = {}
        self._palettes: dict[str, dict[str, NDArray[Any]]] = {}

    def constant(self, name: str, values: NDArray[Any]) -> Var:
        """Add a float16 tensor; those of one name are stored once. Raises `ModelError`."""
        return _shared(name, self._half(name, values))

    def weight(self, name: str, values: NDArray[Any]) -> Var:
        """Add a float16 tensor as `constant` does, compressed if it is large enough."""
        if name not in self._palettes:
            half = self._half(name, values)
            if self.meta.bits == 16 or not is_compressible(half):
                return _shared(name, half)
            # The operands as macOS 15 and later take them.
            colours, indices = palette(half, self.meta.bits)
            index = types.nptype_from_builtin(types.string_to_builtin(f"uint{self.meta.bits}"))
            lut = colours.reshape(*[1] * half.ndim, -1, 1)
            self._palettes[name] = {"indices": indices.astype(index), "lut": lut}
            del self._halves[name]
        operands = self._palettes[name]
        return mb.constexpr_lut_to_dense(
            **{each: _shared(f"{name}.{each}", operands[each]) for each in ("indices", "lut")}
        )

    def linear(self, x: Var, name: str, *, scale: float = 1.0) -> Var:
        """Compute ``scale * (W @ x + b)``; the projections to keys have no bias."""
        factor = np.float32(scale)
        weight = self.weights[f"{name}.weight"][:, :, None, None] * factor
        bias = self.weights.get(f"{name}.bias")
        return mb.conv(
            x=x,
            weight=self.weight(f"{name}.weight", weight),
            bias=None if bias is None else self.constant(f"{name}.bias", bias * factor),
            pad_type="valid",
            name=_identifier(name),
        )

    def query(self, x: Var, name: str, *, n_head: int) -> Var:
        """Compute the scaled queries; the scale is a power of two in all of OpenAI's models."""
        return self.linear(x, f"{name}.query", scale=float((x.shape[1] // n_head) ** -0.5))

    def convolution(self, x: Var, name: str, *, stride: int) -> Var:
        """Convolve over positions with kernel 3 and one column of padding at both ends."""
        return mb.conv(
            x=x,
            weight=self.weight(f"{name}.weight", self.weights[f"{name}.weight"][:, :, None, :]),
            bias=self.constant(f"{name}.bias", self.weights[f"{name}.bias"]),
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
            gamma=self.constant(f"{name}.weight", self.weights[f"{name}.weight"]),
            beta=self.constant(f"{name}.bias", self.weights[f"{name}.bias"]),
            epsilon=np.float16(norm.epsilon),
            name=_identifier(name),
        )

    def feed_forward(self, x: Var, block: str) -> Var:
        """Compute a layer norm, then two linear layers with an exact GELU between them."""
        y = self.linear(self.layer_norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")
        return self.linear(mb.gelu(x=y, mode="EXACT"), f"{block}.mlp.2")

    def _half(self, name: str, values: NDArray[Any]) -> Half:
        if name not in self._halves:
            with np.errstate(over="ignore"):
                half = np.ascontiguousarray(values, np.float16)
            if not np.isfinite(half).all():
                raise ModelError(f"{name} holds values beyond float16's: Core ML cannot run it")
            self._halves[name] = half
        return self._halves[name]


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


def _shared(name: str, values: NDArray[Any]) -> Var:
    """Add a constant; functions of a package that use the same name share it on disk."""
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


def split_heads(x: Var, n_head: int) -> Var:
    """Reshape (1, n_state, 1, n) to (1, n_head, d_head, n), which moves no number."""
    _, n_state, _, n = x.shape
    return mb.reshape(x=x, shape=[1, n_head, n_state // n_head, n])


def attend_all_heads(q: Var, k: Var, v: Var, *, mask: Var) -> tuple[Var, Var]:
    """Attend with all heads at once.

    `q` is (1, n_head, d_head, n), `k` and `v` (1, n_head, d_head, m); `mask` (1, 1, n or 1, m) is
    added to the scores. Returns the result (1, n_state, 1, n) and the scores (1, n_head, n, m)
    without the mask.
    """
    _, n_head, d_head, n = q.shape
    scores = mb.matmul(x=q, y=k, transpose_x=True)
    weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=3)
    attended = mb.matmul(x=v, y=weights, transpose_y=True)
    return mb.reshape(x=attended, shape=[1, n_head * d_head, 1, n]), scores


Inputs = Mapping[str, Var]
Outputs = dict[str, Var]
Join = Callable[[Var, Var], tuple[Var, Var]]
"""Takes a layer's cache (1, n_head, d_head, T) and new columns (1, n_state, 1, k); returns the
cache to attend to, and what is kept."""

TARGET = ct.target.iOS18
"""macOS 15 and later, the first with states and with several functions in a package."""

_CROSS = ("cross_k", "cross_v")
_SELF = ("self_k", "self_v")
_PASSES = (
    "common::const_elimination",
    "common::cast_optimization",
    "common::dead_code_elimination",
    "common::const_deduplication",
    "common::dedup_op_and_var_names",
)
"""What coremltools does to the graphs. The rest of its ninety passes, which clean up after other
frameworks, change nothing in graphs that were written for Core ML, and take five times as long."""


# -- encoder --------------------------------------------------------------------------------------


def _encode(function: Function, layers: Layers, inputs: Inputs) -> Outputs:
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
            layers.query(y, f"{block}.attn", n_head=dims.n_audio_head),
            keys,
            values,
            n_head=dims.n_audio_head,
            mask=inputs["mask"],
        )
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.attn.out"))
        x = mb.add(x=x, y=layers.feed_forward(x, block))
    if part.stop == dims.n_audio_layer:
        x = layers.layer_norm(x, "encoder.ln_post")
        if function.kind == "encode":
            x = _extended(x, part.stop, layers, silence)
    return {"encoded": x, **{name: concat(each, axis=0) for name, each in new.items()}}


def _extended(x: Var, layer: int, layers: Layers, silence: SilenceStates | None) -> Var:
    """Append the states of silence of this layer, and copies of the last as padding."""
    if silence is None:
        return x
    states = silence.states[layer]
    more = padded(len(states)) - len(states)
    rows = np.pad(states, ((0, more), (0, 0)), mode="edge").T[None, :, None, :]
    return concat([x, layers.constant(f"silence.{layer}", rows)], axis=3)


def _front(layers: Layers, inputs: Inputs) -> Var:
    """Two convolutions, of which the second halves the rate, and the positional embedding."""
    x = mb.gelu(x=layers.convolution(inputs["mel"], "encoder.conv1", stride=1), mode="EXACT")
    x = mb.gelu(x=layers.convolution(x, "encoder.conv2", stride=2), mode="EXACT")
    if "positions" in inputs:
        return mb.add(x=x, y=inputs["positions"])
    n = x.shape[3]
    table = layers.weights["encoder.positional_embedding"][:n]
    # Copies beyond the trained context, where the mask hides the positions.
    embedding = np.pad(table, ((0, n - len(table)), (0, 0)), mode="edge").T[None, :, None, :]
    return mb.add(x=x, y=layers.constant(f"encoder.positional_embedding.{n}", embedding))


# -- decoder --------------------------------------------------------------------------------------


def _cross(function: Function, layers: Layers, inputs: Inputs) -> Outputs:
    """Return cross-attention's keys and values of all layers for the encoder's output."""
    names = [f"decoder.blocks.{layer}.cross_attn" for layer in range(layers.dims.n_text_layer)]
    n_head, encoded = layers.dims.n_text_head, inputs["encoded"]
    keys_values = (
        [split_heads(layers.linear(encoded, f"{name}.{which}"), n_head) for name in names]
        for which in ("key", "value")
    )
    return {name: concat(each, axis=0) for name, each in zip(_CROSS, keys_values, strict=True)}


def _step(function: Function, layers: Layers, inputs: Inputs) -> Outputs:
    """Run k tokens through all layers; an "align" returns no logits."""
    states = {state.name for state in function.states}
    caches = {
        name: mb.read_state(input=inputs[name]) if name in states else inputs[name]
        for name in (*_SELF, *_CROSS)
    }
    join = _put_into_state(inputs["put"]) if "put" in inputs else _append_to_input
    kept: dict[str, list[Var]] = {name: [] for name in _SELF}
    x, scores, n_head = inputs["x"], [], layers.dims.n_text_head
    for layer in range(layers.dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        cached = {name: cut(cache, 0, layer, layer + 1) for name, cache in caches.items()}
        y = layers.layer_norm(x, f"{block}.attn_ln")
        query = split_heads(layers.query(y, f"{block}.attn", n_head=n_head), n_head)
        keys, new_keys = join(cached["self_k"], layers.linear(y, f"{block}.attn.key"))
        values, new_values = join(cached["self_v"], layers.linear(y, f"{block}.attn.value"))
        kept["self_k"].append(new_keys)
        kept["self_v"].append(new_values)
        attended, _ = attend_all_heads(query, keys, values, mask=inputs["mask"])
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.attn.out"))
        y = layers.layer_norm(x, f"{block}.cross_attn_ln")
        query = split_heads(layers.query(y, f"{block}.cross_attn", n_head=n_head), n_head)
        attended, found = attend_all_heads(
            query, cached["cross_k"], cached["cross_v"], mask=inputs["cross_mask"]
        )
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.cross_attn.out"))
        x = mb.add(x=x, y=layers.feed_forward(x, block))
        scores += _alignment(found, layer, layers.meta)
    outputs: dict[str, Var] = {}
    if function.kind == "step":
        outputs |= _logits(layers.layer_norm(x, "decoder.ln"), layers)
    outputs["alignment"] = concat(scores, axis=1)
    for name, parts in kept.items():
        value = concat(parts, axis=0)
        if name in states:
            mb.coreml_update_state(state=inputs[name], value=value)
        else:
            outputs[name.replace("self", "new")] = value
    return outputs


def _put_into_state(put: Var) -> Join:
    """Return a function that puts new columns into a layer's cache, which is kept whole."""
    # 1 for each column that no token is written to; the same in all layers.
    unused = mb.sub(x=np.float16(1), y=mb.reduce_sum(x=put, axes=[2], keep_dims=True))

    def join(cache: Var, new: Var) -> tuple[Var, Var]:
        _, n_state, _, k = new.shape
        rows = mb.reshape(x=new, shape=[1, 1, n_state, k])
        moved = mb.reshape(x=mb.matmul(x=rows, y=put), shape=cache.shape)
        joined = mb.add(x=mb.mul(x=cache, y=unused), y=moved)
        return joined, joined

    return join


def _append_to_input(cache: Var, new: Var) -> tuple[Var, Var]:
    """Append new columns to a layer's cache, padded to T + 32; only the new ones are kept."""
    new = split_heads(new, cache.shape[1])
    k = new.shape[3]
    if padded(k) == k:
        return concat([cache, new], axis=3), new
    zeros = np.zeros((*new.shape[:3], padded(k) - k), np.float16)
    return concat([cache, new, mb.const(val=zeros)], axis=3), new


def _alignment(scores: Var, layer: int, meta: Meta) -> list[Var]:
    """Slice the scores (1, n_head, k, S) of a layer's alignment heads; neighbours share a slice."""
    runs: list[list[int]] = []
    for head in (head for at, head in meta.alignment_heads if at == layer):
        if runs and runs[-1][-1] + 1 == head:
            runs[-1].append(head)
        else:
            runs.append([head])
    return [cut(scores, 1, run[0], run[-1] + 1) for run in runs]


def _logits(x: Var, layers: Layers) -> dict[str, Var]:
    """Compute the logits in chunks of (1, k, 1, v): a token's logits are contiguous."""
    name = OUTPUT if OUTPUT in layers.weights else "decoder.token_embedding.weight"
    table = layers.weights[name]
    n, n_each = logit_chunks(len(table))
    outputs = {}
    for i in range(n):
        rows = table[i * n_each : (i + 1) * n_each]
        rows = np.pad(rows, ((0, n_each - len(rows)), (0, 0)))[:, :, None, None]
        chunk = mb.conv(x=x, weight=layers.weight(f"{name}.{i}", rows), pad_type="valid")
        outputs[f"logits{i}"] = mb.transpose(x=chunk, perm=[0, 3, 2, 1])
    return outputs


# -- packages -------------------------------------------------------------------------------------

_GRAPHS: Mapping[FunctionKind, Callable[[Function, Layers, Inputs], Outputs]] = {
    "encode": _encode,
    "resume": _encode,
    "cross": _cross,
    "step": _step,
    "align": _step,
}


def save_package(
    path: Path,
    functions: Sequence[Function],
    meta: Meta,
    weights: Weights,
    silence: SilenceStates | None,
) -> None:
    """Write one package. Raises `ModelError` if float16 cannot hold a weight, or `OSError`."""
    layers = Layers(meta, weights, silence)
    program = Program()
    for function in functions:
        program.add_function(function.name, mil_function(function, layers))
    # Core ML tells the devices of no other function.
    default = next((f for f in functions if f.kind == "step"), functions[0])
    program.default_function_name = default.name
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
    inputs |= {
        t.name: mb.state_tensor_placeholder(t.shape, dtype=types.fp16) for t in function.states
    }
    with MilFunction(inputs, opset_version=TARGET) as made:
        outputs = _GRAPHS[function.kind](function, layers, made.inputs)
        for name, value in outputs.items():
            value.set_name(name)
        made.set_outputs(list(outputs.values()))
    return made
