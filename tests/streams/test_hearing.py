"""Sounds are heard beside the captions: in order, bounded, and without harm if that fails."""

import asyncio
from concurrent.futures import Executor, Future
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Sound
from streamd.sounds import WINDOW
from streamd.streams.hearing import SoundHearing
from streamd.system.calls import settle
from streamd.types import FRAME
from tests.support.loop import turn

MUSIC = 132


class AtOnce(Executor):
    """Calls in the thread of who submits."""

    def submit(self, fn, /, *args, **kwargs):
        done: Future = Future()
        settle(done, partial(fn, *args, **kwargs))
        return done


class Held(Executor):
    """Calls when it is told to."""

    def __init__(self) -> None:
        self.calls: list = []

    def submit(self, fn, /, *args, **kwargs):
        done: Future = Future()
        self.calls.append((done, fn, args))
        return done

    def run(self) -> None:
        done, fn, args = self.calls.pop(0)
        done.set_result(fn(*args))


def loud_is_music(samples: np.ndarray) -> np.ndarray:
    assert samples.shape == (WINDOW,)
    scores = np.zeros(521, np.float32)
    scores[MUSIC] = np.mean(np.abs(samples) > 0.1)
    return scores


def sound(seconds: float, *, loud: bool) -> np.ndarray:
    """Noise that changes all the time, as music does and a hum does not."""
    values = [-0.5, 0.5] if loud else [0.0]
    noise = np.random.default_rng(0).choice(values, (round(seconds * 50), FRAME))
    return noise.astype(np.float32)


async def heard(pieces, executor=None, classify=loud_is_music, **options) -> list[Sound]:
    """Feed frames, each with the time at which they begin."""
    told: list[Sound] = []
    hearing = SoundHearing(classify, executor or AtOnce(), told.extend, **options)
    for frames, start_ms in pieces:
        hearing.feed(frames, start_ms)
        await turn()
    await hearing.finish()
    return told


PASSAGE = np.concatenate([sound(3, loud=False), sound(4, loud=True), sound(5, loud=False)])


async def test_a_passage_is_told_when_it_begins_and_with_its_end():
    begun, over = await heard([(PASSAGE, 0)])
    assert begun.label == "music"
    assert begun.start_ms == over.start_ms
    assert abs(over.start_ms - 3000) <= 480
    assert abs(over.end_ms - 7000) <= 480


@given(st.lists(st.integers(1, 599), max_size=6))
def test_any_blocks_of_audio_have_the_same_sounds(cuts):
    whole = asyncio.run(heard([(PASSAGE, 0)]))
    blocks = np.split(PASSAGE, sorted(set(cuts)))
    starts_ms = np.cumsum([0, *map(len, blocks)]) * 20
    found = asyncio.run(heard([*zip(blocks, starts_ms[:-1].tolist(), strict=True)]))
    assert found == whole


async def test_a_gap_ends_what_goes_on_and_times_count_it():
    loud = sound(3, loud=True)
    first, over, later, _ = await heard([(loud, 0), (loud, 60_000)])
    assert over.end_ms <= 3000
    assert (first.start_ms, over.start_ms) == (480, 480)
    assert later.start_ms == 60_480


async def test_what_an_earlier_process_told_is_not_told_again():
    loud = sound(3, loud=True)
    assert await heard([(loud, 0)], since_ms=2000) == []
    later = await heard([(loud, 0), (loud, 60_000)], since_ms=2000)
    assert {each.start_ms for each in later} == {60_480}


async def test_audio_that_comes_faster_than_it_is_heard_is_bounded():
    held, told = Held(), asyncio.Event()
    hearing = SoundHearing(loud_is_music, held, lambda sounds: told.set())
    assert not hearing.is_behind
    for second in range(200):
        hearing.feed(sound(1, loud=True), second * 1000)
    assert hearing.is_behind
    held.run()
    await told.wait()
    (_, _, (windows,)) = held.calls[0]
    assert len(windows) == 63
    assert windows[-1].start_ms > 197_000


async def test_a_classifier_that_fails_ends_only_the_hearing(caplog):
    def fails(samples):
        raise RuntimeError("no more")

    assert await heard([(PASSAGE, 0), (PASSAGE, 12_000)], classify=fails) == []
    (record,) = caplog.records
    assert "no sounds are heard any more: no more" in record.message


async def test_a_classifier_that_hangs_holds_up_neither_a_file_nor_the_end(caplog):
    told = asyncio.Event()
    hearing = SoundHearing(loud_is_music, Held(), lambda sounds: told.set(), hangs_s=0.01)
    for second in range(60):
        hearing.feed(sound(1, loud=True), second * 1000)
    assert hearing.is_behind
    await told.wait()
    assert not hearing.is_behind
    hearing.feed(sound(1, loud=True), 60_000)
    await hearing.finish()
    (record,) = caplog.records
    assert record.message == "no sounds are heard any more: it takes too long"
