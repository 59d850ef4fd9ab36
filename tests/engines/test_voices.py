"""The models that tell speakers apart, on real voices."""

import subprocess
import sys

import numpy as np
import pytest

from streamd.engines import voices
from streamd.engines.voices import (
    Listener,
    RecordedVoices,
    filter_banks,
    hear,
    listen,
    segment,
)
from streamd.speakers import HeardVoices, HearingRequest, HearingStep, Roster, changes, talking
from streamd.types import FRAME, Hypothesis, Window
from tests.support.recorded import samples

JFK, READER, KATHLEEN = samples("jfk"), samples("two_cities"), samples()


def piece(sound, start, n=75):
    """n frames from frame `start` on."""
    return sound[FRAME * start : FRAME * (start + n)]


def centred(banks):
    return banks - banks.mean(0)


def test_speech_is_found_where_it_is():
    silence = np.zeros(50 * FRAME, np.float32)
    activity, chances = segment(np.concatenate([silence, piece(READER, 50, 150), silence]))
    assert activity.shape == chances.shape == (250, 3)
    assert np.all(chances[activity] > 1 / 7)
    assert np.all((chances >= 0) & (chances <= 1 + 1e-6))
    talks = activity.any(1)
    assert not talks[:45].any()
    assert talks[60:190].mean() > 0.8
    assert not talks[215:].any()


@pytest.mark.parametrize("n_frames", [1, 5, 24, 25, 26])
def test_short_audio_is_heard_too(n_frames):
    assert [each.shape for each in segment(piece(READER, 100, n_frames))] == [(n_frames, 3)] * 2


def test_a_voice_is_more_like_itself_than_like_others():
    pieces = [piece(sound, start) for sound in (JFK, READER, KATHLEEN) for start in (30, 120)]
    voices = np.concatenate(
        [listen(centred(filter_banks(each)))(np.ones((1, 75), np.bool_)) for each in pieces]
    )
    assert np.allclose(np.linalg.norm(voices, axis=1), 1, atol=1e-5)
    likeness = voices @ voices.T
    same = [likeness[i, i + 1] for i in (0, 2, 4)]
    others = [likeness[i, j] for i in range(6) for j in range(6) if i // 2 != j // 2]
    assert min(same) > max(others)


def test_a_change_of_speaker_within_a_step_is_found():
    sound = np.concatenate([piece(READER, 50, 150), piece(JFK, 30, 150)])
    roster = Roster()
    hear(roster, HearingStep(0, 0, 300, 300), sound, start=0)
    (change,) = changes(roster.turns)
    assert abs(change - 150) < 25
    assert {turn.speaker for turn in roster.turns} == {1, 2}


@pytest.mark.parametrize("block", [1, 70, 1000])
def test_the_speakers_of_a_recording_are_told_apart(block):
    silence = np.zeros(100 * FRAME, np.float32)
    pieces = [piece(READER, 50, 150), silence, piece(JFK, 30, 150), piece(READER, 250, 150)]
    sound = np.concatenate(pieces).reshape(-1, FRAME)
    gate = [(0, 0)] * 150 + [(8 + i, 0) for i in range(100)] + [(0, 20)] * 300
    voices = RecordedVoices()
    for first in range(0, len(sound), block):
        voices.feed(sound[first : first + block], gate[first : first + block])
    turns = voices.turns()
    who = [[*talking(turns, middle - 20, middle + 20)] for middle in (75, 325, 475)]
    assert who == [[1], [2], [1]]
    assert all(turn.end <= 150 or turn.start >= 225 for turn in turns)


def test_filter_banks_are_kaldis():
    # of compute-fbank-feats for a tone of 1 kHz: the band around it is the loudest
    tone = 0.1 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000).astype(np.float32)
    noise = 0.001 * np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    banks = filter_banks(np.concatenate([noise, tone + noise]))
    assert banks.shape == (198, 80)
    # 1127 ln(1 + 1000/700) lies 28.2 of the 81 steps from 20 Hz to 8 kHz
    assert int((banks[150] - banks[20]).argmax()) in (27, 28)


def test_only_windows_that_ask_are_listened_to():
    class Fake:
        def recognize(self, window):
            return Hypothesis(language="en")

    sound = piece(READER, 50, 100)
    asked = HearingRequest(
        (HearingStep(110, 110, 160, 160), HearingStep(140, 160, 200, 200)), 100, sound, Roster()
    )
    listener = Listener(Fake())
    assert listener.recognize(Window(100, 200, sound)).answer(HeardVoices) is None
    window = Window(100, 200, sound, asks=(asked,))
    heard = listener.recognize(window).answer(HeardVoices).rosters
    assert [roster.heard for roster in heard] == [160, 200]
    assert asked.roster.heard == 0
    assert all(110 <= turn.start < turn.end <= 200 for turn in heard[-1].turns)


def test_nothing_is_loaded_before_it_is_needed():
    check = (
        "import streamd.daemon, streamd.engines.voices as v; print(v._model.cache_info().misses)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_of_a_recording_a_place_without_a_voice_is_segmented_by_itself(monkeypatch):
    def begins_only(audio):
        activity = np.zeros((len(audio) // FRAME, 3), np.bool_)
        activity[:100, 1] = True
        return activity, activity.astype(np.float32)

    monkeypatch.setattr(voices, "segment", begins_only)
    for n, n_heard in ((100, 100), (149, 100), (150, 150), (260, 200)):
        activity, chances = voices.segment_twice(np.zeros(FRAME * n, np.float32))
        assert np.flatnonzero(activity[:, 1]).tolist() == [*range(n_heard)]
        assert np.array_equal(activity, chances > 0.5)
