"""The word error rate: the spoken words of a text, and the edits between two texts."""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

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


def n_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Count substituted, deleted and inserted words."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference):
        diagonal, row[0] = row[0], i + 1
        for j, other in enumerate(hypothesis):
            cost = min(diagonal + (word != other), row[j] + 1, row[j + 1] + 1)
            diagonal, row[j + 1] = row[j + 1], cost
    return row[-1]
