"""Drops what Whisper writes where nobody speaks.

These are sentences that it learnt from the ends of subtitled videos, and words that the recognizer
marked as a hallucination. Both are dropped only where the gate found next to no speech: somebody
may well say "thank you for watching", and improbable words are often right.
"""

from collections.abc import Callable
from dataclasses import replace

from streamd.commit import normalised
from streamd.types import Hypothesis, Suspect

MOST_VOICED = 0.2
"""From this share of voiced frames on, the words are believed."""

HALLUCINATIONS = frozenset(
    {
        "thank you for watching",
        "thanks for watching",
        "please subscribe to my channel",
        "subtitles by the amaraorg community",
        "untertitel der amaraorg community",
        "sous titres réalisés par la communauté damaraorg",
        "sottotitoli creati dalla comunità amaraorg",
        "продолжение следует",
        "ご視聴ありがとうございました",
    }
)
"""Each word as `normalised` returns it."""


def believable(hypothesis: Hypothesis, voiced_share: Callable[[int, int], float]) -> Hypothesis:
    """The hypothesis without its words if they are a hallucination in silence.

    `voiced_share` returns the share of voiced frames between two frames of the stream. Where there
    is speech, a suspected hallucination is no longer suspect.
    """
    words, suspected = hypothesis.words, hypothesis.suspect is Suspect.HALLUCINATION
    text = " ".join(normalised(word.text) for word in words)
    if not suspected and text not in HALLUCINATIONS:
        return hypothesis
    if words and voiced_share(words[0].start, words[-1].end) < MOST_VOICED:
        return replace(hypothesis, words=(), tokens=(), suspect=Suspect.HALLUCINATION)
    return replace(hypothesis, suspect=None) if suspected else hypothesis
