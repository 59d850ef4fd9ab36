"""How words are written: marks at their ends, capitals, and numbers that were dictated."""

import re
from collections.abc import Iterator, Sequence
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


LEAST_DIGITS = 3
"""Digits in a row that are one number. Of two, each may be a number of its own: "for 5 6 weeks"."""
_HYPHENATED = re.compile(r"\d(-\d)*(-0\d)?(-\d)*")
"""Of two digits, "oh three" may be written as one: "0-1-8-03". "10-9-8-7" is no number."""
LEAST_HYPHENATED = 5
"""Digits with hyphens between them that are one number. Fewer may be a formation: "4-2-3-1"."""


def with_numbers(words: Sequence[Word]) -> tuple[Word, ...]:
    """Join digits that stand alone, one after another, to the number that was dictated.

    Later utterances would copy how it is written. As one word, the number is also committed as a
    whole.
    """
    return tuple(_number(words[run]) for run in numbers([word.text for word in words]))


def numbers(texts: Sequence[str]) -> Iterator[slice]:
    """Tell which words are one: the digits of a number that was dictated, else each by itself.

    Whether Whisper writes "9 0 2 1 0", "9-0-2-1-0" or "90210" is chance. Each text keeps what
    stands before the word, a blank or the hyphen that begins it, and the marks behind it.
    """
    at = 0
    while at < len(texts):
        end = _end_of_hyphenated(texts, at)
        if end == at + 1:
            end = _end_of_digits(texts, at)
        yield slice(at, end)
        at = end


def number_of(texts: Sequence[str]) -> str:
    """Return the number whose digits these are, with the marks behind it; one word stays."""
    return texts[0] if len(texts) == 1 else " " + "".join(text.lstrip(" -") for text in texts)


def _end_of_hyphenated(texts: Sequence[str], at: int) -> int:
    """Where a number with hyphens ends that begins here; the next word if there is none."""
    end = at + 1
    while end < len(texts) and texts[end][:1] == "-" and texts[end - 1][-1:] not in MARKS:
        end += 1
    return end if _is_dictated("".join(texts[at:end])) else at + 1


def _end_of_digits(texts: Sequence[str], at: int) -> int:
    """Where a number of single digits ends that begins here; the next word if there is none."""
    end = at + 1
    while end < len(texts) and _is_digit(texts[end - 1]) and _is_digit(texts[end].rstrip(MARKS)):
        if _end_of_hyphenated(texts, end) > end + 1:
            break
        end += 1
    return end if end - at >= LEAST_DIGITS else at + 1


def _is_dictated(text: str) -> bool:
    bare = text.strip().rstrip(MARKS)
    return (
        _HYPHENATED.fullmatch(bare) is not None and len(bare.replace("-", "")) >= LEAST_HYPHENATED
    )


def _is_digit(text: str) -> bool:
    return text[:1] == " " and len(text) == 2 and text[1].isdecimal()


def _number(digits: Sequence[Word]) -> Word:
    if len(digits) == 1:
        return digits[0]
    return replace(
        digits[0],
        text=number_of([digit.text for digit in digits]),
        end=digits[-1].end,
        prob=sum(digit.prob for digit in digits) / len(digits),
        tokens=tuple(token for digit in digits for token in digit.tokens),
        n_mark=digits[-1].n_mark,
    )
