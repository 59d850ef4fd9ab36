"""The end of the server: every client hears `eos`, nobody can hold it up, nothing is left."""

import asyncio
import gc
import socket
from contextlib import AsyncExitStack, ExitStack, suppress

import pytest

from streamd.events import Final
from streamd.server import connection, pacing
from tests.server.test_pacing import frame
from tests.support.loop import turns
from tests.support.serving import Client, CountingStreams, DeafClient, client, joined, serving

LONG = Final(seg=0, start_ms=0, end_ms=20, text="x" * 65536, language="en")


@pytest.fixture(autouse=True)
async def no_task_is_left():
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def entered(stack: AsyncExitStack, port: int, query: str = "") -> Client:
    newcomer = await stack.enter_async_context(client(port, query))
    await newcomer.get()
    return newcomer


async def test_everybody_hears_eos_and_the_last_words():
    streams = CountingStreams()
    async with AsyncExitStack() as clients:
        async with serving(streams) as server:
            listener = await entered(clients, server.port)
            speaker = await entered(clients, server.port, "role=both&session=talk")
            friend = await entered(clients, server.port, "session=talk")
            await speaker.say(bytes(640 * 3))
            await friend.until("partial")
        assert await listener.rest() == [{"type": "eos", "seq": 0, "reason": "shutdown"}]
        for one in (speaker, friend):
            *_, final, eos = await one.rest()
            assert final["text"] == "3 frames"
            assert eos == {"type": "eos", "seq": 1, "reason": "shutdown"}
        assert [one.close_code for one in (listener, speaker, friend)] == [1001] * 3
    assert not streams.live.closed  # the daemon's own session is the daemon's to end


@pytest.mark.parametrize("n_turns", range(5))
async def test_a_connection_that_is_accepted_at_the_end_is_closed(n_turns):
    async with serving(CountingStreams()) as server:
        late = socket.create_connection(("127.0.0.1", server.port))
        await turns(n_turns)
    with late, suppress(ConnectionResetError):
        assert late.recv(1) == b""
    gc.collect()  # warns of what was left open, and a warning is an error


@pytest.mark.parametrize(
    ("hung", "message", "noticed"),
    [
        ("has_room", bytes(640), "waiting_for_room"),
        ("may_finish", {"type": "flush"}, "asked_to_flush"),
        ("may_finish", bytes(640), "moved"),
    ],
)
async def test_an_engine_that_hangs_does_not_hold_it_up(hung, message, noticed):
    streams = CountingStreams()
    async with AsyncExitStack() as clients:
        async with serving(streams, shutdown_ms=50, send_deadline_ms=300) as server:
            listener = await entered(clients, server.port)
            speaker = await entered(clients, server.port, "role=ingest&session=talk")
            friend = await entered(clients, server.port, "session=talk")
            ingest = streams.ingests["talk"]
            getattr(ingest, hung).clear()
            await speaker.say(message)
            await getattr(ingest, noticed).wait()
        assert [message["type"] for message in await speaker.rest()] == ["eos"]
        for one in (listener, friend):
            assert (await one.rest())[-1]["reason"] == "shutdown"
        assert [one.close_code for one in (listener, speaker, friend)] == [1001] * 3


async def closing(server: AsyncExitStack) -> asyncio.Task[None]:
    """The end of the server, as far as it gets by itself."""
    end = asyncio.create_task(server.aclose())
    await turns(20)
    return end


async def test_what_is_acknowledged_at_the_end_was_heard():
    streams, stack = CountingStreams(), AsyncExitStack()
    server = await stack.enter_async_context(serving(streams))
    async with client(server.port, "role=ingest&session=talk") as speaker:
        await speaker.say({"type": "start", "samples": 0})
        await speaker.until("started")
        ingest = streams.ingests["talk"]
        ingest.has_room.clear()
        await speaker.say(bytes(640 * 130 + 200))
        await ingest.waiting_for_room.wait()
        end = await closing(stack)
        ingest.has_room.set()
        await end
        ack, eos = await speaker.rest()
    assert (ack, eos["reason"]) == ({"type": "ack", "samples": 130 * 320 + 100}, "shutdown")
    assert ingest.n_fed == 131


async def test_the_last_words_of_who_was_waited_for_too_long_are_not_lost():
    streams, stack = CountingStreams(), AsyncExitStack()
    server = await stack.enter_async_context(serving(streams, resume_ms=1))
    async with client(server.port, "role=ingest&session=talk") as speaker:
        await speaker.say({"type": "start", "samples": 0})
        await speaker.until("started")
        ingest = streams.ingests["talk"]
        ingest.may_finish.clear()
        async with joined(server.port, "session=talk&partials=0") as friend:
            await speaker.say(bytes(640 * 3))
            await ingest.until(lambda ingest: ingest.n_fed == 3)
            speaker.connection.transport.abort()
            await ingest.asked_to_flush.wait()
            end = await closing(stack)
            ingest.may_finish.set()
            await end
            final, eos = await friend.rest()
    assert (final["text"], eos["reason"]) == ("3 frames", "disconnect")


async def test_who_never_says_what_it_wants_does_not_hold_it_up():
    with ExitStack() as sockets:
        # Left to themselves, its connection would last this long.
        async with serving(CountingStreams(), send_deadline_ms=1_000_000) as server:
            sockets.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            async with client(server.port) as listener:
                await listener.get()


async def test_who_does_not_read_does_not_hold_it_up():
    streams = CountingStreams()
    with ExitStack() as sockets:
        async with serving(streams, send_deadline_ms=300, write_buffer_bytes=1024) as server:
            deaf = sockets.enter_context(DeafClient(server.port))
            await deaf.opened()
            async with joined(server.port) as listener:
                for _ in range(100):
                    streams.live.publish(LONG)
                    await listener.get()
        assert deaf.is_cut()


async def test_who_does_not_close_is_dropped_while_others_are_still_told(monkeypatch):
    monkeypatch.setattr(connection, "_CLOSE_S", 0.5)
    monkeypatch.setattr(pacing, "COMMANDS_PER_S", 20)  # the next is taken while it closes
    never = 1_000_000
    streams, stack = CountingStreams(), AsyncExitStack()
    server = await stack.enter_async_context(
        serving(streams, shutdown_ms=never, send_deadline_ms=never, write_buffer_bytes=1024)
    )
    with DeafClient(server.port) as late:
        await late.opened()
        for _ in range(100):
            streams.live.publish(LONG)
            await turns(1)
        with DeafClient(server.port, "role=ingest&session=talk") as hostile:
            await hostile.opened()
            hostile.socket.send(frame('{"type":"flush"}') * 100)
            await streams.opened.wait()
            await streams.ingests["talk"].asked_to_flush.wait()
            end = await closing(stack)
            while not hostile.is_cut():
                await turns(1)
        assert not end.done()
        heard, read = b"", asyncio.get_running_loop().sock_recv
        while b'"eos"' not in heard:
            heard = heard[-100:] + await read(late.socket, 1 << 20)
    await end


async def test_it_ends_when_it_is_told_to_not_later():
    never = 1_000_000
    streams, loop = CountingStreams(), asyncio.get_running_loop()
    async with AsyncExitStack() as clients:
        async with serving(streams, shutdown_ms=never, send_deadline_ms=300) as server:
            server.end_by = loop.time
            speaker = await entered(clients, server.port, "role=ingest&session=talk")
            streams.ingests["talk"].may_finish.clear()
        assert [message["type"] for message in await speaker.rest()] == ["eos"]
