"""Words that a model dreamt up, by their looks: improbable, too short or too long to be spoken.

Source: openai/whisper ``transcribe.py`` (`word_anomaly_score`, `is_segment_anomaly`), whose seconds
are frames here.
"""

from collections.abc import Sequence

from streamd.types import Word

IMPROBABLE = 0.15
SHORTEST = 6.65
"""Frames; nobody says a word in less than 133 ms."""
LONGEST = 100
"""Frames; nor in more than 2 s."""
ANOMALOUS = 3.0
N_FIRST = 8
"""A dream shows in its first words."""

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_SHORT_COST, _LONG_COST = 0.3, 0.02
"""For each frame: 15 and 1 for a second."""


def word_anomaly(word: Word) -> float:
    """How odd a word is: 0 for an ordinary one, 1 if it is improbable, more for an odd length."""
    n_frames = word.end - word.start
    score = 1.0 if word.prob < IMPROBABLE else 0.0
    score += max(0.0, SHORTEST - n_frames) * _SHORT_COST
    return score + max(0, n_frames - LONGEST) * _LONG_COST


def is_anomalous(words: Sequence[Word]) -> bool:
    """Whether these words, of one segment, are probably a dream; False if there are none."""
    if not words:
        return False
    first = [word for word in words if word.text not in _PUNCTUATION][:N_FIRST]
    score = sum(word_anomaly(word) for word in first)
    return score >= ANOMALOUS or score + 0.01 >= len(first)
