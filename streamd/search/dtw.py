"""Dynamic time warping: the cheapest monotonic path through a matrix of costs.

Cells on an anti-diagonal do not depend on each other, so numpy fills one diagonal at a time. Costs
add up in float64 and the path prefers later columns, as in openai/whisper ``timing.py``, so that
times are the same: there float32 is written, but numba makes float64 of it.
"""

import numpy as np
from numpy.typing import NDArray


def warp(cost: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the path from the first to the last cell of a cost matrix (n, m), both at least 1.

    Returns
    -------
    the path's rows and columns, each (length,): from one cell to the next the row, the column or
    both grow by one
    """
    total = cumulative(cost)
    i, j = cost.shape
    path = [(i - 1, j - 1)]
    while i > 1 or j > 1:
        corner, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        if left <= corner and left <= above:
            j -= 1
        elif above < corner:
            i -= 1
        else:
            i, j = i - 1, j - 1
        path.append((i - 1, j - 1))
    rows, columns = np.array(path[::-1], np.int64).T
    return rows, columns


def cumulative(cost: NDArray[np.floating]) -> NDArray[np.float64]:
    """The cost of the cheapest path to each cell, (n + 1, m + 1) with a border of infinity.

    One step down an anti-diagonal is m cells in the flat table, and m - 1 in the flat costs.
    """
    n, m = cost.shape
    added = np.ascontiguousarray(cost, np.float64).ravel()
    total = np.full((n + 1) * (m + 1), np.inf)
    total[0] = 0.0
    for diagonal in range(2, n + m + 1):
        first, last = max(1, diagonal - m), min(n, diagonal - 1)
        up, down = (first - 1) * m + diagonal, (last - 1) * m + diagonal
        before = np.minimum(total[up - 2 : down - 1 : m], total[up - 1 : down : m])
        before = np.minimum(before, total[up + m - 1 : down + m : m])
        at, end = ((i - 1) * (m - 1) + diagonal - 2 for i in (first, last))
        total[up + m : down + m + 1 : m] = before + added[at : end + 1 : max(1, m - 1)]
    return total.reshape(n + 1, m + 1)
