"""Which words of two texts belong together."""

from hypothesis import given
from hypothesis import strategies as st

from lab.alignment import align
from streamd.cli.bench import n_edits

texts = st.lists(st.sampled_from("abcd"), max_size=8)


@given(texts, texts)
def test_an_alignment_has_every_word_once_and_in_order(reference, hypothesis):
    pairs = align(reference, hypothesis)
    assert [i for i, _ in pairs if i is not None] == list(range(len(reference)))
    assert [j for _, j in pairs if j is not None] == list(range(len(hypothesis)))
    edits = sum(i is None or j is None or reference[i] != hypothesis[j] for i, j in pairs)
    assert edits == n_edits(reference, hypothesis)


def test_of_equal_words_the_first_is_meant():
    assert align(["one", "zero", "one"], ["one"]) == [(0, 0), (1, None), (2, None)]
