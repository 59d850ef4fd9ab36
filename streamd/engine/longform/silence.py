"""Corrects where a window of a recording ends: it skips silence and goes back to missed speech.

A hallucination is improbable, too short or too long (`streamd.search.guards`) and lies in silence;
openai/whisper ``transcribe.py`` (``hallucination_silence_threshold``), rule for rule. Conversely,
Whisper sometimes ends the text of a window after a few words, or leaves a hole in it, though speech
goes on; then the times of the words are compared with what the voice detector found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.engine.longform.segments import (
    COLUMNS_PER_FRAME,
    Split,
    Stretch,
    TimedSegment,
    column_at,
    end_of_words_s,
)
from streamd.search.guards import is_anomalous
from streamd.types import FRAME, SAMPLE_RATE

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


def _n_before_hallucination(
    segments: Sequence[TimedSegment], stretch: Stretch, silence: Silence
) -> int:
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


def _next_with_words(segments: Sequence[TimedSegment]) -> TimedSegment | None:
    return next((segment for segment in segments if segment.words), None)


Voiced = NDArray[np.bool_]
"""For each frame of a recording, whether somebody speaks."""

_MOST_MISSED = 250
"""Frames (5 s): more voice than this without a word is speech that was passed over."""
_LEAST_CHANGE = 50
"""Frames (1 s): a window that begins or ends so near to the one before would show the same."""


def before_missed(found: Split, stretch: Stretch, voiced: Voiced) -> Split:
    """Keep a window's segments up to the first hole with speech in it; go on from there.

    A hole in the first second is left as it is, so that each window gets on by a second at least.
    """
    begin = heard = stretch.seek // COLUMNS_PER_FRAME
    for n_before, segment in enumerate(found.segments):
        kept = heard
        for start, end in _spans(segment):
            if kept - begin >= _LEAST_CHANGE and _is_speech(voiced[heard:start]):
                return Split(found.segments[:n_before], COLUMNS_PER_FRAME * kept, complete=False)
            heard = max(heard, end)
    if heard - begin >= _LEAST_CHANGE and _is_speech(
        voiced[heard : found.seek // COLUMNS_PER_FRAME]
    ):
        return found._replace(seek=COLUMNS_PER_FRAME * heard, complete=False)
    return found


def missed_first(found: Split, stretch: Stretch, voiced: Voiced) -> Stretch | None:
    """Return the part of a window before its first word if speech in it was passed over."""
    if not found.segments:
        return None
    begin, (first, _) = stretch.seek // COLUMNS_PER_FRAME, _spans(found.segments[0])[0]
    hole = Stretch(stretch.seek, COLUMNS_PER_FRAME * (first - begin))
    too_long = stretch.n_columns - hole.n_columns < COLUMNS_PER_FRAME * _LEAST_CHANGE
    return None if too_long or not _is_speech(voiced[begin:first]) else hole


def _spans(segment: TimedSegment) -> list[tuple[int, int]]:
    """Return the first and the last frame of each word, or of a segment without words."""
    times = [(word.start_s, word.end_s) for word in segment.words]
    times = times or [(segment.start_s, segment.end_s)]
    per_second = SAMPLE_RATE // FRAME
    return [(round(start * per_second), round(end * per_second)) for start, end in times]


def _is_speech(voiced: Voiced) -> bool:
    return int(np.count_nonzero(voiced)) > _MOST_MISSED
