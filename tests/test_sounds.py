"""When a sound is told, from the probabilities of a classifier."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Sound
from streamd.sounds import CLASSES, LABELS, SoundTracker, SoundWindows
from streamd.types import FRAME, SAMPLE_RATE

MUSIC, LAUGHTER, SILENCE = (
    CLASSES[LABELS.index(each)] for each in ("music", "laughter", "silence")
)
HOP_MS = 480


def windows(*probs: dict[str, float]) -> list[np.ndarray]:
    found = []
    for given_ in probs:
        scores = np.zeros(521, np.float32)
        for label, prob in given_.items():
            scores[CLASSES[LABELS.index(label)].classes[-1]] = prob
        found.append(scores)
    return found


def told(*probs: dict[str, float], end: bool = True) -> list[Sound]:
    tracker = SoundTracker()
    found: list[Sound] = []
    for i, scores in enumerate(windows(*probs)):
        found += tracker.feed(scores, i * HOP_MS)
    return [*found, *tracker.end()] if end else found


def test_one_doubtful_window_is_no_sound_but_two_are():
    assert told({}, {"music": 0.6}, {}, {"music": 0.6}, {}) == []
    first, *_ = told({}, {"music": 0.6}, {"music": 0.7}, end=False)
    assert (first.label, first.start_ms, first.end_ms, first.prob) == ("music", 960, 1440, 0.7)


def test_one_window_that_is_sure_is_enough_for_an_alarm():
    (first,) = told({}, {"alarm": 0.9}, end=False)
    assert first.start_ms == 960
    assert told({}, {"dog": 0.9}, end=False) == []


def test_a_sound_is_told_again_with_its_end():
    begun, over = told(*[{"dog": 0.9}] * 3, *[{}] * 6, end=False)
    assert (begun.label, begun.start_ms) == (over.label, over.start_ms) == ("dog", 480)
    assert (begun.end_ms, over.end_ms) == (960, 1440)


def test_music_with_short_pauses_is_one_sound():
    passage = [{"music": 0.9}, {"music": 0.9}, {}, {"music": 0.3}, *[{}] * 5]
    found = told(*passage * 4)
    assert {each.start_ms for each in found} == {480}
    assert len(found) == 2


def test_music_that_speech_hides_for_long_is_one_sound_but_silence_ends_it():
    hidden = [*[{"music": 0.9}] * 5, *[{}] * 35]
    assert {each.start_ms for each in told(*hidden * 3)} == {480}
    silent = [*[{"music": 0.9}] * 5, *[{"silence": 0.9}] * 10]
    assert len({each.start_ms for each in told(*silent * 3) if each.label == "music"}) == 3


def test_a_baby_who_cries_does_not_laugh():
    crying = told(*[{"baby crying": 0.9}] * 2, *[{"laughter": 0.3}] * 2, *[{}] * 12)
    assert {each.label for each in crying} == {"baby crying"}
    later = told(*[{"baby crying": 0.9}] * 2, *[{}] * 8, *[{"laughter": 0.3}] * 2)
    assert [each.label for each in later] == ["baby crying"] * 2 + ["laughter"] * 2


@pytest.mark.parametrize(("notes", "n_told"), [((50,), 0), ((262, 330, 392, 523), 1)])
def test_a_hum_is_no_music(notes, n_told):
    """Whatever the classifier says: of music, the pitch changes within a second."""
    t = np.arange(10 * SAMPLE_RATE) / SAMPLE_RATE
    pitch = np.array(notes)[(t * 3).astype(int) % len(notes)]
    tone = sum(np.sin(2 * np.pi * n * pitch * t) / n for n in range(1, 8))
    noise = np.random.default_rng(1).normal(0, 0.1, len(t))
    frames = (0.1 * (tone + noise)).astype(np.float32).reshape(-1, FRAME)
    (music,) = windows({"music": 0.9})
    found = SoundTracker().hear(SoundWindows().feed(frames, 0), lambda _: music)
    assert len([*found]) == n_told


def test_what_goes_on_at_the_end_is_told():
    _, over = told(*[{"alarm": 0.9}] * 10)
    assert over.end_ms == 10 * HOP_MS


def test_silence_is_told_only_after_a_long_sound():
    silent, short, long = [{"silence": 0.9}] * 6, [{"music": 0.9}] * 5, [{"music": 0.9}] * 30
    pause = [{}] * 3
    assert "silence" not in {each.label for each in told(*silent, *short, *pause, *silent)}
    labels = [each.label for each in told(*long, *pause, *silent, *pause * 2)]
    assert labels == ["music", "music", "silence", "silence"]


def test_silence_is_told_once_the_sound_before_it_is_over():
    """It begins while the end of the music is still waited for."""
    found = told(*[{"music": 0.9}] * 30, *[{"silence": 0.9}] * 20)
    assert [each.label for each in found] == ["music", "music", "silence", "silence"]
    assert found[2].start_ms >= found[1].end_ms


def test_a_pause_in_speech_after_music_is_no_silence_to_tell():
    labels = {
        each.label for each in told(*[{"music": 0.9}] * 30, *[{}] * 10, *[{"silence": 1}] * 9)
    }
    assert labels == {"music"}


@pytest.mark.parametrize("sound", CLASSES, ids=LABELS)
def test_thresholds_are_in_order(sound):
    assert 0 < sound.off <= sound.on < 1


PROBS = st.lists(st.dictionaries(st.sampled_from(LABELS), st.floats(0, 1), max_size=3), max_size=60)


@given(PROBS)
def test_sounds_of_a_label_do_not_overlap_and_each_is_completed(probs):
    found = told(*probs)
    for label in LABELS:
        of_label = [each for each in found if each.label == label]
        starts = list(dict.fromkeys(each.start_ms for each in of_label))
        assert starts == sorted(starts)
        last = [[e for e in of_label if e.start_ms == start][-1] for start in starts]
        assert all(a.end_ms <= b.start_ms for a, b in pairwise(last))
        assert all(each.start_ms < each.end_ms and 0 < each.prob <= 1 for each in of_label)
        assert all(1 <= [e.start_ms for e in of_label].count(start) <= 2 for start in starts)
