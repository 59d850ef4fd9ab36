"""Palettes for weights: 2**bits values for each tensor, chosen to be near to what they replace.

One-dimensional k-means (Lloyd). A float16 tensor has at most 65536 different values, so it is done
on their histogram, and costs the same for a large tensor as for a small one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_N_ROUNDS = 50
_LEAST_SIZE = 2048
"""Smaller tensors are not worth a palette; coremltools' own limit."""


@dataclass(frozen=True, slots=True)
class Palette:
    """`colours` (2**bits,) float16, ascending, and for each weight the index of its own."""

    colours: NDArray[np.float16]
    indices: NDArray[np.uint8]


def is_worth_it(weight: NDArray[np.float16]) -> bool:
    """Whether a tensor is large enough to be compressed."""
    return weight.size > _LEAST_SIZE


def palette(weight: NDArray[np.float16], bits: int) -> Palette:
    """The palette of a finite tensor for so many bits per weight, 8 at most."""
    codes = (weight + np.float16(0)).view(np.uint16)  # there are two zeros, of which one is left
    counts = np.bincount(codes.ravel(), minlength=1 << 16)
    there = np.flatnonzero(counts).astype(np.uint16)
    values = there.view(np.float16).astype(np.float64)
    order = np.argsort(values, kind="stable")
    there, values = there[order], values[order]
    centres = _centres(values, counts[there].astype(np.float64), 1 << bits)
    colours = centres.astype(np.float16)
    lookup = np.zeros(1 << 16, np.uint8)
    lookup[there] = np.searchsorted(_borders(colours.astype(np.float64)), values)
    return Palette(colours, lookup[codes])


def packed(indices: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Indices of so many bits without gaps between them, the lowest bit of the first one first."""
    each = np.unpackbits(indices.reshape(-1, 1), axis=1, count=bits, bitorder="little")
    return np.packbits(each, bitorder="little")


def _centres(
    values: NDArray[np.float64], counts: NDArray[np.float64], n: int
) -> NDArray[np.float64]:
    """`n` ascending centres of ascending values, the last ones repeated if `n` are too many."""
    if len(values) <= n:
        return np.pad(values, (0, n - len(values)), mode="edge")
    mass = np.concatenate([[0.0], np.cumsum(counts)])
    moment = np.concatenate([[0.0], np.cumsum(counts * values)])
    # To begin with, each stands for as much of the values' cube root density: best for many centres
    # (Panter and Dite 1951), so few rounds are needed.
    share = np.cumsum(np.cbrt(counts * np.gradient(values) ** 2))
    centres: NDArray[np.float64] = values[
        np.searchsorted(share, share[-1] * (np.arange(n) + 0.5) / n)
    ]
    for _ in range(_N_ROUNDS):
        cuts = np.concatenate([[0], np.searchsorted(values, _borders(centres)), [len(values)]])
        inside = np.diff(mass[cuts])
        moved = centres.copy()
        np.divide(np.diff(moment[cuts]), inside, out=moved, where=inside > 0)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _borders(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    borders: NDArray[np.float64] = (centres[1:] + centres[:-1]) / 2
    return borders
