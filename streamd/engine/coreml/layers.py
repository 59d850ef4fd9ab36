"""Whisper's layers and its attention as operations of coremltools' MIL builder.

Tensors are (1, channels, 1, positions), as the Neural Engine wants them: a linear layer is a 1x1
convolution. Weights are float16 or palettes; functions of a package that use the same parameter
share one copy of it on disk. Operations are named after their parameters, so that plans and errors
of Core ML can be read.

Attention comes in two forms. The encoder attends one head at a time with keys along the channel
axis, as the Neural Engine wants it (Apple, ``coreai-models``: neural_engine_rules.md;
apple/ml-ane-transformers). The decoder has few queries and attends with all heads in one matrix
product: its graphs have a fraction of the operations, so they compile faster, and
argmaxinc/WhisperKit runs such graphs on the Neural Engine, too. Queries come scaled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Var, types
from numpy.typing import NDArray

from streamd.engine import Weights
from streamd.engine.coreml.package import Meta
from streamd.engine.coreml.rounding import is_compressible, palette
from streamd.engine.padding import Bank
from streamd.errors import ModelError

Half = NDArray[np.float16]

_MOST_QUERIES = 512
"""The score matrix of more queries does not fit into the Neural Engine's own memory."""


class Layers:
    """A model's layers, for the functions of one package."""

    def __init__(self, meta: Meta, weights: Weights, bank: Bank | None = None) -> None:
        self.meta, self.dims, self.weights, self.bank = meta, meta.dims, weights, bank
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

    `q` is (1, n_state, 1, n), `k` and `v` (1, n_state, 1, m); `mask` (1, m, 1, 1) is added to the
    scores. Returns (1, n_state, 1, n).
    """
    n = q.shape[3]
    ks = _split(mb.transpose(x=k, perm=[0, 3, 2, 1]), n_head, axis=3)
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
