"""Who speaks in a whole recording, without the models."""

import numpy as np
import pytest

from streamd.speakers import HeardVoices, SpokenTurn, VoiceStretch, samples, stretches
from streamd.speakers.clustering import CONTEXT, STEP, VoiceRecording, clustered

RNG = np.random.default_rng(0)


def voices(*numbers, spread=0.5):
    """A vector for each, of which equal numbers are alike."""
    centres = np.linalg.qr(RNG.standard_normal((256, 20)))[0].T
    noise = RNG.standard_normal((len(numbers), 256)) * spread / 16
    found = centres[list(numbers)] + noise
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def same(labels, numbers):
    pairs = {(a, b) for a, b in zip(labels, numbers, strict=True)}
    return len(pairs) == len(set(labels)) == len(set(numbers))


def test_voices_that_are_alike_are_one_speaker():
    numbers = [0, 1, 0, 2, 1, 0, 2, 2]
    assert same(clustered(voices(*numbers)), numbers)


def test_one_voice_is_one_speaker():
    assert len(clustered(voices(3))) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_there_are_as_many_speakers_as_are_known(n):
    assert len(set(clustered(voices(0, 1, 0, 2, 1, 0, 2, 2), n))) == n


def test_the_nearest_are_joined_first():
    near = voices(0, 0, 1, 1, 2)
    assert same(clustered(near, 3), [0, 0, 1, 1, 2])


def hear(recording, activity, voice_of):
    """Have a recording hear `activity` (n, 3), whose speaker in frame f has `voice_of(f)`."""
    while recording.heard < len(activity):
        request = recording.request(min(len(activity), recording.heard + STEP))
        assert request.end - request.start <= STEP + CONTEXT
        part = activity[request.start : request.end]
        found = stretches(part, request)
        chosen = samples(part, np.zeros(len(part)), request, found)
        for i, place in enumerate(chosen):
            if place is not None:
                each, n = found[i], place[1] - place[0]
                voice = voice_of(place[0] + request.start)
                found[i] = VoiceStretch(each.places, each.local, each.voice, each.same, voice, n)
        recording.hear(HeardVoices(request, tuple(found)))


def test_turns_are_whole_where_the_audio_was_heard_in_steps():
    activity = np.zeros((3 * STEP, 3), np.bool_)
    activity[50 : STEP + 200, 0] = activity[STEP + 250 : 3 * STEP - 20, 1] = True
    first, second = voices(0, 1)
    recording = VoiceRecording()
    hear(recording, activity, lambda frame: first if frame < STEP + 225 else second)
    turns = recording.turns()
    assert {(turn.speaker, turn.start < STEP + 225) for turn in turns} == {(1, True), (2, False)}
    covered = np.zeros(len(activity), np.bool_)
    for turn in turns:
        assert isinstance(turn, SpokenTurn)
        assert not covered[turn.start : turn.end].any()
        covered[turn.start : turn.end] = True
    assert (covered == activity.any(1)).all()


def test_a_voice_that_the_segmentation_takes_for_the_one_before_is_told_apart():
    activity = np.zeros((2 * STEP, 3), np.bool_)
    activity[50 : 2 * STEP - 20, 0] = True
    first, second = voices(0, 1)
    recording = VoiceRecording()
    hear(recording, activity, lambda frame: first if frame < STEP else second)
    assert [(turn.start, turn.end, turn.speaker) for turn in recording.turns()] == [
        (50, STEP, 1),
        (STEP, 2 * STEP - 20, 2),
    ]


def test_silence_has_no_turns():
    recording = VoiceRecording()
    hear(recording, np.zeros((STEP + 7, 3), np.bool_), lambda frame: None)
    assert recording.turns() == recording.turns(2) == []
