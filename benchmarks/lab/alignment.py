"""Which words of two texts belong together.

The alignment is that of the edit distance, as in jiwer. Of several alignments of the same cost it
is the one whose matches come first, because a partial is the beginning of a final.
"""

from collections.abc import Sequence

Pair = tuple[int | None, int | None]
"""Indices of a word in the reference and in the hypothesis; None where it is missing."""


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Pair the words of two texts with as few edits as possible.

    Returns
    -------
    pairs in order; equal and substituted words have both indices
    """
    rest = _edits_left(reference, hypothesis)
    pairs: list[Pair] = []
    i = j = 0
    while i < len(reference) and j < len(hypothesis):
        changed = reference[i] != hypothesis[j]
        # Pairing comes before deleting and inserting: the matches come as early as they can.
        if rest[i][j] == rest[i + 1][j + 1] + changed:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif rest[i][j] == rest[i + 1][j] + 1:
            pairs.append((i, None))
            i += 1
        else:
            pairs.append((None, j))
            j += 1
    pairs += [(left, None) for left in range(i, len(reference))]
    return pairs + [(None, left) for left in range(j, len(hypothesis))]


def _edits_left(reference: Sequence[str], hypothesis: Sequence[str]) -> list[list[int]]:
    """Return at [i][j] how many edits turn ``reference[i:]`` into ``hypothesis[j:]``."""
    n, m = len(reference), len(hypothesis)
    rest = [[n - i + m - j for j in range(m + 1)] for i in range(n + 1)]
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            changed = reference[i] != hypothesis[j]
            rest[i][j] = min(rest[i + 1][j + 1] + changed, rest[i + 1][j] + 1, rest[i][j + 1] + 1)
    return rest
