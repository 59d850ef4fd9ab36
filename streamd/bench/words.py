"""Words as they are compared: which spoken words a text has, and which of two texts are the same.

The alignment is the edit distance's, as jiwer has it (tests compare them); of several that cost the
same it is the one whose matches come first, since a partial is the beginning of a final.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

Pair = tuple[int | None, int | None]
"""Places of a word in the reference and in the hypothesis; None: the other one lacks it."""

_APART = re.compile(r"[^\w']+|_")
_SAME = {"oh": "zero"}
"""Both are how a 0 is read aloud."""


def spoken(text: str) -> list[str]:
    """The words that a text stands for: without case, punctuation and ``...``."""
    words = (word.strip("'") for word in _APART.split(text.casefold()))
    return [_SAME.get(word, word) for word in words if word]


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Pair the words of two texts with as few edits as possible.

    Returns
    -------
    pairs in order; both places of a pair are given for equal and for substituted words
    """
    n, m = len(reference), len(hypothesis)
    rest = [[0] * (m + 1) for _ in range(n + 1)]  # edits between what follows i and j
    for i in range(n, -1, -1):
        for j in range(m, -1, -1):
            if i == n or j == m:
                rest[i][j] = n - i + m - j
            else:
                changed = reference[i] != hypothesis[j]
                rest[i][j] = min(
                    rest[i + 1][j + 1] + changed, rest[i + 1][j] + 1, rest[i][j + 1] + 1
                )
    pairs: list[Pair] = []
    i = j = 0
    while i < n or j < m:
        both = i < n and j < m
        if both and rest[i][j] == rest[i + 1][j + 1] + (reference[i] != hypothesis[j]):
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif i < n and rest[i][j] == rest[i + 1][j] + 1:
            pairs.append((i, None))
            i += 1
        else:
            pairs.append((None, j))
            j += 1
    return pairs


def n_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Substituted, missing and invented words."""
    pairs = align(reference, hypothesis)
    return sum(i is None or j is None or reference[i] != hypothesis[j] for i, j in pairs)


def erased(texts: Sequence[str | Sequence[str]]) -> int:
    """How much of each text, in its items, is gone or changed in the next one."""
    return sum(len(old) - _common(old, new) for old, new in pairwise(texts))


def _common(old: str | Sequence[str], new: str | Sequence[str]) -> int:
    n = 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        n += 1
    return n
