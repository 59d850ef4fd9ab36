"""How weights and layer norms are rounded for packages.

Weights are held in half precision, or as a palette of 256 values for each tensor.

LN(x, e) = LN(s x, s² e) for any s. With s a power of two no digit changes, but the sum of squares,
which half precision may not hold, and epsilon, which it may take for zero, change by s².
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import Bits
from streamd.errors import ModelError
from streamd.models import ModelDimensions, Weights

Half = NDArray[np.float16]

_N_COLOURS = 256
_MOST = 2.0**14
"""The largest sum of squares of a scaled input, a quarter of what float16 holds: other speech than
what was measured may be louder."""
_SMALLEST_NORMAL = 2.0**-14
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Palette:
    """A tensor of few values: `colours` (256,), ascending, and `indices` into them."""

    colours: Half
    indices: NDArray[np.uint8]


class HeldWeights(Mapping[str, NDArray[np.float32]]):
    """An encoder's weights as packages hold them, each read and rounded when it is first needed.

    As a mapping, it gives what they stand for, in float32: a package agrees with the reference to
    the last digits only if the reference computes with the same weights. Raises `ModelError` if
    float16 cannot hold one.
    """

    def __init__(self, dims: ModelDimensions, weights: Weights, bits: Bits) -> None:
        self._weights, self._bits = weights, bits
        self._scale = np.float32((dims.n_audio_state // dims.n_audio_head) ** -0.5)
        self._held: dict[str, Half | Palette] = {}

    def held(self, name: str) -> Half | Palette:
        """Return a tensor as it is stored; queries are scaled."""
        if name not in self._held:
            values = self._weights[name]
            with np.errstate(over="ignore"):
                half = (values * self._scale if ".query." in name else values).astype(np.float16)
            if not np.isfinite(half).all():
                raise ModelError(f"{name} holds values beyond float16's: Core ML cannot run it")
            is_table = half.ndim == 1 or "embedding" in name
            self._held[name] = half if self._bits == 16 or is_table else palette(half)
        return self._held[name]

    def drop(self, layers: range) -> None:
        """Forget what the parameters of some layers are held as, which takes memory."""
        blocks = tuple(f"encoder.blocks.{layer}." for layer in layers)
        self._held = {n: each for n, each in self._held.items() if not n.startswith(blocks)}

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        held = self.held(name)
        half = held.colours[held.indices] if isinstance(held, Palette) else held
        found = half.astype(np.float32)
        # Where the scale is no power of two, that rounds differently.
        return found / self._scale if ".query." in name else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def palette(weight: Half) -> Palette:
    """Return the palette of a finite tensor.

    Each value stands for an equal part of the cube root of the weights' density, which is the
    optimum for many values (Panter and Dite 1951): k-means from there on takes 4 % off the error.
    A float16 tensor has at most 65536 different numbers, so their histogram is enough, and a large
    tensor costs no more than a small one.
    """
    codes = (weight + np.float16(0)).view(np.uint16)  # adding 0 turns -0 into +0
    counts = np.bincount(codes.ravel(), minlength=1 << 16)
    used = np.flatnonzero(counts)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    used = used[np.argsort(every[used], kind="stable")]
    values, counts = every[used], counts[used]
    if len(values) > _N_COLOURS:
        share = np.cumsum(np.cbrt(counts * np.gradient(values) ** 2))
        parts = share[-1] * (np.arange(_N_COLOURS) + 0.5) / _N_COLOURS
        values = values[np.searchsorted(share, parts)]
    colours = np.pad(values, (0, _N_COLOURS - len(values)), mode="edge").astype(np.float16)
    # The nearest, and of equal ones the first.
    borders = (colours[1:].astype(np.float64) + colours[:-1]) / 2
    lookup = np.zeros(1 << 16, np.uint8)
    lookup[used] = np.searchsorted(borders, every[used])
    return Palette(colours, lookup[codes])


def norm_scale(largest: float) -> float:
    """Return the scale of a layer norm, from the largest sum of squares of its centred inputs."""
    if not 0 < largest < math.inf:
        return 1.0  # a model of zeros or nonsense
    return min(16.0, 2.0 ** math.floor(math.log2(_MOST / largest) / 2))  # more helps nobody


def epsilon(scale: float) -> np.float16:
    """Return what a layer norm with this scale adds to the variance.

    Where that would be subnormal the input is so large that it means nothing: the smallest
    variances of such norms are 0.03 in tiny.en and base, which it would change by 0.03 %.
    """
    found = np.float16(_EPSILON * scale**2)
    return found if found >= _SMALLEST_NORMAL else np.float16(0)
