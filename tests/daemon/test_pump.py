"""Audio on its way from a source: nothing is lost, and what is left out is told."""

import asyncio
import os
import signal

import numpy as np
import pytest
import soundfile

from streamd.daemon.control import Control
from streamd.daemon.feeding import caption, pump
from streamd.sources import Lost
from streamd.sources.file import FileSource
from streamd.types import FRAME


class Source:
    """Gives what it was given; `live` sources are never held back."""

    def __init__(self, items, *, live: bool) -> None:
        self.live, self.stopped = live, False
        self._items = items

    async def __aiter__(self):
        for item in self._items:
            if callable(item):
                item()
            elif not self.stopped:
                yield item

    def stop(self) -> None:
        self.stopped = True


class Listener:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def feed(self, frames) -> None:
        self.heard.append(len(frames))

    def gap(self, duration_ms: int, why: str) -> None:
        self.heard.append((duration_ms, why))

    async def finish(self, reason: str, *, resumable: bool) -> None:
        self.heard.append(reason)

    async def flush(self) -> None:
        self.heard.append("flush")

    async def wait_for_space(self) -> None:
        self.heard.append("room")


def frames(n: int) -> np.ndarray:
    return np.zeros((n, FRAME), np.float32)


@pytest.fixture
def control():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Control()
    for number, handler in handlers.items():
        signal.signal(number, handler)


async def heard(items, control, *, live: bool = True) -> list[object]:
    listener = Listener()
    await pump(Source(items, live=live), listener, control)
    return listener.heard


async def test_a_pause_is_a_gap_and_what_was_said_before_is_final(control):
    pause = control.toggle_pause
    items = [frames(3), pause, frames(10), frames(15), pause, frames(2)]
    assert await heard(items, control) == [3, "flush", (500, "paused"), 2]
    assert await heard([pause, frames(50)], control) == ["flush", (1000, "paused")]


async def test_who_can_wait_is_made_to(control):
    assert await heard([frames(3), frames(4)], control, live=False) == ["room", 3, "room", 4]


async def test_lost_audio_is_told(control):
    assert await heard([Lost(70, "overrun"), frames(1)], control) == [(70, "overrun"), 1]


async def test_a_stop_ends_the_source(control):
    assert await heard([frames(1), control.stop, frames(2)], control) == [1]
    assert await heard([frames(1)], control) == []


@pytest.mark.parametrize("ends", ["loaded", "stopped"])
async def test_a_file_that_is_played_waits_for_the_model(ends, control, tmp_path):
    path, listener, loaded = tmp_path / "a.wav", Listener(), asyncio.Event()
    soundfile.write(path, np.zeros(FRAME * 3), 16_000)
    opened = asyncio.Event()
    captions = asyncio.create_task(
        caption([FileSource(str(path))], listener, control, opened=opened.set, loaded=loaded)
    )
    await opened.wait()
    assert listener.heard == []
    if ends == "loaded":
        loaded.set()
    else:
        control.stop()
    await captions
    n_heard = sum(heard for heard in listener.heard if isinstance(heard, int))
    assert n_heard == (3 if ends == "loaded" else 0)


async def test_an_action_at_a_signal_lasts_as_long_as_its_context(control):
    inner, outer = asyncio.Event(), asyncio.Event()
    with control.signals(), control.on(signal.SIGUSR2, outer.set):
        with control.on(signal.SIGUSR2, inner.set):
            os.kill(os.getpid(), signal.SIGUSR2)
            await inner.wait()
        assert not outer.is_set()
        os.kill(os.getpid(), signal.SIGUSR2)
        await outer.wait()
