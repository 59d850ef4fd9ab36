"""What differs between two transcripts is what one has to change to get the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.sinks.differences import Difference, differences


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("Turn on the light.", "turn on, the light", []),
        ("Ana Bot in said hello.", "Ana Botín said hello.", [("Bot in", "Botín")]),
        ("one three", "one two three", [("", "two")]),
        ("so you know", "you know", [("so", "")]),
        ("", "all of it", [("", "all of it")]),
        ("90210", "902-10", []),
        ("a - b", "a b", [("-", "")]),
    ],
)
def test_only_words_count(before, after, found):
    assert [(each.before, each.after) for each in differences(before, after)] == found


def test_the_longer_side_counts():
    assert Difference("one", "two three").n_words == 2
    assert str(Difference("", "two")) == "(nothing) -> two"


WORDS = st.lists(st.sampled_from(["a", "the", "B.", "c,", "é", "-"]), max_size=30)


@given(before=WORDS, after=WORDS)
def test_what_is_left_is_in_both(before, after):
    found = differences(" ".join(before), " ".join(after))
    n_before = len(before) - sum(len(each.before.split()) for each in found)
    n_after = len(after) - sum(len(each.after.split()) for each in found)
    assert n_before == n_after >= 0
    assert differences(" ".join(before), " ".join(before)) == []
