"""How numbers are written that were dictated, counted or listed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.session.spelling import number_of, numbers, with_numbers
from streamd.types import Word, text_of


def parts(written: str) -> list[str]:
    """The words of a text. A hyphen begins a word, as in Whisper's tokens."""
    return [part for text in written.split() for part in f" {text}".replace("-", "|-").split("|")]


def timed(written: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Words and their times, from "9(20) <5>-0(18)": frames that they last, and those between."""
    texts, times, at = [], [], 20
    for gap, text, n in re.findall(r"(?:<(\d+)>)?(\S+)\((\d+)\)", written):
        at += int(gap or 0)
        texts.append(text if text.startswith("-") else f" {text}")
        times.append((at, at + int(n)))
        at += int(n)
    return texts, times


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("dial 9 0 2 1 0.", "dial 90210."),
        ("call 5 5 5 0 1 9 9", "call 5550199"),
        ("code 5 5 5 1 2 3 4", "code 5551234"),
        ("flight 8 3 1, go", "flight 831, go"),
        ("1, 2, 3", "1, 2, 3"),
        ("for 5 6 weeks", "for 5 6 weeks"),
        ("7 8 10 9", "7 8 10 9"),
        ("dial 1-0-0-0-1. 9 0 2", "dial 10001. 902"),
        ("at 0-1-8-03.", "at 01803."),
        ("a 4-2-3-1 in 2024-1-0 and 555-1-2", "a 4-2-3-1 in 2024-1-0 and 555-1-2"),
        ("call 1-800-555-1-2, page 902-10", "call 1-800-555-1-2, page 902-10"),
        ("10-9-8-7. on 5-1-2-2026", "10-9-8-7. on 5-1-2-2026"),
        # counted or listed
        ("3 2 1, go", "3 2 1, go"),
        ("and 5 6 7 8", "and 5 6 7 8"),
        ("5 6 7 8 5 6 7 8", "5 6 7 8 5 6 7 8"),
        ("1-3-5-7-9.", "1-3-5-7-9."),
        ("chapters 2 4 7 9", "chapters 2 4 7 9"),
        ("1 2 3 4 5 6 7 8 9 10", "1 2 3 4 5 6 7 8 9 10"),
        ("10 9 8 7 6 5 4 3 2 1 0", "10 9 8 7 6 5 4 3 2 1 0"),
        ("12 3 7 9, 5 0 1", "12 3 7 9, 501"),
        ("the 4 8 1 15 16", "the 4 8 1 15 16"),
    ],
)
def test_digits_that_are_dictated_are_a_number(written, read):
    texts = parts(written)
    marks = [text[-1] in ".," for text in texts]
    words = [Word(text, i, i + 1, 0.9, (i,), marks[i]) for i, text in enumerate(texts)]
    joined = with_numbers(words)
    assert text_of(joined) == read
    assert [token for word in joined for token in word.tokens] == list(range(len(words)))
    assert joined[-1].end == len(words)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        # Dictated: recorded digits with 0.05, 0.15 and 0.3 s between them, as tiny.en has them
        # live, where words end before silence, and in recordings, where they last until the next.
        (
            "4(25) <5>1(38) 5(24) <10>5(25) <10>5(25) <10>5(19) 2(43) 6(35) <2>7(27) <5>1(30)",
            "4155552671",
        ),
        ("9(45) 0(31) <9>2(24) <11>1(29) <9>0(33)", "90210"),
        ("9(65) 0(32) 2(37) 1(47) 0(23)", "90210"),
        ("6(16) <27>0(34) <16>6(24) <21>1(25) <25>4(25)", "60614"),
        ("4(33) <3>7(34) 2(31) 9(26)", "4729"),
        # in groups, 0.5 s apart; three ZIP codes
        ("5(25) <10>5(25) <10>5(25) <29>0(25) <5>1(39) 9(37) 9(28)", "555 0199"),
        (
            "1(30) 0(23) 0(19) 0(17) 1(11) <30>9(48) 0(11) 2(8) 1(9) 0(21) "
            "<45>0(34) 1(11) 8(14) 0(11) 3(31)",
            "10001 90210 01803",
        ),
        # Each by itself: 0.8 s and 0.6 s between the digits
        ("4(25) <41>8(22) <42>2(19)", "4 8 2"),
        ("9(58) 0(75) 2(57) 1(63) 0(39)", "9 0 2 1 0"),
        # pairs, 0.3 and 0.5 s apart; with base, where silence is part of the word behind it
        (
            "7(33) <8>5(24) <20>2(24) <5>6(23) <21>6(23) <10>3(27) <20>4(32) <3>6(19) <20>6(23)"
            " <8>2(21)",
            "7 5 2 6 6 3 4 6 6 2",
        ),
        ("6(23) <12>-4(21) <34>-3(26) <4>-6(24) <30>-7(34) <7>-5(25)", "6-4-3-6-7-5"),
        ("6(14) 4(41) 3(42) 6(40) <32>7(23) 5(37)", "6 4 3 6 7 5"),
        # neighbours: a number behind a pause is none
        ("8(20) <10>9(22) <14>10(20)", "8 9 10"),
        ("9(20) <10>1(22) 4(20) <14>10(20)", "9 1 4 10"),
        ("9(20) <10>1(22) 4(20) <44>10(20)", "914 10"),
        # said evenly, as far as the times of words go
        ("9(14) <6>4(14) <8>7(14) <6>2(14)", "9472"),
    ],
)
def test_pauses_and_pairs_separate_digits(written, found):
    texts, times = timed(written)
    assert "".join(number_of(texts[run]) for run in numbers(texts, times)).strip() == found


def test_digits_go_on_with_what_is_committed():
    """Somebody counts, or the number has been published in part."""
    digits = [
        Word(f" {digit}", 20 * i, 20 * i + 18, 0.9, (digit,)) for i, digit in enumerate("902")
    ]
    assert text_of(with_numbers(digits)) == "902"
    for before, joined in ((" 4", "9 0 2"), (" 10", "9 0 2"), (" 4,", "902"), (" code", "902")):
        word = Word(before, -20, -2, 0.9)
        assert text_of(with_numbers(digits, word)) == joined
    assert text_of(with_numbers(digits, Word(" 4", -60, -40, 0.9))) == "902", "after a pause"
    joined = Word(" 555,", -40, -20, 0.9, (5, 5, 5, 0), n_mark=1)
    assert text_of(with_numbers(digits, joined)) == "902", "the same number goes on"


@given(st.lists(st.sampled_from([" 1", " 2", " 9", "-0", " 3,", " a", " 10", "-12", ".", "4"])))
def test_every_word_is_told_once_whatever_the_times_are(texts):
    for times in ([], [(0, 0)] * len(texts), [(100 * i, 100 * i) for i in range(len(texts))]):
        runs = [*numbers(texts, times)]
        assert [at for run in runs for at in range(run.start, run.stop)] == [*range(len(texts))]
