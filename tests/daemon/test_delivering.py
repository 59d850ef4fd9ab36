"""Which sessions go to the destinations of --to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from streamd.config import load
from streamd.daemon.delivering import deliver
from streamd.events import EndReason
from streamd.streams import Streams
from streamd.streams.stream import Stream
from tests.support.fakes import scripted_session
from tests.support.loop import turns
from tests.support.receivers import Receiver, receiving
from tests.support.said import spoken


@asynccontextmanager
async def delivered(*to: str, source: bool) -> AsyncIterator[Streams]:
    config = load({"to": to}, {})
    config = replace(config, input=replace(config.input, source=source))
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=8)

    def end_by() -> float:
        return asyncio.get_running_loop().time() + 60

    async with asyncio.TaskGroup() as tasks:
        streams.when_begun = deliver(config, tasks, end_by=end_by)
        yield streams


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await turns(1)


def say(stream: Stream, text: str) -> None:
    stream.hub.publish(spoken(text))


async def end(*streams: Stream) -> None:
    for stream in streams:
        await stream.finish(EndReason.STOP)


async def test_a_webhook_gets_all_sessions_of_clients_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMD_WEBHOOK_SECRET", "a secret of many letters")
    with receiving(Receiver()) as there:
        async with delivered(f"webhook:{there.url}/hook", source=False) as streams:
            first, second = streams.open("anna"), streams.open("bo")
            await turns(5)
            say(first, "Hello.")
            say(second, "Hi.")
            await end(second)
            say(first, "Bye.")
            await end(first)
        got = [json.loads(request.body) for request in there.requests]
    said = {
        name: [each["event"].get("text") for each in got if each["session"] == name]
        for name in ("anna", "bo")
    }
    assert said == {"anna": ["Hello.", "Bye.", None], "bo": ["Hi.", None]}


async def test_a_screen_gets_one_session_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "streamd")
    with receiving(Receiver()) as there:
        to = f"youtube:{there.url}/c?cid=1", f"youtube:{there.url}/c?cid=2"
        async with delivered(*to, source=False) as streams:
            first, second, third = map(streams.open, ("anna", "bo", "clara"))
            await turns(5)
            say(first, "One.")
            say(second, "Nobody reads that.")
            await end(second, first)
            await until(lambda: caplog.messages.count("YouTube (127.0.0.1): 1 sent") == 2)
            await turns(9)
            say(third, "Three.")
            await end(third)
        bodies = [request.body.decode().splitlines()[1] for request in there.requests]
        numbers = [request.path[-1] for request in there.requests]
    assert sorted(zip(bodies, numbers, strict=True)) == [("One.", "1")] * 2 + [("Three.", "2")] * 2
    told = [line for line in caplog.messages if "session bo" in line]
    assert told == ["session bo waits: --to youtube has another one"] * 2


async def test_with_a_source_of_this_machine_clients_are_not_sent_anywhere() -> None:
    with receiving(Receiver()) as there:
        async with delivered(f"zoom:{there.url}/c?id=1", source=True) as streams:
            live, client = streams.add("live"), streams.open("anna")
            await turns(5)
            say(live, "Heard here.")
            say(client, "Private.")
            await end(live, client)
    assert [each.body for each in there.requests if each.method == "POST"] == [b"Heard here."]
