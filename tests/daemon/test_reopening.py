"""A device that is unplugged and comes back."""

import asyncio

import numpy as np
import pytest

from streamd.daemon.control import Control
from streamd.daemon.feeding import follow
from streamd.errors import SourceError
from streamd.events import Fault, Final, Gap
from streamd.streams import Streams
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session

SPEECH = [False] * WORD + [True] * (5 * WORD) + [False] * 60


class Device:
    """Gives what the test says, and fails where it says so."""

    name, live, duration_ms = "device", True, None

    def __init__(self, script: list[object], control: Control) -> None:
        self._script, self._control = script, control

    async def __aenter__(self):
        if isinstance(self._script[0], SourceError):
            raise self._script.pop(0)
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self):
        while (item := self._script.pop(0)) is not None:
            if isinstance(item, SourceError):
                raise item
            yield item

    def stop(self) -> None: ...


async def run(script: list[object]) -> tuple[list[object], list[tuple[bool, bool]]]:
    """What is heard; for each time that the device is to be opened, whether again and unready."""
    streams, control = (
        Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=0),
        Control(),
    )
    live = streams.add("live")
    engine = asyncio.create_task(streams.transcribe(ScriptedRecognizer()))
    opened = []

    def open_source(*, again: bool) -> Device:
        opened.append((again, "the source is not open" in streams.unready()))
        return Device(script, control)

    with live.hub.subscribe() as events:
        try:
            await follow(open_source, live, control, opened=lambda: None, retry_s=0.001)
            assert streams.unready() == []
        finally:
            await live.finish("stop")
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
        return [e async for e in events if isinstance(e, Final | Gap | Fault)], opened


async def test_listeners_are_told_at_once_and_of_the_gap_when_it_is_back():
    audio, gone = scripted_audio(SPEECH), SourceError("'device' is gone")
    (first, fault, gap), opened = await run(
        [audio[:50], gone, gone, gone, np.zeros((30, 320), np.float32), None]
    )
    assert isinstance(first, Final), "what was said before is final at once"
    assert fault == Fault(code="source", message="'device' is gone")
    assert (gap.t_ms, gap.why) == (1000, "device")
    assert opened == [(False, True), (True, True), (True, True), (True, True)]


async def test_a_device_that_was_never_there_is_not_waited_for():
    with pytest.raises(SourceError, match="no such"):
        await run([SourceError("no such device")])


async def test_the_user_can_stop_while_it_is_gone():
    class Stopping(Control):
        def __init__(self) -> None:
            super().__init__()
            self.stopped.set()

    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=0)
    await asyncio.wait_for(
        follow(lambda *, again: None, streams.add("live"), Stopping(), opened=print), 5
    )
