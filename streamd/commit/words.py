"""Comparing words of two hypotheses: what counts as the same word."""

import unicodedata
from collections.abc import Sequence
from itertools import takewhile

from streamd.types import Word

HEARD_OUT = 15
"""After so many frames (300 ms) of silence no word is half heard any more."""


def normalised(text: str) -> str:
    """The word without case, punctuation and blanks: "And," agrees with "and"."""
    letters = (c for c in text.casefold() if unicodedata.category(c)[0] not in "PZ")
    return "".join(letters) or text.strip()


def agreement(hypotheses: Sequence[Sequence[str]]) -> int:
    """Length of the longest common prefix of all the (normalised) word lists."""
    same = takewhile(lambda column: len(set(column)) == 1, zip(*hypotheses, strict=False))
    return sum(1 for _ in same)


def settled(words: Sequence[Word], before: int) -> int:
    """How many leading words end at frame `before` or earlier."""
    return sum(1 for _ in takewhile(lambda word: word.end <= before, words))
