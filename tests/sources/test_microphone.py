import asyncio
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.sources.microphone import Microphone, OverflowMeter
from streamd.types import FRAME
from tests.support.fake_portaudio import FakePortAudio
from tests.support.loop import turn

RAMP = (np.arange(1, 160_001) / 2**20).astype(np.float32)


@pytest.fixture
def fake(monkeypatch):
    portaudio = FakePortAudio(("Mic", 2, 48_000))
    monkeypatch.setitem(sys.modules, "sounddevice", portaudio)
    return portaudio


async def drain(microphone):
    microphone.stop()
    return [item async for item in microphone]


def audio(items):
    return np.concatenate([item for item in items if not isinstance(item, Lost)]).reshape(-1)


async def test_blocks_of_any_size_come_out_whole(fake):
    rng = np.random.default_rng(1)
    async with Microphone() as microphone:
        at = 0
        while at < len(RAMP):
            n = int(rng.integers(1, 2000))
            fake.streams[0].deliver(RAMP[at : at + n])
            at += n
        samples = audio(await drain(microphone))
    assert np.array_equal(samples[: len(RAMP)], RAMP)
    assert len(samples) < len(RAMP) + FRAME
    assert microphone.name == "Mic"


@pytest.mark.parametrize(
    ("accepts", "rate_hz", "channels"),
    [
        (lambda rate, n: True, 16_000, 1),
        (lambda rate, n: n == 2, 16_000, 2),
        (lambda rate, n: rate == 48_000, 48_000, 1),
        (lambda rate, n: (rate, n) == (48_000, 2), 48_000, 2),
    ],
)
async def test_it_opens_at_what_the_device_can(fake, accepts, rate_hz, channels):
    fake.accepts = accepts
    async with Microphone() as microphone:
        settings = fake.streams[0].settings
        assert (settings["samplerate"], settings["channels"]) == (rate_hz, channels)
        for _ in range(100):
            fake.streams[0].deliver(np.full(rate_hz // 50 * channels, 0.25))
        samples = audio(await drain(microphone))
    assert len(samples) == 2 * 16_000
    assert np.abs(samples[500:-500] - 0.25).max() < 1e-3


async def test_an_overflow_becomes_a_loss_of_its_length(fake):
    async with Microphone() as microphone:
        stream = fake.streams[0]
        for k in range(100):
            stream.deliver(np.full(320, 0.1), lost=16_123 if k == 70 else 0)
        items = await drain(microphone)
    places = [k for k, item in enumerate(items) if isinstance(item, Lost)]
    assert [items[k] for k in places] == [Lost(1008, "overrun")]
    assert sum(map(len, items[: places[0]])) == 70
    assert sum(map(len, items[places[0] + 1 :])) == 30


async def test_without_a_clock_an_overflow_is_one_block(fake):
    async with Microphone() as microphone:
        for k in range(10):
            fake.streams[0].deliver(np.zeros(320), lost=9999 if k == 7 else 0, clock=False)
        items = await drain(microphone)
    assert [item.duration_ms for item in items if isinstance(item, Lost)] == [20]


async def test_a_device_that_disappears_gives_what_it_had(fake):
    captured = []
    async with Microphone() as microphone:
        fake.streams[0].deliver(np.full(400, 0.5))
        fake.streams[0].vanish()
        with pytest.raises(SourceError, match="'Mic' is gone: connect it again or choose another"):
            await collect(microphone, captured)
    assert np.count_nonzero(audio(captured)) == 400
    assert fake.streams[0].closed


@pytest.mark.parametrize("timeout_ms", [1, 0])  # 0: it ends as the block comes
async def test_a_device_that_falls_silent_counts_as_gone(timeout_ms, fake, monkeypatch):
    monkeypatch.setattr("streamd.sources.microphone.TIMEOUT_MS", timeout_ms)
    async with Microphone() as microphone:
        fake.streams[0].deliver(np.full(320, 0.5))
        captured = []
        told = f"'Mic' delivered nothing for {timeout_ms} ms: connect it"
        with pytest.raises(SourceError, match=told):
            await collect(microphone, captured)
    assert len(audio(captured)) == 320


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_device_that_delivers_nothing_any_more_is_not_waited_for(is_dead, fake):
    async with Microphone() as microphone:
        fake.streams[0].deliver(np.full(320, 0.5))
        await anext(aiter(microphone))
        microphone._received_s -= 2 * is_dead
    assert fake.streams[0].closed
    assert fake.streams[0].aborted == is_dead


async def collect(microphone, captured):
    async for item in microphone:
        captured.append(item)  # what came before the error counts


async def test_stop_ends_a_consumer_that_waits(fake):
    async with Microphone() as microphone:
        waiting = asyncio.create_task(collect(microphone, captured := []))
        fake.streams[0].deliver(np.full(100, 0.5))
        await turn()
        microphone.stop()
        microphone.stop()
        await waiting
    assert len(audio(captured)) == 320


async def test_a_device_that_cannot_be_opened_is_closed_again(fake):
    fake.start_fails = True
    with pytest.raises(SourceError, match="cannot record from 0 'Mic': Error starting stream: Dev"):
        await Microphone().__aenter__()
    assert fake.streams[0].closed


async def test_an_unknown_device(fake):
    with pytest.raises(SourceError, match="no input device matches 'nobody'"):
        await Microphone("nobody").__aenter__()


async def test_one_that_could_not_be_opened_can_be_stopped(fake):
    microphone = Microphone("nowhere")
    with pytest.raises(SourceError):
        await microphone.__aenter__()
    microphone.stop()
    assert microphone._stopping is None  # no task is left that fails


async def test_leaving_stops_and_closes(fake):
    async with Microphone():
        assert fake.streams[0].running
    assert not fake.streams[0].running
    assert fake.streams[0].closed


async def test_a_device_that_was_plugged_in_later_is_found(fake):
    fake.plugged_in_later = [fake.devices[0] | {"name": "New", "index": 1}]
    with pytest.raises(SourceError):
        async with Microphone("New"):
            pass
    async with Microphone("New", refresh=True) as microphone:
        assert microphone.name == "New"


@given(
    rate=st.sampled_from([16_000, 44_100, 48_000]),
    began_s=st.floats(0.001, 2e9),
    losses=st.dictionaries(st.integers(1, 200), st.integers(1, 500_000), max_size=5),
    jitter_s=st.lists(st.floats(-1e-4, 1e-4), min_size=201, max_size=201),
)
def test_losses_are_measured_to_a_fraction_of_a_millisecond(rate, began_s, losses, jitter_s):
    meter = OverflowMeter(rate)
    block = rate // 50
    n = 0
    for k in range(201):
        lost = losses.get(k, 0)
        n += lost
        measured = meter.lost(block, began_s + n / rate + jitter_s[k], lost > 0)
        n += block
        if not lost:
            assert measured == 0
        elif lost > rate // 1000:  # more than the jitter
            assert abs(measured - lost) <= rate * 3e-4
        else:
            assert measured > 0


@pytest.mark.parametrize("adc_s", [lambda n: 0.0, lambda n: 1e6 - n, lambda n: 77.0])
def test_with_a_useless_clock_it_was_one_block(adc_s):
    meter = OverflowMeter(16_000)
    assert [meter.lost(320, adc_s(k), k in (3, 4)) for k in range(6)] == [0, 0, 0, 320, 320, 0]


def test_an_overflow_before_the_first_block_is_one_block():
    assert OverflowMeter(16_000).lost(320, 5.0, True) == 320


def test_an_overflow_that_is_reported_two_blocks_late():
    meter = OverflowMeter(16_000)
    for k in range(50):
        meter.lost(320, k * 0.02, False)
    for k in range(100, 102):
        meter.lost(320, k * 0.02, False)
    assert meter.lost(320, 102 * 0.02, True) == 50 * 320


async def test_it_says_what_it_is(fake, caplog):
    caplog.set_level("INFO")
    async with Microphone():
        assert "microphone: Mic, 16000 Hz" in caplog.text


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([0.0] * 149, ""),
        ([0.0] * 400, "Mic gives only silence: it is muted"),
        ([0.0] * 149 + [1e-6] + [0.0] * 400, ""),
    ],
)
async def test_a_dead_microphone_is_named_once_after_three_seconds(fake, caplog, blocks, said):
    async with Microphone() as microphone:
        for level in blocks:
            fake.streams[0].deliver(np.full(320, level))
        await drain(microphone)
    assert [said in record.message for record in caplog.records] == [True] * bool(said)


async def test_the_monitor_is_what_pulseaudio_plays_which_may_be_silent(monkeypatch, caplog):
    fake = FakePortAudio(("Mic", 2, 48_000), ("pulse", 32, 44_100))
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    opened = []
    fake.accepts = lambda *_: opened.append(os.environ["PULSE_SOURCE"]) or True
    async with Microphone("monitor") as microphone:
        assert fake.streams[0].settings["device"] == 1
        assert "PULSE_SOURCE" not in os.environ
        for _ in range(200):
            fake.streams[0].deliver(np.zeros(320))
        await drain(microphone)
    assert {*opened} == {"@DEFAULT_MONITOR@"}
    assert not caplog.records
    assert microphone.name == "monitor"


@pytest.mark.parametrize(("platform", "said"), [("linux", "apt install"), ("darwin", "BlackHole")])
async def test_a_machine_without_a_monitor_says_what_to_install(fake, monkeypatch, platform, said):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SourceError, match=said):
        await Microphone("monitor").__aenter__()
