"""Skips silence in which the model hallucinated.

A hallucination is improbable, too short or too long (`streamd.search.anomaly`) and lies in silence.
Source: openai/whisper ``transcribe.py`` (``hallucination_silence_threshold``), rule for rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.engine.longform.segments import (
    Segment,
    Split,
    Stretch,
    column_at,
    end_of_words_s,
)
from streamd.search.anomaly import is_anomalous

_NEAR_S = 2.0
"""A segment this close to an end of its window may stand in silence that is not seen."""
_LEAST_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Silence:
    """What is known about the silence around a window's words.

    `longest_s`: more of it is passed over; `last_speech_s`: when the last word before the window
    ended; `full_end_s`: the end of the window if it were full; `end_s`: the recording's.
    """

    longest_s: float
    last_speech_s: float
    full_end_s: float
    end_s: float


def without_hallucinations(split: Split, stretch: Stretch, silence: Silence) -> Split | int:
    """What is left of a window's segments, which have their words, and where to go on.

    A column instead: the window began with silence and a hallucination; decode again from there.
    """
    seek = split.seek
    spoken_until_s = end_of_words_s(split.segments)
    if not split.complete and spoken_until_s is not None and spoken_until_s > stretch.start_s:
        rest_s = silence.full_end_s - spoken_until_s
        seek = column_at(spoken_until_s) if rest_s > silence.longest_s else stretch.end
    first = _next_with_words(split.segments)
    if first is not None and is_anomalous(first.words):
        gap_s = first.start_s - stretch.start_s
        if gap_s > silence.longest_s:
            return stretch.seek + column_at(gap_s)
    n_kept = _n_before_hallucination(split.segments, stretch, silence)
    if n_kept == len(split.segments):
        return split._replace(seek=seek)
    invented = split.segments[n_kept]
    seek = column_at(max(stretch.start_s + _LEAST_STEP_S, invented.start_s))
    if silence.end_s - invented.end_s < silence.longest_s:
        seek = column_at(silence.end_s)
    return Split(split.segments[:n_kept], seek, split.complete)


def _n_before_hallucination(segments: Sequence[Segment], stretch: Stretch, silence: Silence) -> int:
    """How many segments come before a hallucination, amid silence or other hallucinations."""
    last_end_s = silence.last_speech_s
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomalous(segment.words):
            following = _next_with_words(segments[i + 1 :])
            next_s = stretch.start_s + stretch.length_s
            if following is not None:
                next_s = following.words[0].start_s
            silence_before = (
                segment.start_s - last_end_s > silence.longest_s
                or segment.start_s < silence.longest_s
                or segment.start_s - stretch.start_s < _NEAR_S
            )
            silence_behind = (
                next_s - segment.end_s > silence.longest_s
                or (following is not None and is_anomalous(following.words))
                or silence.full_end_s - segment.end_s < _NEAR_S
            )
            if silence_before and silence_behind:
                return i
        last_end_s = segment.end_s
    return len(segments)


def _next_with_words(segments: Sequence[Segment]) -> Segment | None:
    return next((segment for segment in segments if segment.words), None)
