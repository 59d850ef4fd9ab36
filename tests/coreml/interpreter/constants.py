"""How palettes decode: ``constexpr_lut_to_dense`` of iOS 18.

Source: its definition in apple/coremltools ``ops/defs/iOS18/compression.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.coreml.interpreter.operations import Array, Integers, UnsupportedError


def lut_to_dense(indices: Integers, lut: NDArray[Any]) -> Array:
    """Look numbers up in a palette for the whole tensor, `lut` (1, ..., 1, n, 1)."""
    if lut.size != lut.shape[-2]:
        raise UnsupportedError("a palette for each block, or of vectors")
    looked_up: Array = lut.ravel().astype(np.float32)[indices]
    return looked_up


DECODERS: Mapping[str, Callable[..., Array]] = {"constexpr_lut_to_dense": lut_to_dense}
