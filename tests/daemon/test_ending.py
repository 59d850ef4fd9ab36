"""The end of the program: whatever it waits for has one deadline, counted from the signal."""

import asyncio
import signal
from dataclasses import replace

import pytest

from streamd.config import load
from streamd.daemon import live, serving
from streamd.daemon.control import Control
from streamd.streams import Streams
from tests.support import recorded
from tests.support.serving import DeafClient, joined


@pytest.fixture(autouse=True)
def signals():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


async def for_ever(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def ahead(monkeypatch):
    """Sets the loop's clock ahead by so many seconds."""
    loop = asyncio.get_running_loop()
    time = loop.time
    return lambda by_s: monkeypatch.setattr(loop, "time", lambda: time() + by_s)


@pytest.mark.parametrize("has_source", [False, True])
async def test_the_rest_of_the_end_takes_no_time_of_its_own(
    has_source, monkeypatch, ahead, tmp_path
):
    """Without an engine, and with a disk that stores nothing, each part would wait for ever."""
    announced: asyncio.Future[serving.Server] = asyncio.get_running_loop().create_future()
    controls: list[Control] = []
    monkeypatch.setattr(serving, "announce", lambda server, **_: announced.set_result(server))
    monkeypatch.setattr(live, "supervise", for_ever)
    monkeypatch.setattr(Streams, "kept", for_ever)
    config = load({"port": "0"}, {})
    limits = replace(config.limits, shutdown_ms=1_000_000, send_deadline_ms=300)
    sound = str(recorded.wav(tmp_path / "a.wav", recorded.samples()))
    source = replace(config.input, files=(sound,), source=has_source, realtime=False)
    config = replace(config, limits=limits, input=source)
    running = asyncio.create_task(
        live.run(config, also=lambda control: controls.append(control) or [])
    )
    server = await announced
    with DeafClient(server.port) as deaf:
        await deaf.opened()
        async with joined(server.port, "role=both&session=talk") as speaker:
            (control,) = controls
            control.stop()
            ahead(1001)
            await running
            assert (await speaker.rest())[-1]["reason"] == "shutdown"


async def test_a_deadline_counts_from_the_moment_of_the_stop(ahead):
    control, loop = Control(), asyncio.get_running_loop()
    stopped_s = loop.time()
    control.stop()
    ahead(100)
    assert control.end_by(7) == pytest.approx(stopped_s + 7, abs=5)
