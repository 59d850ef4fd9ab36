"""Linear layers, and their weights in int8: an integer in -127..127 and a scale for each output.

Activations are quantised while the graph runs. The measurements behind it: benchmarks/RESULTS.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamd.engine import Weights

_LARGEST = 127
"""Of the integers: the range is symmetric."""


class Linear(Enum):
    """How a graph multiplies.

    `TENSOR`: int8, one scale for all activations of a call: the fastest for many rows, but a row's
    result depends on the others. `ROWS`: int8, a scale for each row: each comes out, to the last
    bit, as if it were alone, for sums of integers know no rounding.
    """

    FLOAT32 = "float32"
    TENSOR = "int8 per tensor"
    ROWS = "int8 per row"


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


def row_offset(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what nearly all rows of an output layer share: (n_in,) float32, their rounded mean.

    A few columns of Whisper's token embedding are far from zero in every row (in tiny.en one is 30
    times as large as the median), and would take most of a row's 8 bits. Without the offset the
    rounding error is a third of that, in tiny.en and in base. The mean is rounded to multiples of
    2**-8, so that a matrix that was made from int8 rows and this offset has the same offset again.
    """
    steps = np.rint(matrix.mean(axis=0, dtype=np.float64) * 256)
    offset: NDArray[np.float32] = (steps / 256).astype(np.float32)
    return offset


def quantised(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(n_in, n_out) integers, as int8 operators want them, and the scale (n_out,) of each output.

    A weight is the integer times the scale.
    """
    scales = np.abs(weight).max(axis=1) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    integers = np.rint(weight / scales[:, None]).astype(np.int8)
    return np.ascontiguousarray(integers.T), scales
