"""Passes over silence where a confused model wrote words nobody said.

Such words are improbable, too short or too long (`streamd.search.anomaly`) and stand in silence.
Source: openai/whisper ``transcribe.py`` (``hallucination_silence_threshold``), rule for rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.engine.longform.segments import (
    Segment,
    Split,
    Stretch,
    column_of,
    end_of_words_ms,
)
from streamd.search.anomaly import is_anomalous

_NEAR_MS = 2_000
"""A segment this close to an end of its window may stand in silence that is not seen."""
_LEAST_STEP_MS = 1_000


@dataclass(frozen=True, slots=True)
class Silence:
    """What is known about the silence around a window's words.

    `longest_ms`: more of it is passed over; `last_speech_ms`: when the last word before the window
    ended; `full_end_ms`: the end of the window if it were full; `end_ms`: the recording's.
    """

    longest_ms: int
    last_speech_ms: int
    full_end_ms: int
    end_ms: int


def without_dreams(split: Split, stretch: Stretch, silence: Silence) -> Split | int:
    """What is left of a window's segments, which have their words, and where to go on.

    A column instead: the window began with silence and then dreamt; look again from there.
    """
    seek = split.seek
    spoken_until_ms = end_of_words_ms(split.segments)
    if not split.complete and spoken_until_ms is not None and spoken_until_ms > stretch.start_ms:
        rest_ms = silence.full_end_ms - spoken_until_ms
        seek = column_of(spoken_until_ms) if rest_ms > silence.longest_ms else stretch.end
    first = _next_with_words(split.segments)
    if first is not None and is_anomalous(first.words):
        gap_ms = first.start_ms - stretch.start_ms
        if gap_ms > silence.longest_ms:
            return stretch.seek + column_of(gap_ms)
    n_kept = _n_before_dream(split.segments, stretch, silence)
    if n_kept == len(split.segments):
        return split._replace(seek=seek)
    dream = split.segments[n_kept]
    seek = column_of(max(stretch.start_ms + _LEAST_STEP_MS, dream.start_ms))
    if silence.end_ms - dream.end_ms < silence.longest_ms:
        seek = column_of(silence.end_ms)
    return Split(split.segments[:n_kept], seek, split.complete)


def _n_before_dream(segments: Sequence[Segment], stretch: Stretch, silence: Silence) -> int:
    """How many segments come before one that looks dreamt, amid silence or other dreams."""
    last_end_ms = silence.last_speech_ms
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomalous(segment.words):
            following = _next_with_words(segments[i + 1 :])
            next_ms = stretch.end_ms if following is None else following.words[0].start_ms
            silence_before = (
                segment.start_ms - last_end_ms > silence.longest_ms
                or segment.start_ms < silence.longest_ms
                or segment.start_ms - stretch.start_ms < _NEAR_MS
            )
            silence_behind = (
                next_ms - segment.end_ms > silence.longest_ms
                or (following is not None and is_anomalous(following.words))
                or silence.full_end_ms - segment.end_ms < _NEAR_MS
            )
            if silence_before and silence_behind:
                return i
        last_end_ms = segment.end_ms
    return len(segments)


def _next_with_words(segments: Sequence[Segment]) -> Segment | None:
    return next((segment for segment in segments if segment.words), None)
