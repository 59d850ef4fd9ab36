"""Find where voices begin and end, from the frame probabilities of the segmentation model."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Activity = NDArray[np.bool_]
"""(n, 3): whether each local speaker talks in each of n frames."""
Chances = NDArray[np.float32]
"""(n, 3): how probable it is that each local speaker talks in each of n frames."""
Places = tuple[tuple[int, int], ...]
"""Each the first frame and the first after it."""
Describe = Callable[[NDArray[np.bool_]], NDArray[np.float32]]
"""Returns an embedding (k, 256) of the voice in each of k choices of frames (k, n)."""

SHIFT, BESIDE, LEAST_BESIDE = 0.25, 50, 25
"""Split a voice where the mean speaker probabilities before and after differ by `SHIFT`, although
the segmentation goes on with one local speaker. Compare up to `BESIDE` frames a side, at least
`LEAST_BESIDE`."""
DIP, COARSE = 0.18, 5
"""Two adjacent seconds of a voice are two people's if the cosine of their embeddings is lower by
`DIP` than on average so far (0.46 in clean recordings, 0.3 in a far room, with deviations of 0.1).
Every `COARSE` frames, a split is tried."""


def runs(active: NDArray[np.bool_], gap: int = 1) -> list[Places]:
    """Return the runs of true frames in `active` (n,), grouped across gaps shorter than `gap`."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0)).tolist()
    groups: list[Places] = []
    for place in zip(edges[::2], edges[1::2], strict=True):
        if groups and place[0] - groups[-1][-1][1] < gap:
            groups[-1] += (place,)
        else:
            groups.append((place,))
    return groups


def shifts(chances: Chances) -> list[int]:
    """Return the frames of `chances` (n, 3) at which the local speakers change, in order."""
    sums = np.zeros((len(chances) + 1, 3))
    sums[1:] = (chances / np.maximum(chances.sum(1, keepdims=True), 1e-9)).cumsum(0)
    at = np.arange(LEAST_BESIDE, len(chances) - LEAST_BESIDE + 1)
    first, after = np.maximum(at - BESIDE, 0), np.minimum(at + BESIDE, len(chances))
    left = (sums[at] - sums[first]) / (at - first)[:, None]
    right = (sums[after] - sums[at]) / (after - at)[:, None]
    return _highest(at, np.abs(left - right).sum(1) / 2 - SHIFT)


def turning(usable: NDArray[np.bool_], describe: Describe, heard: NDArray[np.float64]) -> list[int]:
    """Return the frames at which a voice, of the frames `usable` (n,), becomes another person's.

    The cosines of its adjacent seconds are added to those `heard` (2,): their sum and number.
    """
    frames = np.flatnonzero(usable)
    at = np.arange(LEAST_BESIDE, len(frames) - LEAST_BESIDE + 1, COARSE)
    if not at.size:
        return []
    beside = np.zeros((2, len(at), len(usable)), np.bool_)
    for left, right, i in zip(*beside, at, strict=True):
        left[frames[max(0, i - BESIDE) : i]] = right[frames[i : i + BESIDE]] = True
    left, right = np.split(describe(beside.reshape(-1, len(usable))), 2)
    cosines = (left * right).sum(1)
    heard += cosines.sum(), len(at)
    return [int(frames[cut]) for cut in _highest(at, heard[0] / heard[1] - DIP - cosines)]


def _highest(at: NDArray[np.int64], by: NDArray[np.float64]) -> list[int]:
    """Return the local maxima of `by` (n,) that are above 0, as places of `at` (n,), in order."""
    found, by = [], by.copy()
    while by.size and by.max() >= 0:
        best = int(at[by.argmax()])
        found.append(best)
        by[np.abs(at - best) <= LEAST_BESIDE] = -1
    return sorted(found)
