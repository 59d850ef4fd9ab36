"""Which words are the same, and what alignment costs: as jiwer says."""

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.bench.wer import align, n_edits, spoken

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
def test_an_alignment_costs_what_jiwer_says(reference, hypothesis):
    said = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    edits = said.substitutions + said.insertions + said.deletions
    assert n_edits(reference, hypothesis) == edits


@given(texts, texts)
def test_an_alignment_has_every_word_once_and_in_order(reference, hypothesis):
    pairs = align(reference, hypothesis)
    assert [i for i, _ in pairs if i is not None] == list(range(len(reference)))
    assert [j for _, j in pairs if j is not None] == list(range(len(hypothesis)))


def test_of_equal_words_the_first_is_meant():
    assert align(["one", "zero", "one"], ["one"]) == [(0, 0), (1, None), (2, None)]
