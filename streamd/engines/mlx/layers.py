"""The layers of Whisper on MLX, with their weights on the device.

Arrays are (n, n_state) for n positions or tokens, keys and values (2, n_head, n, d_head).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from streamd.engines.mlx.arithmetic import Bits
from streamd.models import Weights

_GROUP = 64
"""Weights of a row that share a scale and an offset; Whisper's rows are multiples of 64."""


class LinearLayer:
    """``x @ W.T + b``, the weights (n_out, n_in) as they are or, in groups, in 8 or 4 bits."""

    def __init__(self, weight: mx.array, bias: mx.array, bits: Bits | None) -> None:
        self._bits, self._bias = bits, bias
        self._parts: tuple[mx.array, ...] = (weight,)
        if bits:
            self._parts = mx.quantize(weight, group_size=_GROUP, bits=bits)
        mx.eval(self._parts)

    def __call__(self, x: mx.array) -> mx.array:
        """Apply it to (n, n_in)."""
        if self._bits is None:
            return mx.addmm(self._bias, x, self._parts[0].T)
        weight, scales, offsets = self._parts
        y = mx.quantized_matmul(x, weight, scales, offsets, group_size=_GROUP, bits=self._bits)
        return y + self._bias

    def rows(self, at: mx.array) -> mx.array:
        """Return these rows of the weights, (k, n_in): the embeddings of tokens."""
        parts = [part[at] for part in self._parts]
        if self._bits is None:
            return parts[0]
        matrix, scales, offsets = parts
        return mx.dequantize(matrix, scales, offsets, group_size=_GROUP, bits=self._bits)


@dataclass(frozen=True, slots=True)
class WeightsOnDevice:
    """Moves weights to the device in `dtype`, one at a time; none stays lazy."""

    weights: Weights
    dtype: mx.Dtype

    def array(self, *names: str) -> mx.array:
        """Return a parameter, or several, of the same width, below each other."""
        values = np.concatenate([self.weights[name] for name in names])
        return evaluated(mx.array(values).astype(self.dtype))

    def linear(self, *names: str, bits: Bits | None = None) -> LinearLayer:
        """Return a linear layer, or several of the same input as one."""
        weight = self.array(*(f"{name}.weight" for name in names))
        zeros = np.zeros(len(weight) // len(names), np.float32)  # keys and embeddings have no bias
        biases = [self.weights.get(f"{name}.bias", zeros) for name in names]
        constant = mx.array(np.concatenate(biases)).astype(self.dtype)
        return LinearLayer(weight, evaluated(constant), bits)

    def norm(self, name: str) -> Callable[[mx.array], mx.array]:
        """Return a layer norm."""
        weight, constant = self.array(f"{name}.weight"), self.array(f"{name}.bias")
        return lambda x: mx.fast.layer_norm(x, weight, constant, 1e-5)


class TransformerBlock:
    """A block of the encoder or decoder, without the attention itself, which is `attend`."""

    def __init__(
        self, weights: WeightsOnDevice, name: str, n_head: int, bits: Bits | None = None
    ) -> None:
        """A decoder's block has parameters ``cross_attn``, too."""
        self._n_head = n_head
        self.attn_ln, self._mlp_ln = (
            weights.norm(f"{name}.attn_ln"),
            weights.norm(f"{name}.mlp_ln"),
        )
        kinds = (f"{name}.attn.{kind}" for kind in ("query", "key", "value"))
        self._projections = weights.linear(*kinds, bits=bits)
        self.out = weights.linear(f"{name}.attn.out", bits=bits)
        self._up, self._down = (weights.linear(f"{name}.mlp.{i}", bits=bits) for i in (0, 2))
        if f"{name}.cross_attn.out.weight" in weights.weights:
            self._cross_ln = weights.norm(f"{name}.cross_attn_ln")
            self._cross_query = weights.linear(f"{name}.cross_attn.query", bits=bits)
            self.cross_out = weights.linear(f"{name}.cross_attn.out", bits=bits)

    def projected(self, normalised: mx.array) -> mx.array:
        """Return queries, keys and values, (3, n_head, n, d_head)."""
        return by_head(self._projections(normalised), self._n_head, 3)

    def cross_queries(self, x: mx.array) -> mx.array:
        """Return queries for the sound, (n_head, n, d_head)."""
        return by_head(self._cross_query(self._cross_ln(x)), self._n_head, 1)[0]

    def with_mlp(self, x: mx.array) -> mx.array:
        """Add the feed-forward layers."""
        return x + self._down(gelu(self._up(self._mlp_ln(x))))


def by_head(x: mx.array, n_head: int, n_kinds: int) -> mx.array:
    """Return (n, n_kinds * n_state) as (n_kinds, n_head, n, d_head)."""
    n, width = x.shape
    return x.reshape(n, n_kinds, n_head, width // n_kinds // n_head).transpose(1, 2, 0, 3)


def attend(query: mx.array, both: mx.array, added: mx.array) -> mx.array:
    """Attend with (n_head, k, d_head) to keys and values; return (k, n_state).

    `added`, (1, n) or (k, n), is added to the scores: minus infinity where a query does not attend.
    """
    scale = query.shape[-1] ** -0.5
    (found,) = mx.fast.scaled_dot_product_attention(
        query[None], both[0:1], both[1:2], scale=scale, mask=added[None, None]
    )
    return found.swapaxes(0, 1).reshape(query.shape[1], -1)


def gelu(x: mx.array) -> mx.array:
    """Compute the exact GELU."""
    return x * ((1 + mx.erf(x * 0.5**0.5)) * 0.5)


def joined(parts: Sequence[mx.array], n: int | None = None) -> mx.array:
    """Join keys and values along their positions; cut or pad them to `n` of these."""
    some = [part for part in parts if part.shape[2]]
    found = mx.concatenate(some, axis=2)[:, :, :n]
    missing = 0 if n is None else n - found.shape[2]
    return mx.pad(found, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing else found


def evaluated(array: mx.array) -> mx.array:
    """Compute an array now: when its values are needed, MLX can do so only in this thread."""
    mx.eval(array)
    return array
