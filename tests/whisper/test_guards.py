"""Loops and hallucinations are found, and ordinary speech is left alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.types import compression_ratio
from streamd.whisper.guards import (
    MOST_COMPRESSED,
    find_loop,
    find_repeated,
    find_repetition,
    find_stuck,
    letter_ratio,
)
from tests.support.checkpoints import openai_tokenizer

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh")


@pytest.mark.parametrize(
    "text",
    [
        "eight eight eight seven",
        "zero zero zero zero zero zero zero",  # seven in a row: a number may have that
        "one two one two one two one two one two",
        "no no no no no",
        "one two three one two three one two three four",
        "never give up never give up never never never",
    ],
)
def test_honest_repetition(text):
    assert find_repetition(text.split()) is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("yes yes yes yes yes yes yes yes", "yes"),
        ("so Yes, yes. YES yes yes! yes yes yes", "so Yes,"),
        ("he said one two one two one two one two one two one two", "he said one two"),
        ("thank you for watching " * 3, "thank you for watching"),
        ("thanks to all of you for being here " * 3 + "bye", "thanks to all of you for being here"),
    ],
)
def test_loops_are_kept_once(text, kept):
    words = text.split()
    found = find_repetition(words)
    assert words[:found] == kept.split()


def test_a_phrase_may_be_as_long_as_a_third_of_the_text():
    assert find_repetition([f"w{i}" for i in range(40)] * 3) == 40


def test_punctuation_that_is_a_word_of_its_own_does_not_hide_a_loop():
    words = [" no", "."] * 9
    assert find_repetition(words) == 1


@given(st.lists(st.sampled_from("abcdefgh"), max_size=12), st.integers(1, 8), st.integers(0, 3))
def test_any_phrase_said_often_enough_is_found_once(before, period, more):
    phrase = [f"w{i}" for i in range(period)]
    repeats = (8 if period == 1 else max(3, -(-12 // period))) + more
    words = [*before, *phrase * repeats]
    assert find_repetition(words) == len(before) + period
    assert find_repetition([*before[:3], *phrase * 2]) is None


def test_digits_of_thirty_seconds_are_no_loop():
    rng = random.Random(7)
    texts = ["".join(f" {rng.choice(DIGITS)}" for _ in range(75)) for _ in range(200)]
    for tokens in openai_tokenizer().encode_each(texts):
        assert len(tokens) == 75
        frames = range(0, 20 * 75, 20)
        assert find_loop(tokens, frames, openai_tokenizer(), language="en") is None


def test_what_compresses_too_well_is_a_loop():
    text = "".join(f" turn the light on {digit} turn the light off" for digit in DIGITS)
    tokens = openai_tokenizer().encode(text)
    assert find_repetition(text.split()) is None
    assert compression_ratio(text) > 3.0
    assert find_loop(tokens, range(0, 20 * len(tokens), 20), openai_tokenizer(), language="en") == (
        len(tokens) - 60
    )


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([10, 20, 30, 30, 31, 32, 30, 31, 29, 42, 40], None),
        ([10, 30, 30, 31, 32, 30, 31, 29, 33, 50], 1),
        ([30] * 7, None),
        ([30] * 8, 0),
        ([], None),
    ],
)
def test_eight_tokens_on_one_spot(frames, found):
    assert find_stuck(frames) == found


def test_a_stuck_decoder_keeps_its_first_token():
    tokens = openai_tokenizer().encode(" one two three four five six seven eight nine")
    frames = [10, *[40] * 8]
    assert find_loop(tokens, frames, openai_tokenizer(), language="en") == 2


LONGEST_WORD = (
    "Lopadotemachoselachogaleokranioleipsanodrimhypotrimmatosilphiokarabomelitokatakechymenokichl"
    "epikossyphophattoperisteralektryonoptekephalliokigklopeleiolagoiosiraiobaphetraganopterygon"
)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "go to www.example.com",
            "ha ha hahahahaha",
            "10000000 of 1000000000000000",
            "Zzzzzzzzzz",
        ),
        *(
            "Mississippi",
            "jäääärne",
            "hääyöaie",
            "GATTACAGATTACAGATTACA",
            "CAG" * 8,
            "Nooooooooooo!",
        ),
        *("Donaudampfschifffahrtsgesellschaftskapitän", "humuhumunukunukuapua'a", "Mm-mm-mm."),
        *(
            "हाहाहाहाहाहा",
            "აააააააააააა",
            "ワクワクドキドキゴロゴロゴロゴロ",
            "Well . . . I see",
            "Wait!!!!",
        ),
        *(LONGEST_WORD, "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"),
    ],
)
def test_ordinary_words_have_no_loop_inside(text):
    tokens = openai_tokenizer().encode(f" {text}")
    assert find_repeated(tokens, openai_tokenizer(), language="en") is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("A" + "a" * 888, "Aaaaaaaaa"),
        ("He said Hm" + "m" * 438 + " and went", "He said Hmmmmmmmm"),
        ("ha" * 40, "hahahahahah"),
        ("1" + "0" * 60, "100"),
        ("and the . . . .", "and the ."),
        ("and so on - - - - - -", "and so on -"),
        ("Hm" + "m" * 120 + " no" * 10, "Hmmmmmmmm"),
    ],
)
def test_a_loop_inside_a_word_is_cut_where_it_begins_to_compress(text, kept):
    tokens = openai_tokenizer().encode(f" {text}")
    n_kept = find_repeated(tokens, openai_tokenizer(), language="en")
    found = openai_tokenizer().decode(tokens[:n_kept])
    assert found == f" {kept}"
    frames = range(0, 20 * len(tokens), 20)
    if len(tokens) >= 8:
        assert find_loop(tokens, frames, openai_tokenizer(), language="en") == n_kept, "live, too"


@given(st.text(st.characters(categories=["L"]), min_size=1, max_size=4), st.integers(60, 200))
def test_any_letters_repeated_for_long_are_a_loop_in_any_script(unit, n):
    assert letter_ratio((unit * n)[:n]) > MOST_COMPRESSED
