"""Clients that send more than they should: they are held back, and nobody waits for them."""

import asyncio
import json
import ssl
from base64 import b64encode
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from websockets.frames import Frame, Opcode

from streamd.options import BindOptions, ServerLimits
from streamd.server import Server, pacing
from streamd.server.dialects import DIALECTS
from streamd.server.dialects.whisperlive import WhisperLive
from streamd.server.dialects.wyoming import Wyoming
from tests.support.loop import turns
from tests.support.serving import (
    INFO,
    Client,
    DeafClient,
    certificate,
    client,
    joined,
    serving,
)

TEXT, BINARY, PING, MORE = 0x1, 0x2, 0x9, 0x0
MANY = 3000
SOON = ServerLimits(send_deadline_ms=300)
OFFERS = "encoding=linear16&sample_rate=16000"
SPEAKERS = {
    "native": ("/v1/stream", "role=both", ['{"type":"update","prompt":"a"}']),
    "Deepgram": ("/v1/listen", OFFERS, ['{"type":"KeepAlive"}']),
    "Flux": ("/v2/listen", OFFERS, ['{"type":"x"}']),
    "AssemblyAI": ("/v3/ws", "sample_rate=16000", ['{"type":"x"}']),
    "OpenAI": ("/v1/realtime", "intent=transcription", ['{"type":"x"}']),
    "vLLM": ("/v1/realtime", "", ['{"type":"session.update","model":"m"}', '{"type":"x"}']),
    "WhisperLive": ("/", "", ['{"uid":"u"}', "x"]),
    "vosk": ("/", "", ['{"reset":0}']),
}


def frame(payload: str | bytes, kind: int = TEXT, *, ends: bool = True) -> bytes:
    """A frame of a client, whose mask is 0."""
    data = payload.encode() if isinstance(payload, str) else payload
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    return bytes([(0x80 if ends else 0) | kind]) + size + bytes(4) + data


class Heard:
    """How often a dialect has heard something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dialect: type) -> None:
        self.n, self.first = 0, asyncio.Event()
        hear = dialect.hear

        def counted(of: object, message: object) -> object:
            self.n += 1
            self.first.set()
            return hear(of, message)

        monkeypatch.setattr(dialect, "hear", counted)


@pytest.fixture
def slowly(monkeypatch):
    """One command is taken, and the next long after the test."""
    monkeypatch.setattr(pacing, "COMMANDS_PER_S", 1e-3)


@pytest.fixture
async def server(streams):
    """It waits for nobody for long."""
    async with serving(streams, wyoming="0", send_deadline_ms=300) as running:
        yield running


@pytest.fixture
async def honest(server):
    """Somebody who behaves."""
    async with client(server.port, "role=both") as other:
        yield other


async def flushed(honest: Client) -> None:
    """Have the server answer somebody who behaves."""
    await honest.say({"type": "flush"})
    await honest.until("flushed")


async def sending(stack: AsyncExitStack, hostile: DeafClient, data: bytes) -> None:
    """Open the connection, and send for as long as the server takes it."""
    await hostile.opened()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(loop.sock_sendall(hostile.socket, data))

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await task

    stack.push_async_callback(end)


@pytest.mark.parametrize("name", SPEAKERS)
async def test_who_sends_commands_too_fast_is_held_back(name, server, honest, slowly, monkeypatch):
    path, query, messages = SPEAKERS[name]
    heard = Heard(monkeypatch, WhisperLive if name == "WhisperLive" else DIALECTS[path])
    *first, again = map(frame, messages)
    async with AsyncExitStack() as stack:
        hostile = stack.enter_context(DeafClient(server.port, query, path=path))
        await sending(stack, hostile, b"".join(first) + again * MANY)
        await heard.first.wait()
        await flushed(honest)
        assert heard.n == (2 if name == "native" else 1)  # the other's flush, too


async def test_who_sends_wyoming_events_too_fast_is_held_back(server, honest, slowly, monkeypatch):
    heard = Heard(monkeypatch, Wyoming)
    _, writer = await asyncio.open_connection("127.0.0.1", server.wyoming_port)
    writer.write(b'{"type":"transcribe"}\n' * MANY)
    await heard.first.wait()
    await flushed(honest)
    assert heard.n == 1
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("more", [b"", b',"payload_length":1'], ids=["", "with a payload"])
@pytest.mark.parametrize("event", ["describe", "ping"])
async def test_who_asks_too_often_over_wyoming_is_held_back(event, more, streams, slowly):
    async with (
        serving(streams, wyoming="0", send_deadline_ms=300) as server,
        client(server.port, "role=both") as honest,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.wyoming_port)
        payload = b"x" if more else b""
        writer.write(b'{"type":"%s"%s}\n%s' % (event.encode(), more, payload) * MANY)
        await reader.readline()
        await flushed(honest)
    assert await reader.read() == b""  # there was one answer
    writer.close()
    await writer.wait_closed()


SAMPLES = {"type": "input_audio_buffer.append", "audio": b64encode(bytes(480)).decode()}


@pytest.mark.parametrize(
    ("path", "query", "kind", "message"),
    [
        ("/v1/stream", "role=both&session=talk", BINARY, bytes(640)),
        ("/v1/realtime", "session=talk", TEXT, json.dumps(SAMPLES)),
    ],
    ids=["native", "OpenAI"],
)
async def test_audio_does_not_count(path, query, kind, message, streams, server, slowly):
    async with AsyncExitStack() as stack:
        hostile = stack.enter_context(DeafClient(server.port, query, path=path))
        await sending(stack, hostile, frame(message, kind) * 200)
        await streams.opened.wait()
        # Of 10 ms at 24 kHz, the resampler keeps the last few.
        n_frames = 200 if kind == BINARY else 97
        await streams.ingests["talk"].until(lambda ingest: ingest.n_fed >= n_frames)


async def test_what_is_long_counts_as_several(monkeypatch):
    monkeypatch.setattr(pacing, "COMMANDS_PER_S", 10)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1000.0)
    pace = pacing.Pace()
    assert [pace.spend() for _ in range(11)] == pytest.approx([0.0] * 10 + [0.1])
    assert pace.spend(99_999) == pytest.approx(1.1)
    assert pace.spend(640, n_audio_bytes=480) == pytest.approx(1.1)
    assert pace.spend(50_000, n_audio_bytes=480) == pytest.approx(1.5)


FLOODS = {
    "pings": frame(b"x" * 125, PING),
    "empty pings": frame(b"", PING),
    "fragments": frame(b"", MORE, ends=False),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_pings_and_fragments_that_come_too_fast_are_not_read(
    name, server, honest, slowly, monkeypatch
):
    seen, first = 0, asyncio.Event()
    process = pacing.PacedConnection.process_event

    def counted(connection: pacing.PacedConnection, event: object) -> None:
        nonlocal seen
        if isinstance(event, Frame) and event.opcode in (Opcode.PING, Opcode.CONT):
            seen += 1
            first.set()
        process(connection, event)

    monkeypatch.setattr(pacing.PacedConnection, "process_event", counted)
    async with AsyncExitStack() as stack:
        hostile = stack.enter_context(DeafClient(server.port, "role=both"))
        begin = b"" if "ping" in name else frame("x", ends=False)
        await sending(stack, hostile, begin + FLOODS[name] * 20_000)
        await first.wait()
        await flushed(honest)
        assert seen <= 1024 // len(FLOODS[name]) + 1  # one piece


@pytest.mark.parametrize("role", ["both", "listen"])
async def test_pings_whose_answers_are_not_read_do_not_grow_a_buffer(role, streams, monkeypatch):
    monkeypatch.setattr(pacing, "COMMANDS_PER_S", 1e9)
    async with (
        serving(streams, send_deadline_ms=300) as server,
        joined(server.port, "role=both") as honest,
    ):
        before = set(server._registry._authorized)
        with DeafClient(server.port, f"role={role}") as deaf:
            await deaf.opened()
            (transport,) = set(server._registry._authorized) - before
            n_sent, pings = 0, FLOODS["pings"] * 500
            while transport.is_reading():
                with suppress(BlockingIOError):
                    n_sent += deaf.socket.send(pings)
                await turns(1)
                assert transport.get_write_buffer_size() < 64 << 10
                assert n_sent < 100 << 20
            await flushed(honest)
            assert transport.get_write_buffer_size() < 64 << 10


async def test_frames_that_come_with_the_request_are_taken_in_turn(
    server, honest, slowly, monkeypatch
):
    heard = Heard(monkeypatch, DIALECTS["/v1/stream"])
    with DeafClient(server.port, "role=both") as hostile:
        hostile.request += frame('{"type":"flush"}') * MANY
        await hostile.opened()
        await heard.first.wait()
        await flushed(honest)
        assert heard.n == 2  # the other's is one of them


async def test_what_was_sent_before_the_end_of_a_tls_connection_is_heard(tmp_path: Path, streams):
    certificate(tmp_path, "localhost")
    bind = BindOptions(
        port=0, tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")
    )
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with Server(bind, sessions=streams, info=INFO, limits=SOON) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
        with DeafClient(server.port, "role=ingest&session=talk") as same:
            writer.write(same.request)
        await reader.readuntil(b'"started"')  # what stays unread would make a reset of the end
        writer.write(frame(bytes(640), BINARY) * 300)
        await writer.drain()
        writer.close()
        with suppress(OSError):  # what the server says is not read
            await writer.wait_closed()
        await streams.opened.wait()
        await streams.ingests["talk"].until(lambda ingest: bool(ingest.finished))
        assert streams.ingests["talk"].n_fed == 300
