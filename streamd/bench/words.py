"""Words as they are compared: which spoken words a text has, and which of two texts are the same.

The alignment is the edit distance's, as jiwer has it (tests compare them); of several that cost the
same it is the one whose matches come first, since a partial is the beginning of a final.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import pairwise

Pair = tuple[int | None, int | None]
"""Places of a word in the reference and in the hypothesis; None: the other one lacks it."""

_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff])")
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which set no blanks between words."""


def spoken(text: str) -> list[str]:
    """The words that a text stands for, however they are spelled.

    Whisper's English normaliser removes case, punctuation and fillers, and unifies contractions,
    numbers and British spelling. It leaves open how digits are grouped ("10001 90210" and
    "1000190210" are the same when read aloud), so each digit of a number counts as one word. Where
    no blanks separate words each letter counts as one. Source: openai/whisper ``normalizers``.
    """
    return list(_spoken(text))


@lru_cache(maxsize=10_000)  # latencies look at each word of each partial
def _spoken(text: str) -> tuple[str, ...]:
    english, basic = normalizers()
    normal = basic(_UNSPACED.sub(r" \1 ", text)) if _UNSPACED.search(text) else english(text)
    words: list[str] = []
    for word in normal.split():
        if word.isdecimal():
            words += word
        elif word == "one":  # the normaliser's spelling of a 1 that stands alone
            words.append("1")
        elif any(map(str.isalnum, word)):
            words.append(word)
    return tuple(words)


@cache
def normalizers() -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return Whisper's text normalisers: for English, and for all other languages."""
    # Imported here because it takes a tenth of a second, which only measurements should pay. Python
    # warns of invalid escapes in the package's strings whenever it has to compile them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    return EnglishTextNormalizer(), BasicTextNormalizer()


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
