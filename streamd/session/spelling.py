"""How words are written: marks at their ends, capitals, and numbers that were dictated."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from streamd.types import Word
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


_HYPHENS = re.compile(r" \d(-\d){4,}")
"""Five and more digits with hyphens between them: "1-0-0-0-1". Of fewer, it may be a formation:
"4-2-3-1"."""
LEAST_DIGITS = 3
"""Digits in a row that are one number. Of two, each may be a number of its own: "for 5 6 weeks"."""


def with_numbers(words: Iterable[Word]) -> tuple[Word, ...]:
    """Join digits that stand alone, one after another, to the number that was dictated.

    Whether Whisper writes "9 0 2 1 0", "9-0-2-1-0" or "90210" is chance, and later utterances would
    copy it. As one word, the number is also committed as a whole.
    """
    runs: list[list[Word]] = []
    for written in words:
        is_number = _HYPHENS.fullmatch(written.text.rstrip(MARKS))
        word = replace(written, text=written.text.replace("-", "")) if is_number else written
        if runs and _is_digit(runs[-1][-1].text) and _is_digit(word.text.rstrip(MARKS)):
            runs[-1].append(word)
        else:
            runs.append([word])
    numbers = [run if len(run) < LEAST_DIGITS else [_number(run)] for run in runs]
    return tuple(word for number in numbers for word in number)


def _is_digit(text: str) -> bool:
    return text[:1] == " " and len(text) == 2 and text[1].isdecimal()


def _number(digits: Sequence[Word]) -> Word:
    return replace(
        digits[0],
        text=" " + "".join(digit.text.lstrip() for digit in digits),
        end=digits[-1].end,
        prob=sum(digit.prob for digit in digits) / len(digits),
        tokens=tuple(token for digit in digits for token in digit.tokens),
        n_mark=digits[-1].n_mark,
    )
