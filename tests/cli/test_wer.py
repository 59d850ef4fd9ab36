"""Which words are the same, and how many edits separate two texts: as in jiwer."""

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.cli.bench import n_edits, spoken

texts = st.lists(st.sampled_from("abcd"), max_size=8)


def test_case_punctuation_and_fillers_are_not_spoken():
    assert spoken("Um, the EVENING news... (yes) _") == ["the", "evening", "news"]
    assert spoken("...") == spoken("") == []


@pytest.mark.parametrize(
    ("written", "read_aloud"),
    [
        ("10001. 90210.", "one zero zero zero one nine oh two one oh"),
        ("For 10 to 1, whether", "for ten to one whether"),
        ("21 lamps, 3 of them on", "twenty-one lamps three of them on"),
        ("10:30", "ten thirty"),
        ("It's colour", "it is color"),
        ("Mr. Quilter won't", "mister quilter will not"),
        ("1,000,000", "one million"),
    ],
)
def test_numbers_and_spellings_are_the_same_words(written, read_aloud):
    assert spoken(written) == spoken(read_aloud) != []


def test_a_wrong_digit_is_one_wrong_word():
    said = "one zero zero zero one nine oh two one oh"
    assert n_edits(spoken(said), spoken("10001 90218")) == 1
    assert n_edits(spoken(said), spoken("1001 90210")) == 1


def test_where_no_blanks_separate_words_letters_are_counted():
    assert spoken("今日は、iPhone です。") == ["今", "日", "は", "iphone", "で", "す"]


@given(texts.filter(bool), texts)
def test_the_edits_are_as_many_as_jiwer_says(reference, hypothesis):
    said = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    edits = said.substitutions + said.insertions + said.deletions
    assert n_edits(reference, hypothesis) == edits
