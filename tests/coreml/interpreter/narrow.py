"""Operations as a processor may compute them that has nothing but half precision inside, too.

Which of these a Mac's units do is documented nowhere; others report each of them. ``statistics``:
layer norm squares and adds up in half precision (microsoft/onnxruntime #31626 is the overflow that
follows). ``sums``: matrix products and softmax do so, too, rounding their sums after 32 terms.
``flush``: what is below half precision's normal range is zero, in constants, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tests.coreml.interpreter.half import rounded
from tests.coreml.interpreter.operations import OPERATIONS, Array, Integers, Result

Narrow = Literal["flush", "statistics", "sums"]
_TERMS = 32
_SMALLEST_NORMAL = np.float32(2.0**-14)


def flushed(array: Array) -> Array:
    """Zero instead of what is subnormal in half precision."""
    return np.where(np.abs(array) < _SMALLEST_NORMAL, np.float32(0), array)


def layer_norm(
    x: Array, axes: Integers, gamma: Array, beta: Array, epsilon: Array | float = 1e-5
) -> Array:
    """Each intermediate result is in half precision; the sum of squares may be infinite."""
    (axis,) = (int(each) for each in axes)
    n = np.float32(x.shape[axis])
    shape = [-1 if each == axis else 1 for each in range(x.ndim)]
    centred = rounded(x - rounded(_added(x, axis) / n))
    variance = rounded(_added(rounded(np.square(centred)), axis) / n)
    root = rounded(1 / np.sqrt(rounded(variance + np.float32(epsilon))))
    normal = rounded(rounded(centred * root) * gamma.reshape(shape))
    return normal + beta.reshape(shape)


def softmax(x: Array, axis: Integers | int = -1) -> Array:
    """Powers, their sum and its inverse in half precision."""
    powers = rounded(np.exp(rounded(x - x.max(int(axis), keepdims=True))))
    return powers * rounded(1 / _added(powers, int(axis)))


def einsum(values: Sequence[Array], equation: str) -> Array:
    """As `operations.einsum`, in sums of 32 products."""
    x, y = (value.transpose(0, 2, 1, 3) for value in values)
    total: Array = np.zeros((), np.float32)
    for first in range(0, x.shape[-1], _TERMS):
        part = slice(first, first + _TERMS)
        total = rounded(total + x[..., part] @ y[..., part, :])
    return total.transpose(0, 2, 1, 3)


def conv(x: Array, weight: Array, bias: Array | None = None, **others: Any) -> Array:
    """As `operations.conv`, in groups of 32 channels."""
    plain = OPERATIONS["conv"]
    total: Array = np.zeros((), np.float32)
    for first in range(0, x.shape[1], _TERMS):
        part = slice(first, first + _TERMS)
        total = rounded(total + plain(x=x[:, part], weight=weight[:, part], **others))
    return total if bias is None else total + bias[:, None, None]


def _added(x: Array, axis: int) -> Array:
    total: Array = np.zeros((), np.float32)
    for first in range(0, x.shape[axis], _TERMS):
        part = np.take(x, range(first, min(first + _TERMS, x.shape[axis])), axis)
        total = rounded(total + part.sum(axis, keepdims=True))
    return total


NARROW: Mapping[Narrow, Mapping[str, Callable[..., Result]]] = {
    "flush": {},
    "statistics": {"layer_norm": layer_norm},
    "sums": {"softmax": softmax, "einsum": einsum, "conv": conv},
}
"""What replaces which operation."""
