"""How words are written: marks at their ends, capitals, and numbers that were dictated."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from streamd.types import Word, text_of
from streamd.whisper.marks import MARKS


def split_mark(word: Word) -> tuple[Word, Word] | None:
    """The word and the mark at its end, or None if it has none."""
    if not 0 < word.n_mark < len(word.tokens):
        return None
    text, tokens, n = word.text, word.tokens, word.n_mark
    bare = replace(word, text=text[:-1], tokens=tokens[:-n], n_mark=0)
    return bare, replace(word, text=text[-1], tokens=tokens[-n:], start=word.end, n_mark=0)


def capitalised(word: Word) -> Word:
    """The word with a capital, unless it has one somewhere ("iPhone")."""
    bare = word.text.lstrip()
    if bare != bare.lower():
        return word
    return replace(word, text=word.text.removesuffix(bare) + bare[:1].upper() + bare[1:])


LEAST_DIGITS = 3
"""Digits in a row that are one number. Of two, each may be a number of its own: "for 5 6 weeks"."""
_HYPHENATED = re.compile(r"\d(-\d)*(-0\d)?(-\d)*")
"""Of two digits, "oh three" may be written as one: "0-1-8-03". "10-9-8-7" is no number."""
LEAST_HYPHENATED = 5
"""Digits with hyphens between them that are one number. Fewer may be a formation: "4-2-3-1"."""


def with_numbers(words: Iterable[Word]) -> tuple[Word, ...]:
    """Join digits that stand alone, one after another, to the number that was dictated.

    Whether Whisper writes "9 0 2 1 0", "9-0-2-1-0" or "90210" is chance, and later utterances would
    copy it. As one word, the number is also committed as a whole.
    """
    # A hyphen begins a word: "1-0-0-0-1" is five.
    hyphenated = _runs(words, lambda last, word: word.text[:1] == "-" and not last.n_mark)
    numbers = ([_number(run)] if _is_dictated(text_of(run)) else run for run in hyphenated)
    digits = _runs(
        chain.from_iterable(numbers),
        lambda last, word: _is_digit(last.text) and _is_digit(word.text.rstrip(MARKS)),
    )
    numbers = ([_number(run)] if len(run) >= LEAST_DIGITS else run for run in digits)
    return tuple(chain.from_iterable(numbers))


def _runs(words: Iterable[Word], continues: Callable[[Word, Word], bool]) -> list[list[Word]]:
    """Cut the words before each one that does not continue the last one."""
    runs: list[list[Word]] = []
    for word in words:
        if runs and continues(runs[-1][-1], word):
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _is_dictated(text: str) -> bool:
    bare = text.strip().rstrip(MARKS)
    return (
        _HYPHENATED.fullmatch(bare) is not None and len(bare.replace("-", "")) >= LEAST_HYPHENATED
    )


def _is_digit(text: str) -> bool:
    return text[:1] == " " and len(text) == 2 and text[1].isdecimal()


def _number(digits: Sequence[Word]) -> Word:
    return replace(
        digits[0],
        text=" " + "".join(digit.text.lstrip(" -") for digit in digits),
        end=digits[-1].end,
        prob=sum(digit.prob for digit in digits) / len(digits),
        tokens=tuple(token for digit in digits for token in digit.tokens),
        n_mark=digits[-1].n_mark,
    )
