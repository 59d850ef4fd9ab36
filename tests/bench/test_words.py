"""Which words are the same, and what alignment costs: as jiwer says."""

import jiwer
from hypothesis import given
from hypothesis import strategies as st

from streamd.bench.words import align, erased, n_edits, spoken

texts = st.lists(st.sampled_from("abcd"), max_size=8)


def test_case_and_punctuation_are_not_spoken():
    assert spoken("It's TEN-o'clock, oh... (yes) _") == ["it's", "ten", "o'clock", "zero", "yes"]


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


def test_erased_is_what_has_to_be_wiped_before_the_next_text():
    assert erased(["a b", "a c", "a c d"]) == 1
    assert erased([["on", "the"], ["on"], ["off"]]) == 2
    assert erased(["only"]) == 0
