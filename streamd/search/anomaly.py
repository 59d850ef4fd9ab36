"""Words that a model dreamt up, by their looks: improbable, too short or too long to be spoken.

Source: openai/whisper ``transcribe.py`` (`word_anomaly_score`, `is_segment_anomaly`).
"""

from collections.abc import Sequence
from typing import Protocol

IMPROBABLE = 0.15
SHORTEST_MS = 133
"""Nobody says a word in less."""
LONGEST_MS = 2000
"""Nor in more."""
ANOMALOUS = 3.0
N_FIRST = 8
"""A dream shows in its first words."""

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_SHORT_COST, _LONG_COST = 0.015, 0.001
"""For each millisecond."""


class TimedText(Protocol):
    """A word that was heard, with its probability and its length."""

    @property
    def text(self) -> str:
        """What was said, punctuation included."""
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
    """How odd a word is: 0 for an ordinary one, 1 if it is improbable, more for an odd length."""
    score = 1.0 if word.prob < IMPROBABLE else 0.0
    score += max(0, SHORTEST_MS - word.duration_ms) * _SHORT_COST
    return score + max(0, word.duration_ms - LONGEST_MS) * _LONG_COST


def is_anomalous(words: Sequence[TimedText]) -> bool:
    """Whether these words, of one segment, are probably a dream; False if there are none."""
    if not words:
        return False
    first = [word for word in words if word.text not in _PUNCTUATION][:N_FIRST]
    score = sum(word_anomaly(word) for word in first)
    return score >= ANOMALOUS or score + 0.01 >= len(first)
