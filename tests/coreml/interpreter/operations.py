"""What each operation of an ML program computes, in float32 numpy.

Just the operations that streamd's packages have. Written from the definitions in the documentation
of coremltools' MIL operators, not from streamd's builder. Knows no program and no rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engines.reference import gelu as exact_gelu

Array = NDArray[np.float32]
Integers = NDArray[np.integer[Any]]
Result = Array | list[Array]

_NO_PADDING = np.zeros(4, np.int32)
_ONES = np.ones(2, np.int32)


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Integers = _ONES,
    pad_type: str = "valid",
    pad: Integers = _NO_PADDING,
    dilations: Integers = _ONES,
    groups: Integers | int = 1,
) -> Array:
    """Correlate (n, c, h, w) with kernels (o, c, kh, kw): a matrix product for each tap."""
    assert pad_type in ("valid", "custom")
    assert int(groups) == int(np.max(dilations)) == 1
    if pad_type == "custom":
        top, bottom, left, right = (int(i) for i in pad)
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, c, h, w = x.shape
    o, _, kh, kw = weight.shape
    down, right = (int(i) for i in strides)
    height, width = (h - kh) // down + 1, (w - kw) // right + 1
    y = np.zeros((n, o, height * width), np.float32)
    for i in range(kh):
        for j in range(kw):
            taps = x[:, :, i : i + down * (height - 1) + 1 : down]
            taps = taps[..., j : j + right * (width - 1) + 1 : right]
            y += weight[:, :, i, j] @ taps.reshape(n, c, height * width)
    if bias is not None:
        y += bias[:, None]
    return y.reshape(n, o, height, width)


def layer_norm(
    x: Array, axes: Integers, gamma: Array, beta: Array, epsilon: Array | float
) -> Array:
    """Normalise over one axis to mean 0 and variance 1, then scale and shift."""
    (axis,) = (int(each) for each in axes)
    shape = [-1 if each == axis else 1 for each in range(x.ndim)]
    centred = x - x.mean(axis, keepdims=True)
    variance = np.square(centred).mean(axis, keepdims=True)
    y: Array = centred / np.sqrt(variance + np.float32(epsilon))
    return y * gamma.reshape(shape) + beta.reshape(shape)


def softmax(x: Array, axis: Integers | int) -> Array:
    """Softmax over one axis."""
    y: Array = np.exp(x - x.max(int(axis), keepdims=True))
    y /= y.sum(int(axis), keepdims=True)
    return y


def gelu(x: Array, mode: str) -> Array:
    """``x * Phi(x)``, or its approximation by a tanh, which no package should have."""
    if mode == "EXACT":
        return exact_gelu(x)
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    approximated: Array = x * np.float32(0.5) * (1 + np.tanh(inner))
    return approximated


def einsum(values: Sequence[Array], equation: str) -> Array:
    """The one equation that the Neural Engine has of its own."""
    assert equation == "nchw,nwhu->nchu"
    x, y = (value.transpose(0, 2, 1, 3) for value in values)
    product: Array = x @ y
    return product.transpose(0, 2, 1, 3)


def split(x: Array, axis: Integers | int, num_splits: Integers) -> list[Array]:
    """Cut an axis into equal parts."""
    return np.split(x, int(num_splits), int(axis))


def slice_by_index(x: Array, begin: Integers, end: Integers) -> Array:
    """A part of a tensor."""
    return x[tuple(slice(int(a), int(b)) for a, b in zip(begin, end, strict=True))]


def concat(values: Sequence[Array], axis: Integers | int, interleave: bool = False) -> Array:
    """Put tensors behind each other along an axis."""
    assert not interleave
    return np.concatenate(values, int(axis))


def transpose(x: Array, perm: Integers) -> Array:
    """Axes in another order; copied, so that what follows multiplies contiguous matrices."""
    return np.ascontiguousarray(x.transpose([int(axis) for axis in perm]))


def identity(x: Array) -> Array:
    """The value itself, under another name."""
    return x


def add(x: Array, y: Array) -> Array:
    """Sum, element by element."""
    return x + y


def mul(x: Array, y: Array) -> Array:
    """Product, element by element."""
    return x * y


OPERATIONS: Mapping[str, Callable[..., Result]] = {
    each.__name__: each
    for each in (
        *(conv, layer_norm, softmax, gelu, einsum, split, slice_by_index, concat, transpose),
        *(identity, add, mul),
    )
}
"""By MIL's names; so are the parameters."""

MOVES = frozenset({"split", "slice_by_index", "concat", "transpose", "identity"})
"""Operations whose results are values that they were given: there is nothing to round."""
