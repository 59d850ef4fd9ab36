"""Dynamic time warping: the cheapest monotonic path through a matrix of costs.

Ties are decided, and sums rounded, as openai/whisper ``timing.py`` does it, so that times are the
same. Cells on an anti-diagonal do not depend on each other: numpy fills one diagonal at a time.
"""

import numpy as np
from numpy.typing import NDArray

_DIAGONAL, _DOWN, _RIGHT = range(3)


def warp(cost: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the path from the first to the last cell of a cost matrix (n, m), both at least 1.

    Returns
    -------
    the path's rows and columns, each (length,): from one cell to the next the row, the column or
    both grow by one
    """
    steps = _steps(cost)
    i, j = cost.shape
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i -= int(step != _RIGHT)
        j -= int(step != _DOWN)
    rows, columns = np.array(path[::-1], np.int64).T
    return rows, columns


def _steps(cost: NDArray[np.floating]) -> NDArray[np.int8]:
    """How the cheapest way into each cell of the (n + 1, m + 1) table comes in.

    In the flat table a step down an anti-diagonal is m cells long, in the flat costs m - 1.
    """
    n, m = cost.shape
    flat_cost = np.ascontiguousarray(cost, np.float64).ravel()
    total = np.full((n + 1) * (m + 1), np.inf, np.float32)
    total[0] = 0.0
    steps = np.full((n + 1) * (m + 1), _DIAGONAL, np.int8)
    for diagonal in range(2, n + m + 1):
        first, last = max(1, diagonal - m), min(n, diagonal - 1)
        here, left = (slice(d + first * m, d + last * m + 1, m) for d in (diagonal, diagonal - 1))
        above, corner = (
            total[d + (first - 1) * m : d + (last - 1) * m + 1 : m]
            for d in (diagonal - 1, diagonal - 2)
        )
        start, stop = ((i - 1) * (m - 1) + diagonal - 2 for i in (first, last))
        added = flat_cost[start : stop + 1 : max(1, m - 1)]
        down = (above < corner) & (above < total[left])
        across = (corner < above) & (corner < total[left])
        total[here] = added + np.where(across, corner, np.where(down, above, total[left]))
        steps[here] = np.where(across, _DIAGONAL, np.where(down, _DOWN, _RIGHT))
    return steps.reshape(n + 1, m + 1)
