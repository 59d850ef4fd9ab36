"""What Whisper writes where nobody speaks.

Sentences that it learnt from the ends of subtitled films, and words that the recognizer finds odd.
Both are only taken for phantoms where the gate heard next to no voice: somebody may well say "thank
you for watching", and odd words are often right.
"""

from collections.abc import Callable
from dataclasses import replace

from streamd.commit.words import normalised
from streamd.types import ODD, Hypothesis

MOST_VOICED = 0.2
"""The share of voiced frames under a sentence from which on it is believed."""

PHANTOMS = frozenset(
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
"""As `normalised` leaves them, word by word."""


def believable(hypothesis: Hypothesis, voiced_share: Callable[[int, int], float]) -> Hypothesis:
    """The hypothesis, without its words if they are phantoms and nobody spoke them.

    `voiced_share` gives the share of voiced frames between two frames of the stream.
    """
    words, odd = hypothesis.words, hypothesis.suspect == ODD
    said = " ".join(normalised(word.text) for word in words)
    if not odd and said not in PHANTOMS:
        return hypothesis
    if words and voiced_share(words[0].start, words[-1].end) < MOST_VOICED:
        return replace(hypothesis, words=(), tokens=(), suspect="phantom")
    return replace(hypothesis, suspect="") if odd else hypothesis
