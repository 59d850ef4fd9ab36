"""An ended session is freed at once: nothing of it waits for Python's collector of cycles."""

import asyncio
import base64
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from streamd.events import EndReason, Stats
from streamd.options import BindOptions, ServerLimits
from streamd.server import Server
from streamd.server.connection import Connection
from streamd.server.ingest import Ingest
from streamd.session import Session
from streamd.session.gate import Gate
from streamd.session.ring import Ring
from streamd.streams import Streams
from streamd.streams.hub import Subscription
from streamd.streams.stream import Stream
from streamd.types import Hypothesis, Window, Word
from tests.support.fakes import scripted_session
from tests.support.loop import turn
from tests.support.serving import INFO, Client, DeafClient, client

SOUND = np.repeat([0.0, 0.1, 0.0], [4_000, 16_000, 32_000])
PCM = (SOUND * 32767).astype("<i2").tobytes()
KINDS = (Stream, Session, Ring, Gate, Connection, Ingest, Subscription)


class Hearing:
    """Hears a word in every window, or fails as a bug would."""

    def __init__(self) -> None:
        self.fails = False

    def recognize(self, window: Window) -> Hypothesis:
        if self.fails:
            raise ZeroDivisionError("a bug")
        word = Word(" word", window.start, window.end, 0.9, (1,))
        return Hypothesis(words=(word,), tokens=word.tokens)


@dataclass(frozen=True)
class Place:
    """A server, what it hears with, and how many tasks there are without clients."""

    n_tasks: int
    streams: Streams
    server: Server
    hearing: Hearing


@asynccontextmanager
async def daemon(**limits: int) -> AsyncIterator[Place]:
    hearing, n_tasks = Hearing(), len(asyncio.all_tasks()) + 2  # of the recognizer
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=4)
    transcribing = asyncio.create_task(streams.transcribe(hearing))
    bind = BindOptions(port=0, wyoming="0")
    async with Server(bind, sessions=streams, info=INFO, limits=ServerLimits(**limits)) as server:
        while len(asyncio.all_tasks()) < n_tasks:
            await turn()
        yield Place(n_tasks, streams, server, hearing)
    transcribing.cancel()
    await asyncio.wait({transcribing})


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Give what is left of the objects that are made from now on, which nobody collects."""
    made: list[weakref.ref[object]] = []

    def noting(kind: type) -> Callable[..., None]:
        begin = kind.__init__

        def noted(self: object, *args: object, **named: object) -> None:
            made.append(weakref.ref(self))
            begin(self, *args, **named)

        return noted

    for kind in KINDS:
        monkeypatch.setattr(kind, "__init__", noting(kind))
    gc.collect()
    gc.disable()

    def left() -> list[str]:
        assert made
        return sorted(type(it).__name__ for each in made if (it := each()) is not None)

    try:
        yield left
    finally:
        gc.enable()


async def quiet(place: Place) -> None:
    """Return when all connections have ended and `Streams.chores` would have run."""
    while len(asyncio.all_tasks()) > place.n_tasks:
        await turn()
    place.streams.forget()


TALK = "role=both&session=talk"


@asynccontextmanager
async def talking(place: Place, *first: dict[str, object]) -> AsyncIterator[Client]:
    """A speaker whose first words are final, and who may have said something else `first`."""
    async with client(place.server.port, TALK) as speaker:
        for message in (*first, PCM):
            await speaker.say(message)
        await speaker.until("final")
        yield speaker


async def stops(place: Place) -> None:
    async with talking(place) as speaker:
        assert (await speaker.stop())[-1]["reason"] == "stop"


async def hangs_up(place: Place) -> None:
    async with talking(place) as speaker:
        speaker.connection.transport.abort()


async def does_not_return(place: Place) -> None:
    async with talking(place, {"type": "start", "samples": 0}) as speaker:
        speaker.connection.transport.abort()


async def is_replaced(place: Place) -> None:
    async with client(place.server.port, TALK) as first:
        epoch = (await first.get())["epoch"]
        await first.say({"type": "start", "samples": 0})
        await first.say(PCM)
        await first.until("final")
        async with client(place.server.port, f"{TALK}&epoch={epoch}") as second:
            assert (await first.rest())[-1]["code"] == "replaced"
            await second.say({"type": "start", "samples": len(PCM) // 2})
            await second.say(PCM)
            assert (await second.stop())[-1]["type"] == "eos"


async def sends_nonsense(place: Place) -> None:
    async with talking(place) as speaker:
        await speaker.say("nonsense")
        assert (await speaker.rest())[-1]["code"] == "bad_message"


async def meets_a_bug(place: Place) -> None:
    place.hearing.fails = True
    async with client(place.server.port, TALK) as speaker:
        await speaker.say(PCM)
        assert (await speaker.rest())[-1]["reason"] == "error"


async def asks_for_what_is_refused(place: Place) -> None:
    async with client(place.server.port, TALK) as speaker:
        await speaker.say(PCM)
        await speaker.say({"type": "correct", "text": "Ada", "seq": 99})
        await speaker.until("error")
        assert (await speaker.stop())[-1]["type"] == "eos"


async def has_listeners(place: Place) -> None:
    async with (
        client(place.server.port, "role=ingest&session=talk") as speaker,
        client(place.server.port, "session=talk&stats=1") as staying,
        client(place.server.port, "session=talk") as leaving,
        client(place.server.port, "session=none") as stranger,
    ):
        assert (await stranger.rest())[-1]["code"] == "no_such_session"
        with DeafClient(place.server.port, "session=talk") as deaf:
            await deaf.opened()
        await speaker.say(PCM)
        await leaving.until("final")
        leaving.connection.transport.abort()
        await speaker.say({"type": "stop"})
        assert (await staying.rest())[-1]["type"] == "eos"


ENDS = [
    stops,
    hangs_up,
    does_not_return,
    is_replaced,
    sends_nonsense,
    meets_a_bug,
    asks_for_what_is_refused,
    has_listeners,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_of_a_session_that_has_ended_nothing_is_left(living, end):
    async with daemon(resume_ms=1) as place:
        await end(place)
        await quiet(place)
        assert living() == []


async def test_of_a_session_that_gets_too_long_nothing_is_left(living):
    async with daemon(max_session_ms=1000) as place:
        async with client(place.server.port, TALK) as speaker:
            await speaker.say(PCM)
            assert (await speaker.rest())[-1]["reason"] == "limit"
        await quiet(place)
        assert living() == []


async def test_of_sessions_that_a_shutdown_ends_nothing_is_left(living):
    async with daemon() as place:
        listener = client(place.server.port, "session=talk")
        async with talking(place) as speaking, listener as listening:
            leaving = asyncio.create_task(place.server.__aexit__(None, None, None))
            assert (await speaking.rest())[-1]["reason"] == "shutdown"
            assert (await listening.rest())[-1]["reason"] == "shutdown"
            await leaving
            del leaving
        await quiet(place)
        assert living() == []


LINEAR = "encoding=linear16&sample_rate=16000"
APPENDED = {"type": "input_audio_buffer.append", "audio": base64.b64encode(PCM).decode()}
FOREIGN = [
    ("/v1/listen", LINEAR, [PCM], {"type": "CloseStream"}),
    ("/v2/listen", LINEAR, [PCM], {"type": "CloseStream"}),
    ("/v3/ws", "sample_rate=16000", [PCM], {"type": "Terminate"}),
    ("/v1/realtime", "intent=transcription", [APPENDED], None),
    ("/v1/realtime", "", [{"type": "session.update", "model": "x"}, APPENDED], None),
    ("/", "", [{"uid": "x"}, SOUND.astype("<f4").tobytes()], b"END_OF_AUDIO"),
    ("/", "", [{"config": {"sample_rate": 16_000}}, PCM], {"eof": 1}),
]


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize(("path", "query", "messages", "stop"), FOREIGN)
async def test_of_a_session_of_a_foreign_client_nothing_is_left(
    living, path, query, messages, stop, hangs_up
):
    async with daemon() as place:
        async with client(place.server.port, query, path=path) as speaker:
            for message in messages:
                await speaker.say(message)
            if stop is None or hangs_up:
                await speaker.get()
                speaker.connection.transport.abort()
            else:
                await speaker.say(stop)
                assert await speaker.rest()
        await quiet(place)
        assert living() == []


async def test_of_a_session_of_home_assistant_nothing_is_left(living):
    async with daemon() as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.server.wyoming_port)
        form = {"rate": 16_000, "width": 2, "channels": 1}
        for event in (
            {"type": "audio-start", "data": form},
            {"type": "audio-chunk", "data": form, "payload_length": len(PCM)},
        ):
            writer.write(json.dumps(event).encode() + b"\n")
        writer.write(PCM + b'{"type":"audio-stop"}\n')
        assert await reader.readline()
        writer.close()
        await quiet(place)
        assert living() == []


async def test_what_an_ended_session_took_is_returned_even_if_nothing_is_computed(
    living, monkeypatch
):
    """Nobody may speak for hours."""
    returned, loop = asyncio.Event(), asyncio.get_running_loop()
    monkeypatch.setattr(
        "streamd.streams.registry.trim", lambda: loop.call_soon_threadsafe(returned.set)
    )
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=4)
    chores = asyncio.create_task(streams.chores())
    stream = streams.open("talk")
    freed: list[bool] = []
    with stream.hub.subscribe(stats=True) as listener:
        assert isinstance(await anext(listener), Stats)  # the session was among those that are fed
    await stream.finish(EndReason.STOP)
    ended = stream.hub
    streams.when_idle.append(lambda: freed.append(ended.closed))
    del stream
    await returned.wait()
    assert freed == [True]  # what is loaded again in a moment
    assert living() == ["Subscription"]  # of this test
    chores.cancel()
    await asyncio.wait({chores})
