"""The word error rate: the spoken words of a text, and the edits between two texts.

The alignment is that of the edit distance, as in jiwer. Of several alignments of the same cost it
is the one whose matches come first, because a partial is the beginning of a final.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

Pair = tuple[int | None, int | None]
"""Indices of a word in the reference and in the hypothesis; None where it is missing."""

_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff])")
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which put no spaces between words."""


def spoken(text: str) -> list[str]:
    """Return the words of a text as they are compared, whatever their spelling.

    Whisper's English normaliser removes case, punctuation and fillers, and unifies contractions,
    numbers and British spelling. It does not group digits ("10001 90210" and "1000190210" sound the
    same), so each digit of a number counts as a word. In scripts without spaces each letter does.
    Source: openai/whisper ``normalizers``.
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
    # Imported here because it takes a tenth of a second. Python warns of invalid escapes in the
    # package's strings whenever it compiles them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    return EnglishTextNormalizer(), BasicTextNormalizer()


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


def n_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Count substituted, deleted and inserted words."""
    pairs = align(reference, hypothesis)
    return sum(i is None or j is None or reference[i] != hypothesis[j] for i, j in pairs)
