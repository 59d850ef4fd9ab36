"""Speech without words is decoded again: from where, and when not."""

import numpy as np
import pytest

from streamd.whisper.longform.segments import (
    Split,
    SpokenWord,
    Stretch,
    TimedSegment,
    before_missed,
    missed_first,
)

SEEK = 4_000
STRETCH = Stretch(SEEK, 3_000)


def segment(*words: tuple[float, float], timed: bool = True) -> TimedSegment:
    """With words at these seconds of the window, or only with their times as its own."""
    spoken = tuple(SpokenWord(" a", 40 + start, 40 + end, 0.9) for start, end in words)
    return TimedSegment(
        seek=SEEK,
        start_s=spoken[0].start_s,
        end_s=spoken[-1].end_s,
        text=" a" * len(words),
        tokens=(),
        probs=(),
        decoded=None,
        words=spoken if timed else (),
    )


def speech(*stretches: tuple[float, float]) -> np.ndarray:
    """Voiced between these seconds of the window."""
    voiced = np.zeros(4_000, np.bool_)
    for start, end in stretches:
        voiced[2_000 + round(50 * start) : 2_000 + round(50 * end)] = True
    return voiced


def ends_early(*segments: TimedSegment) -> Split:
    """The model says that nothing follows in the window."""
    return Split(list(segments), STRETCH.end, complete=True)


@pytest.mark.parametrize("timed", [True, False])
def test_the_rest_of_a_window_with_speech_is_the_next_window(timed):
    found = ends_early(segment((0.2, 0.8), (0.9, 2.0), timed=timed))
    kept = before_missed(found, STRETCH, speech((0.0, 7.02)))
    assert kept == Split(found.segments, SEEK + 200, complete=False)


@pytest.mark.parametrize(
    "stretches",
    [
        [],
        [(0.0, 7.0)],  # no more than 5 s of voice behind the last word
        [(0.0, 2.0), (30.0, 40.0)],  # behind the window
        [(2.0, 4.0), (10.0, 12.9)],
    ],
)
def test_a_rest_with_little_speech_is_passed_over(stretches):
    found = ends_early(segment((0.2, 2.0)))
    assert before_missed(found, STRETCH, speech(*stretches)) == found


def test_voice_counts_and_not_time():
    found = ends_early(segment((0.2, 2.0)))
    kept = before_missed(found, STRETCH, speech((3.0, 6.0), (15.0, 17.1)))
    assert kept.seek == SEEK + 200


def test_what_comes_behind_a_hole_is_decoded_again():
    before, after = segment((0.2, 2.0)), segment((9.0, 12.0))
    kept = before_missed(ends_early(before, after), STRETCH, speech((0.0, 12.0)))
    assert kept == Split([before], SEEK + 200, complete=False)


def test_a_segment_with_a_hole_in_it_is_decoded_again():
    before, holed = segment((0.2, 2.0)), segment((2.0, 3.0), (9.0, 12.0))
    kept = before_missed(ends_early(before, holed), STRETCH, speech((0.0, 12.0)))
    assert kept == Split([before], SEEK + 200, complete=False)


@pytest.mark.parametrize(
    ("words", "seek"),
    [
        ([(0.0, 0.98)], STRETCH.end),
        ([(0.2, 0.6), (9.0, 29.0)], STRETCH.end),
        ([(9.0, 12.0)], SEEK + 1_200),  # the hole behind it; for the one before see below
    ],
)
def test_what_would_be_the_same_window_again_is_not_tried(words, seek):
    found = ends_early(segment(*words))
    kept = before_missed(found, STRETCH, speech((0.0, 30.0)))
    assert (kept.segments, kept.seek) == (found.segments, seek)


def test_no_segments_no_hole():
    assert before_missed(ends_early(), STRETCH, speech((0.0, 30.0))) == ends_early()


def test_what_comes_before_the_first_word_is_decoded_alone():
    found = ends_early(segment((9.0, 12.0)))
    assert missed_first(found, STRETCH, speech((0.0, 12.0))) == Stretch(SEEK, 900)


@pytest.mark.parametrize(
    ("found", "voiced"),
    [
        (ends_early(segment((9.0, 12.0))), speech((0.0, 5.0), (9.0, 12.0))),
        (ends_early(segment((0.5, 1.0), (20.0, 21.0))), speech((0.0, 30.0))),
        (ends_early(segment((29.5, 30.0))), speech((0.0, 30.0))),  # it would be all of the window
        (ends_early(), speech((0.0, 30.0))),
    ],
)
def test_without_much_speech_before_the_first_word_nothing_is(found, voiced):
    assert missed_first(found, STRETCH, voiced) is None
