"""How words are written: marks at their ends, capitals, and numbers that were dictated."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from streamd.language import MARKS
from streamd.types import Word, mean_prob


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
PAUSE, SLOW = 30, 50
"""Frames between two digits, or from one to the next, of a pause: 0.6 s, or more than 1 s, since
silence may be part of a word's time. In recorded digits with 0.3 s between them, tiny.en and base
have at most 29 and 50; with 0.6 s, the second is 52 to 71."""
PAIRED = 10
"""Frames (0.2 s) by which the pauses between pairs are longer than those within, all together."""

Times = Sequence[tuple[int, int]]
"""The frames at which words start and end; empty if they are not known."""


def with_numbers(words: Sequence[Word], before: Word | None = None) -> tuple[Word, ...]:
    """Join digits that stand alone, one after another, to the number that was dictated.

    Later utterances would copy how it is written. As one word, the number is also committed as a
    whole. `before` is the word before them.
    """
    if before is not None and _is_joined(before):
        before = None  # a pause divides a number that is dictated; it is not beside another one
    known = [*([before] if before else []), *words]
    texts, times = [word.text for word in known], [(word.start, word.end) for word in known]
    runs = numbers(texts, times, first=len(known) - len(words))
    return tuple(_number(known[run]) for run in runs)


def numbers(texts: Sequence[str], times: Times = (), *, first: int = 0) -> Iterator[slice]:
    """Tell which words are one: the digits of a number that was dictated, else each by itself.

    Whether Whisper writes "9 0 2 1 0", "9-0-2-1-0" or "90210" is chance. Each text keeps what
    stands before the word, a blank or the hyphen that begins it, and the marks behind it. Words
    before the `first` one are as they are.
    """
    at = first
    while at < len(texts):
        end = _end_of_hyphenated(texts, at)
        if end == at + 1:
            end = _end_of_digits(texts, at)
        for n in _lengths(texts, times, at, end):
            yield slice(at, at + n)
            at += n


def _is_joined(word: Word) -> bool:
    """Whether this is a number that was dictated digit by digit."""
    digits = _digits(word.text)
    return digits.isdecimal() and 1 < len(digits) <= len(word.tokens) - word.n_mark


def number_of(texts: Sequence[str]) -> str:
    """Return the number whose digits these are, with the marks behind it; one word stays."""
    return texts[0] if len(texts) == 1 else " " + "".join(text.lstrip(" -") for text in texts)


def _lengths(texts: Sequence[str], times: Times, at: int, end: int) -> list[int]:
    """How many of the words from `at` to `end` are one number each; 1 if they stay apart.

    Where it is not clear that they are dictated, they do: "1 2 3 4" can be read, "643675" cannot.
    """
    apart = [1] * (end - at)
    if end == at + 1:
        return apart
    values, run = [int(_digits(text)) for text in texts[at:end]], times[at:end]
    if _is_list(values) or _is_paired(run) or _goes_on(texts, times, at, end):
        return apart
    pauses = [i for i, (before, after) in enumerate(pairwise(run), 1) if _is_pause(before, after)]
    lengths = [behind - before for before, behind in pairwise([0, *pauses, end - at])]
    return lengths if min(lengths) >= LEAST_DIGITS else apart


def _digits(text: str) -> str:
    return text.strip(" -" + MARKS)


def _is_list(values: Sequence[int]) -> bool:
    """Whether somebody counts in steps of any size, maybe again, or four or more numbers ascend."""
    steps = [after - before for before, after in pairwise(values)]
    if len(steps) >= LEAST_DIGITS and (min(steps) > 0 or max(steps) < 0):
        return True
    at = 0
    while at < len(values):
        others = (i for i, step in enumerate(steps[at:], 1) if step != steps[at] or step == 0)
        n = next(others, len(values) - at)
        if n < LEAST_DIGITS:
            return False
        at += n
    return True


def _is_paired(times: Times) -> bool:
    """Whether digits are said in pairs, as the games of tennis: "six four, three six"."""
    if len(times) < 4 or len(times) % 2:
        return False
    # Silence may be part of the word before it or behind it.
    for edges in zip(*times, strict=True):
        steps = [after - before for before, after in pairwise(edges)]
        inside, between = steps[::2], steps[1::2]
        longer = sum(between) - len(between) * sum(inside) / len(inside)
        if min(between) > max(inside) and longer >= PAIRED:
            return True
    return False


def _goes_on(texts: Sequence[str], times: Times, at: int, end: int) -> bool:
    """Whether another number stands beside these digits, without a mark or a pause: "8 9 10"."""
    return any(
        0 < k < len(texts)
        and texts[k - 1].strip(" -").isdecimal()
        and _digits(texts[k]).isdecimal()
        and not (times and _is_pause(times[k - 1], times[k]))
        for k in (at, end)
    )


def _is_pause(before: tuple[int, int], after: tuple[int, int]) -> bool:
    (start, end), (next_start, next_end) = before, after
    return next_start - end >= PAUSE or min(next_start - start, next_end - end) > SLOW


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
        prob=mean_prob(digit.prob for digit in digits),
        tokens=tuple(token for digit in digits for token in digit.tokens),
        n_mark=digits[-1].n_mark,
        stable=digits[-1].stable,  # the first ones become stable first
    )
