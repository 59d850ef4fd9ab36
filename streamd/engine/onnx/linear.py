"""Linear layers in the precisions that the graphs know: which operator, and its weights for it.

Int8 weights are symmetric: an integer in -127..127 and a scale. Activations are quantised while the
graph runs. Nothing here knows Whisper. Measurements behind the choice: docs/latency.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streamd.engine import Weights

Tensors = Mapping[str, NDArray[Any] | None]
_BLOCK = 64
"""Weights of an output that share a scale in `Linear.BLOCKS`, and activations of a row.

The largest block whose result does not depend, to the last bit, on how many rows a pass has: from
128 on ONNX Runtime sums one row in another order than several (1.31.1, AVX-512).
"""
_ZERO = 128
"""What `MatMulNBits` takes for zero in 8 bits, unless told otherwise."""


class Linear(Enum):
    """How a graph multiplies.

    `TENSOR`: int8, one scale for all activations of a call: the fastest for many rows, but a row's
    result depends on the others. `BLOCKS`: int8, scales for each row of its own: as good for few
    rows, the fastest for one, and each row comes out as if it were alone.
    """

    FLOAT32 = "float32"
    TENSOR = "int8 per tensor"
    BLOCKS = "int8 per block"


@dataclass(frozen=True, slots=True)
class Projection:
    """``x @ weight.T + bias``: (n_out, n_in) float32 and (n_out,) or no bias."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, weights: Weights, name: str, scale: float = 1.0) -> Self:
        """The layer of that name; Whisper's projections to keys have no bias."""
        weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        if scale == 1.0:
            return cls(weight, bias)
        factor = np.float32(scale)
        return cls(weight * factor, None if bias is None else bias * factor)

    @classmethod
    def stacked(cls, parts: Sequence[Self]) -> Self:
        """Several layers of one input as one, whose output is theirs one behind the other."""
        if len(parts) == 1:
            return parts[0]
        zeros = [np.zeros(len(part.weight), np.float32) for part in parts]
        biases = [
            z if part.bias is None else part.bias for part, z in zip(parts, zeros, strict=True)
        ]
        return cls(np.concatenate([part.weight for part in parts]), np.concatenate(biases))


def operands(kind: Linear, projection: Projection) -> tuple[str, Tensors, Mapping[str, int]]:
    """Operator, its inputs behind the activations (None: left out), and its attributes."""
    weight, bias = projection.weight, projection.bias
    if kind is Linear.FLOAT32:
        return "Gemm", {"weight": weight, "bias": bias}, {"transB": 1}
    n_out, n_in = weight.shape
    if kind is Linear.TENSOR:
        integers, scales = _quantised(weight)
        columns = np.ascontiguousarray(integers.T)
        tensors: Tensors = {"int8": columns, "scale": scales[:, 0], "zero": None, "bias": bias}
        return "DynamicQuantizeMatMul", tensors, {}
    n_blocks = -(-n_in // _BLOCK)
    padded = np.pad(weight, ((0, 0), (0, n_blocks * _BLOCK - n_in)))
    integers, scales = _quantised(padded.reshape(n_out * n_blocks, _BLOCK))
    shifted = (integers.astype(np.int16) + _ZERO).astype(np.uint8)
    blocks = shifted.reshape(n_out, n_blocks, _BLOCK)
    tensors = {"int8": blocks, "scale": scales[:, 0], "zero": None, "group": None, "bias": bias}
    accuracy = {"bits": 8, "block_size": _BLOCK, "accuracy_level": 4}  # 4: int8 activations
    return "MatMulNBits", tensors, {"K": n_in, "N": n_out, **accuracy}


def _quantised(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers in -127..127 and the scale (n, 1) of each row."""
    scales = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(rows / scales).astype(np.int8), scales
