"""Odd words, by openai-whisper's formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.search.anomaly import is_anomalous, word_anomaly
from streamd.types import Word


def word(n_frames: int, prob: float = 0.9, text: str = " a") -> Word:
    return Word(text, 40, 40 + n_frames, prob)


def openai_score(seconds: float, probability: float) -> float:
    """`word_anomaly_score` of openai/whisper 20250625, which takes seconds."""
    score = 0.0
    if probability < 0.15:
        score += 1.0
    if seconds < 0.133:
        score += (0.133 - seconds) * 15
    if seconds > 2.0:
        score += seconds - 2.0
    return score


@given(st.integers(0, 1500), st.floats(0.0, 1.0))
def test_a_word_s_score_is_openai_s(n_frames, prob):
    ours = word_anomaly(word(n_frames, prob))
    assert ours == pytest.approx(openai_score(n_frames / 50, prob), abs=1e-9)


@pytest.mark.parametrize(
    ("words", "anomalous"),
    [
        ([], False),
        ([word(20)] * 3, False),
        ([word(20, 0.1)], True),
        ([word(20, 0.1)] * 2 + [word(20)] * 2, False),
        ([word(20, 0.1)] * 3 + [word(20)] * 20, True),
        ([word(20)] * 8 + [word(20, 0.1)] * 8, False),  # it shows at once, or is none
        ([word(0)], True),  # score 1.995 for one word
        ([word(0)] + [word(20)] * 3, False),
        ([word(250)] + [word(20)] * 3, True),
        ([word(20, 0.1, ".")] * 3 + [word(20)] * 3, False),  # a full stop's length says nothing
    ],
)
def test_words_that_are_an_anomaly_together(words, anomalous):
    assert is_anomalous(words) is anomalous
