"""Scores words that a model may have invented: improbable, too short or too long to be spoken.

Source: openai/whisper ``transcribe.py`` (`word_anomaly_score`, `is_segment_anomaly`).
"""

from collections.abc import Sequence
from typing import Protocol

IMPROBABLE = 0.15
SHORTEST_MS = 133
"""A shorter word is an anomaly."""
LONGEST_MS = 2000
"""So is a longer one."""
ANOMALOUS = 3.0
N_FIRST = 8
"""The first words of a segment decide."""

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_SHORT_COST, _LONG_COST = 0.015, 0.001
"""For each millisecond."""


class TimedText(Protocol):
    """A word with its probability and its duration."""

    @property
    def text(self) -> str:
        """The word, punctuation included."""
        ...

    @property
    def prob(self) -> float:
        """0..1."""
        ...

    @property
    def duration_ms(self) -> int:
        """How long it lasts."""
        ...


def word_anomaly(word: TimedText) -> float:
    """Score a word: 0 if it is ordinary, 1 if it is improbable, more by its odd duration."""
    score = 1.0 if word.prob < IMPROBABLE else 0.0
    score += max(0, SHORTEST_MS - word.duration_ms) * _SHORT_COST
    return score + max(0, word.duration_ms - LONGEST_MS) * _LONG_COST


def is_anomalous(words: Sequence[TimedText]) -> bool:
    """Whether the words of one segment are probably a hallucination; False if there are none."""
    if not words:
        return False
    first = [word for word in words if word.text not in _PUNCTUATION][:N_FIRST]
    score = sum(word_anomaly(word) for word in first)
    return score >= ANOMALOUS or score + 0.01 >= len(first)
