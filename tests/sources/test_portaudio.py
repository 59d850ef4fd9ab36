"""Through a real PortAudio device, sample by sample."""

import asyncio
from threading import Event

import numpy as np
import pytest
import soundfile

from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.sources.call import BothSides
from streamd.sources.microphone import MONITOR, Microphone, list_devices
from streamd.types import SAMPLE_RATE
from tests.support.pulseaudio import DEVICE, SINK

pytestmark = pytest.mark.portaudio

RAMP = (np.arange(1, SAMPLE_RATE + 1) / 2**20).astype(np.float32)
"""A second in which each sample is its own number."""


@pytest.fixture
def recording(tmp_path):
    # When a stream starts, the null sink plays its first 20 ms again, and the monitor misses them.
    silence = np.zeros(SAMPLE_RATE // 2, np.float32)
    path = tmp_path / "ramp.wav"
    soundfile.write(path, np.concatenate((silence, RAMP, silence)), SAMPLE_RATE, subtype="FLOAT")
    return path


def fast():
    pass


def slow():
    """Slower than the audio comes, and nobody else gets at the loop."""
    Event().wait(0.025)


async def consume(microphone):
    return [item async for item in microphone]


async def capture(microphone, *, work, playing):
    """Consume until half a second after the end of what is played; then stop and drain."""
    captured = []
    n_after = 0
    async for item in microphone:
        assert not isinstance(item, Lost)
        captured.append(item)
        work()
        n_after += playing.done()
        if n_after == 25:
            microphone.stop()
    return np.concatenate(captured).reshape(-1)


@pytest.mark.parametrize("work", [fast, slow])
async def test_no_sample_is_lost_or_doubled(null_sink, recording, work):
    async with Microphone(DEVICE) as microphone:
        playing = asyncio.create_task(asyncio.to_thread(null_sink.play, recording))
        captured = await capture(microphone, work=work, playing=playing)
        await playing
    assert_is_ramp(captured)


async def test_a_consumer_that_stalls_gets_all_of_it_later(null_sink, recording):
    """Nothing runs on the loop until all was played: as when it is blocked, or a model loads."""
    async with Microphone(DEVICE) as microphone:
        null_sink.play(recording)
        playing = asyncio.get_running_loop().create_future()
        playing.set_result(None)
        captured = await capture(microphone, work=fast, playing=playing)
    assert_is_ramp(captured)


def assert_is_ramp(captured):
    places = np.flatnonzero(captured)
    assert len(places), "nothing of the ramp was captured"
    between = captured[places[0] : places[-1] + 1]
    assert between[0] == RAMP[0]
    assert between[-1] == RAMP[-1]
    assert np.array_equal(between, RAMP)


async def test_the_monitor_is_what_the_default_output_plays(null_sink, recording):
    async with Microphone("monitor") as microphone:
        playing = asyncio.create_task(asyncio.to_thread(null_sink.play, recording))
        captured = await capture(microphone, work=fast, playing=playing)
        await playing
    assert np.abs(captured).max() == pytest.approx(RAMP[-1], rel=0.05)


async def test_the_device_is_listed_and_found_by_a_part_of_its_name(null_sink):
    names = [device.name for device in list_devices()]
    assert DEVICE in names
    async with Microphone("D_RAMP") as microphone:
        assert microphone.name == DEVICE


async def test_the_device_disappears(null_sink):
    async with Microphone(DEVICE) as microphone:
        assert len(await anext(aiter(microphone)))
        null_sink.quit()
        with pytest.raises(SourceError, match=f"'{DEVICE}' is gone: connect it again"):
            await consume(microphone)


async def test_leaving_without_having_stopped(null_sink):
    async with Microphone(DEVICE) as microphone:
        await anext(aiter(microphone))


async def test_both_sides_of_a_call_are_two_channels_of_one_stream(null_sink, recording):
    """The default output plays one recording; another comes out of what stands for a microphone."""
    null_sink.add_output("room")
    async with BothSides(DEVICE, MONITOR) as both:
        for sink in (SINK, "room"):
            await asyncio.to_thread(null_sink.play, recording, sink)
        both.stop()
        items = [item async for item in both]
    assert not any(isinstance(item, Lost) for item in items)
    frames = np.concatenate(items)
    assert frames.shape[1:] == (2, 320)
    for side in (0, 1):
        assert_is_ramp(frames[:, side].reshape(-1))
    first, second = (np.flatnonzero(frames[:, side])[0] for side in (0, 1))
    assert second > first + len(RAMP)  # it was played behind the other


async def test_an_output_that_is_suspended_counts_as_gone_and_can_be_left(null_sink, monkeypatch):
    monkeypatch.setattr("streamd.sources.microphone.TIMEOUT_MS", 1_500)
    async with Microphone(DEVICE) as microphone:
        await anext(aiter(microphone))
        null_sink.suspend(on=True)
        with pytest.raises(SourceError, match="delivered nothing for 1500 ms"):
            await consume(microphone)
    null_sink.suspend(on=False)
