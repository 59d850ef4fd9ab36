"""Recordings over a telephone and across a room: what is said stays where it was."""

import importlib.util

import numpy as np
import pytest
import soundfile

import channels
from tests.support import recorded


@pytest.mark.parametrize("codec", ["g711", "gsm", "opus"])
def test_a_telephone_has_nothing_above_four_kilohertz_and_no_delay(codec):
    sound = recorded.samples("jfk").astype(np.float64)
    heard = channels.telephone(sound, codec)
    assert heard.shape == sound.shape
    power = np.abs(np.fft.rfft(heard)) ** 2
    above = power[len(power) // 2 + 1 :].sum()
    assert above < 1e-6 * power.sum()
    assert abs(shift(sound, heard)) <= 16  # a millisecond


@pytest.mark.skipif(
    importlib.util.find_spec("pyroomacoustics") is None, reason="needs pyroomacoustics"
)
@pytest.mark.parametrize("name", ["table", "hall", "office"])
def test_a_room_is_as_loud_and_has_no_delay(name):
    sound = recorded.samples("jfk").astype(np.float64)
    heard = channels.room(sound, name)
    assert heard.shape == sound.shape
    assert np.isclose(np.std(heard), np.std(sound), rtol=0.01)
    click = np.zeros(16_000)
    click[1_000] = 1
    echoes = np.abs(channels.room(click, name))  # some may be louder than the direct sound
    assert abs(int(np.argmax(echoes > 0.5 * echoes.max())) - 1_000) <= 1


def shift(sound: np.ndarray, heard: np.ndarray) -> int:
    """By how many samples the second sound is later."""
    n = 2 * len(sound)
    across = np.fft.irfft(np.fft.rfft(heard, n) * np.conj(np.fft.rfft(sound, n)), n)
    at = int(np.argmax(across))
    return at if at < n // 2 else at - n


def test_a_microphone_that_is_turned_down_or_far_from_one_speaker(tmp_path):
    path = tmp_path / "talk.wav"
    soundfile.write(path, np.full(16_000, 0.5), 16_000)
    quiet, _ = soundfile.read(channels.write(path, "down40", tmp_path))
    assert quiet == pytest.approx(0.005, abs=1e-4)
    heard, _ = soundfile.read(channels.far_from(path, "ANNA", [(250, 500)], tmp_path))
    assert heard[[3_999, 4_000, 7_999, 8_000]] == pytest.approx([0.5, 0.028, 0.028, 0.5], abs=1e-3)
