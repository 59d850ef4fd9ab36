"""How compressed weights decode: the ``constexpr_...`` operations, in the forms of iOS 16 and 18.

Source: the definitions of these operations in apple/coremltools ``ops/defs/iOS16/constexpr_ops.py``
and ``iOS18/compression.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.coreml.interpreter.blobs import decoded
from tests.coreml.interpreter.operations import Array, Integers, UnsupportedError

_Numbers = NDArray[Any]


def affine_dequantize(
    quantized_data: Integers, zero_point: Integers, scale: _Numbers, axis: Integers
) -> Array:
    """``(data - zero_point) * scale``, the latter two along an axis or for all; iOS 16."""
    shape = [1] * quantized_data.ndim
    shape[int(axis)] = -1
    zero, step = (np.asarray(each, np.float32).reshape(shape) for each in (zero_point, scale))
    return (quantized_data.astype(np.float32) - zero) * step


def blockwise_shift_scale(data: Integers, scale: _Numbers, offset: _Numbers | None = None) -> Array:
    """``(data - offset) * scale``, the latter two for each block of values; iOS 18."""
    values = data.astype(np.float32)
    if offset is not None:
        values = values - _repeated(offset, data.shape)
    return values * _repeated(scale, data.shape)


def lut_to_dense(
    indices: Integers,
    lut: _Numbers,
    shape: Integers | None = None,
    vector_axis: Integers | None = None,
) -> Array:
    """Look numbers up in a palette.

    iOS 16: one `lut` (n,), `indices` packed into bytes, and the `shape` of what comes out. iOS 18:
    a palette for each block, `lut` (..., n, 1), and `indices` as they are.
    """
    if shape is not None:
        n_bits = len(lut).bit_length() - 1
        n = int(np.prod(shape))
        packed = decoded(indices.view(np.uint8), f"uint{n_bits}", n)
        palette: Array = lut.astype(np.float32)
        dense: Array = palette[packed].reshape([int(size) for size in shape])
        return dense
    if lut.shape[-1] != 1:
        raise UnsupportedError("a palette of vectors")
    which = [
        np.arange(n) * blocks // n for n, blocks in zip(indices.shape, lut.shape, strict=False)
    ]
    palettes: Array = lut[..., 0].astype(np.float32)
    looked_up: Array = palettes[(*np.ix_(*which), indices.astype(np.intp))]
    return looked_up


def _repeated(parameters: _Numbers, shape: tuple[int, ...]) -> Array:
    """One parameter for each value, where there is one for each block."""
    repeated = parameters.astype(np.float32)
    for axis, n in enumerate(shape):
        repeated = np.repeat(repeated, n // repeated.shape[axis], axis)
    return repeated


DECODERS: Mapping[str, Callable[..., Array]] = {
    "constexpr_affine_dequantize": affine_dequantize,
    "constexpr_blockwise_shift_scale": blockwise_shift_scale,
    "constexpr_lut_to_dense": lut_to_dense,
}
