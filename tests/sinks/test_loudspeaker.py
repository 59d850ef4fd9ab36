"""Files that are played while they are captioned."""

import sys

import numpy as np
import pytest

from streamd.sinks.loudspeaker import loudspeaker
from streamd.types import FRAME
from tests.support.fake_portaudio import FakePortAudio


@pytest.fixture
def fake(monkeypatch):
    portaudio = FakePortAudio()
    monkeypatch.setitem(sys.modules, "sounddevice", portaudio)
    return portaudio


def test_every_sample_is_played_once_in_order_and_silence_while_none_is_there(fake):
    ramp = np.arange(1, 10 * FRAME + 1, dtype=np.float32)
    heard = []
    with loudspeaker() as play:
        (stream,) = fake.streams
        assert stream.running
        assert stream.settings["samplerate"] == 16_000

        def device(n: int) -> None:
            block = np.full((n, 1), np.nan, np.float32)
            stream.settings["callback"](block, n, None, None)
            heard.append(block[:, 0])

        device(100)
        for frames in np.split(ramp.reshape(-1, FRAME), [3, 7]):
            play(frames)
            device(700)
        device(5000)
    assert stream.closed
    sound = np.concatenate(heard)
    assert np.array_equal(sound[sound != 0], ramp)
    assert not sound[:100].any()


def test_without_a_loudspeaker_it_is_silent_and_says_so(fake, caplog):
    fake.start_fails = True
    with loudspeaker() as play:
        assert play is None
    assert "no sound: is there a loudspeaker? (Error starting stream" in caplog.text
