"""Which hypotheses to believe: what is read in voices that say nothing is not text."""

from collections.abc import Callable
from dataclasses import replace

from streamd.types import Hypothesis, Suspect, text_of
from streamd.whisper.guards import FAMOUS_NO_SPEECH, is_famous

MOST_VOICED = 0.2
"""The share of voiced frames below which such a phrase was not said there. It matters with `--vad
webrtc` and `off`, which let noise into windows; with Silero, one word of 1,170 changes without."""


def believable(hypothesis: Hypothesis, voiced_share: Callable[[int, int], float]) -> Hypothesis:
    """The hypothesis, without its words if Whisper writes them for sounds without speech.

    `voiced_share` returns the share of voiced frames between two frames.
    """
    words = hypothesis.words
    if not words or not is_famous(text_of(words)):
        return hypothesis
    doubtful = hypothesis.no_speech_prob > FAMOUS_NO_SPEECH
    if doubtful or voiced_share(words[0].start, words[-1].end) < MOST_VOICED:
        return replace(hypothesis, words=(), tokens=(), suspect=Suspect.HALLUCINATION)
    return hypothesis
