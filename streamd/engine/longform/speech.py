"""Where there is speech in a recording: what is transcribed, and where a window really ends.

Transcribed are the parts that the user chose, or those with speech. A window's text may hold
hallucinations in silence, which are improbable, too short or too long; openai/whisper
``transcribe.py`` (``hallucination_silence_threshold``), rule for rule. Conversely, Whisper may end
the text after a few words, or leave a hole in it, though there is more speech; then the times of
the words are compared with what the voice detector found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.engine.longform.segments import (
    COLUMNS_PER_FRAME,
    FRAMES_PER_S,
    Split,
    Stretch,
    TimedSegment,
    column_at,
    end_of_words_s,
    in_ms,
)
from streamd.search.guards import is_anomalous
from streamd.types import Frames
from streamd.vad import Gate, level_db
from streamd.vad.segmenter import Segmenter

Voiced = NDArray[np.bool_]
"""For each frame of a recording, whether there is speech."""

MERGED_PAUSE = 200
"""Columns (2 s): longer silence is left out; Whisper copes with shorter silence in a window."""
_NEAR_S = 2.0
"""Beyond an end of its window that is closer than this, a segment may have silence."""
_LEAST_STEP_S = 1.0
_MOST_MISSED = 250
"""Voiced frames (5 s): more of them without a word are speech that was missed."""
_LEAST_CHANGE = 50
"""Frames (1 s) by which a window must differ from the one before to be worth decoding."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Columns `start` to `end`, exclusive; text that reaches a `silent_end` is complete."""

    start: int
    end: int
    silent_end: bool = False


def clips_at(points_ms: Sequence[int], n_columns: int) -> list[Clip]:
    """The clips between pairs of points: start, end, start, end, ... (``clip_timestamps``).

    The last end may be missing, and no points at all mean the whole recording.
    """
    points = [min(column_at(ms / 1000), n_columns) for ms in points_ms] or [0]
    if len(points) % 2:
        points.append(n_columns)
    clips = (Clip(start, end) for start, end in zip(points[::2], points[1::2], strict=True))
    return [clip for clip in clips if clip.start < clip.end]


class SpeechClips:
    """Finds speech while a recording is read: `feed` all of its frames, then ask for `clips`.

    `gate` and `segmenter` belong to it alone. The text is not known yet, so all pauses of the
    segmenter must have one length.
    """

    def __init__(self, gate: Gate, segmenter: Segmenter) -> None:
        if segmenter.options.shortest_pause != segmenter.options.longest_pause:
            raise ValueError("the end of an utterance may not depend on its text")
        self._gate, self._segmenter = gate, segmenter
        self._voiced = bytearray()

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        for frame in frames:
            level = level_db(frame)
            silence = self._gate.update(frame, level)
            self._voiced.append(silence == 0)
            self._segmenter.push(silence, level, self._gate.late)
            self._segmenter.forget(self._segmenter.cursor - self._segmenter.options.tail - 2)

    @property
    def voiced(self) -> Voiced:
        """For each frame, whether the gate was open."""
        return np.frombuffer(self._voiced, np.bool_)

    def clips(self, n_columns: int, *, longest: int) -> list[Clip]:
        """The clips of speech; the recording ends here.

        Clips with a short pause between them are merged, up to `longest` columns: fewer windows,
        and more context for each (as in m-bain/whisperX).
        """
        self._segmenter.flush(doubtful=self._gate.doubtful)
        clips: list[Clip] = []
        for utterance in self._segmenter.utterances:
            if utterance.pause == utterance.start:
                continue  # the silent rest of an utterance that was cut
            start, end = (COLUMNS_PER_FRAME * at for at in (utterance.start, utterance.end or 0))
            if clips and start - clips[-1].end <= MERGED_PAUSE and end - clips[-1].start <= longest:
                start = clips.pop().start
            silent_end = utterance.pause is not None or end >= n_columns
            clips.append(Clip(start, min(end, n_columns), silent_end))
        return [clip for clip in clips if clip.start < clip.end]


def without_hallucinations(
    split: Split,
    stretch: Stretch,
    longest_s: float,
    *,
    last_speech_s: float,
    full_end_s: float,
    end_s: float,
) -> Split | int:
    """Drop hallucinations in silence from a window's segments, which have their words.

    More silence than `longest_s` is skipped. The last word before the window ended at
    `last_speech_s`, the window would end at `full_end_s` if it were full, and the recording ends at
    `end_s`. Returns the rest, or the column to decode from, if the window begins with silence and a
    hallucination.
    """
    seek = split.seek
    words_end_s = end_of_words_s(split.segments)
    if not split.complete and words_end_s is not None and words_end_s > stretch.start_s:
        rest_s = full_end_s - words_end_s
        seek = column_at(words_end_s) if rest_s > longest_s else stretch.end
    first = _next_with_words(split.segments)
    if first is not None and _is_anomalous(first):
        gap_s = first.start_s - stretch.start_s
        if gap_s > longest_s:
            return stretch.seek + column_at(gap_s)
    n_kept = _n_before_hallucination(
        split.segments, stretch, longest_s, last_end_s=last_speech_s, full_end_s=full_end_s
    )
    if n_kept == len(split.segments):
        return split._replace(seek=seek)
    invented = split.segments[n_kept]
    seek = column_at(max(stretch.start_s + _LEAST_STEP_S, invented.start_s))
    if end_s - invented.end_s < longest_s:
        seek = column_at(end_s)
    return Split(split.segments[:n_kept], seek, split.complete)


def _n_before_hallucination(
    segments: Sequence[TimedSegment],
    stretch: Stretch,
    longest_s: float,
    *,
    last_end_s: float,
    full_end_s: float,
) -> int:
    """How many segments come before a hallucination, amid silence or other hallucinations."""
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if _is_anomalous(segment):
            following = _next_with_words(segments[i + 1 :])
            next_s = stretch.start_s + stretch.length_s
            if following is not None:
                next_s = following.words[0].start_s
            silence_before = (
                segment.start_s - last_end_s > longest_s
                or segment.start_s < longest_s
                or segment.start_s - stretch.start_s < _NEAR_S
            )
            silence_after = (
                next_s - segment.end_s > longest_s
                or (following is not None and _is_anomalous(following))
                or full_end_s - segment.end_s < _NEAR_S
            )
            if silence_before and silence_after:
                return i
        last_end_s = segment.end_s
    return len(segments)


def _is_anomalous(segment: TimedSegment) -> bool:
    return is_anomalous(
        [(w.text, w.prob, in_ms(w.end_s) - in_ms(w.start_s)) for w in segment.words]
    )


def _next_with_words(segments: Sequence[TimedSegment]) -> TimedSegment | None:
    return next((segment for segment in segments if segment.words), None)


def before_missed(found: Split, stretch: Stretch, voiced: Voiced) -> Split:
    """Keep a window's segments up to the first missed speech, where the next window begins.

    That is at least a second after this one.
    """
    begin = done = stretch.seek // COLUMNS_PER_FRAME
    for n_before, segment in enumerate(found.segments):
        kept = done
        for start, end in _spans(segment):
            if kept - begin >= _LEAST_CHANGE and _is_speech(voiced[done:start]):
                return Split(found.segments[:n_before], COLUMNS_PER_FRAME * kept, complete=False)
            done = max(done, end)
    if done - begin >= _LEAST_CHANGE and _is_speech(voiced[done : found.seek // COLUMNS_PER_FRAME]):
        return found._replace(seek=COLUMNS_PER_FRAME * done, complete=False)
    return found


def missed_first(found: Split, stretch: Stretch, voiced: Voiced) -> Stretch | None:
    """The part of a window before its first word, if speech in it was missed."""
    if not found.segments:
        return None
    begin, (first, _) = stretch.seek // COLUMNS_PER_FRAME, _spans(found.segments[0])[0]
    hole = Stretch(stretch.seek, COLUMNS_PER_FRAME * (first - begin))
    too_long = stretch.n_columns - hole.n_columns < COLUMNS_PER_FRAME * _LEAST_CHANGE
    return None if too_long or not _is_speech(voiced[begin:first]) else hole


def _spans(segment: TimedSegment) -> list[tuple[int, int]]:
    """Start and end of each word in frames, or of a segment without words."""
    times = [(word.start_s, word.end_s) for word in segment.words]
    times = times or [(segment.start_s, segment.end_s)]
    return [(round(start * FRAMES_PER_S), round(end * FRAMES_PER_S)) for start, end in times]


def _is_speech(voiced: Voiced) -> bool:
    return int(np.count_nonzero(voiced)) > _MOST_MISSED
