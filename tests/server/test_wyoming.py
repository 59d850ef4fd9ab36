"""Wyoming, Home Assistant's protocol, on a port of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from streamd.errors import BindError, ConfigError
from streamd.events import Flushed
from streamd.options import BindOptions
from streamd.server import Server
from streamd.server.dialects.wyoming import Wyoming
from streamd.server.wire import Encoding, Flush, Start
from streamd.server.wyoming_socket import parse_address
from tests.server.test_dialects import converse, final, partial
from tests.support.serving import INFO, CountingStreams, serving

CHUNK = b'{"type":"audio-chunk","payload_length":4}\n....'


class Client:
    """Home Assistant, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, kind: str, payload: bytes = b"", **data: object) -> None:
        body = json.dumps(data).encode() if data else b""
        head = {"type": kind, "data_length": len(body), "payload_length": len(payload)}
        self.writer.write(json.dumps(head).encode() + b"\n" + body + payload)

    async def get(self) -> tuple[str, dict[str, object]]:
        event = json.loads(await self.reader.readline())
        return event["type"], event["data"]


@asynccontextmanager
async def talking(
    streams: CountingStreams, n: int = 1, **limits: int
) -> AsyncIterator[tuple[Server, list[Client]]]:
    async with serving(streams, wyoming="0", **limits) as server:
        port = server.wyoming_port
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(n)]
        try:
            yield server, clients
        finally:
            for each in clients:
                each.writer.close()


def test_a_transcript_and_its_chunks():
    acts = converse(
        Wyoming(),
        json.dumps(
            {"type": "transcribe", "data": {"language": "en-US", "transcript_names": ["A"]}}
        ),
        json.dumps({"type": "audio-start", "data": {"rate": 22050, "width": 2, "channels": 2}}),
        bytes(22050 * 4),
        partial("turn on", n_final=1),
        final("turn on the"),
        final("lights", 2000, seg=1),
        partial("no", 4000),  # of which no word is certain
        json.dumps({"type": "audio-stop", "data": {}}),
        Flushed(id="", seq=2),
        Flushed(id="", seq=2),
    )
    frames = acts.pop(1)
    assert acts[0] == Start(encoding=Encoding.F32, language="en", hotwords="A")
    assert len(frames) == pytest.approx(16_000 * 4, abs=2 * 320 * 4)
    assert acts[1:] == [
        {"type": "transcript-start", "data": {}},
        {"type": "transcript-chunk", "data": {"text": "turn"}},
        {"type": "transcript-chunk", "data": {"text": " on the"}},
        {"type": "transcript-chunk", "data": {"text": " lights"}},
        Flush(),
        {"type": "transcript", "data": {"text": "turn on the lights"}},
        {"type": "transcript-stop", "data": {}},
        {"type": "transcript-start", "data": {}},
        {"type": "transcript", "data": {"text": ""}},
        {"type": "transcript-stop", "data": {}},
    ]


def samples(acts: list[object]) -> np.ndarray:
    return np.frombuffer(b"".join(act for act in acts if isinstance(act, bytes)), np.float32)


def stated(**data: int | None) -> str:
    return json.dumps({"type": "audio-chunk", "data": data})


@pytest.mark.parametrize(
    ("width", "channels", "dtype", "scale"),
    [(1, 1, np.uint8, 127), (2, 2, "<i2", 32767), (4, 1, "<i4", 2**31 - 1)],
)
def test_samples_may_have_any_width_and_channels(width, channels, dtype, scale):
    wave = np.sin(np.arange(3200) / 5)
    whole = (wave * scale + (128 if width == 1 else 0)).astype(dtype).repeat(channels).tobytes()
    begins = stated(rate=16_000, width=width, channels=channels)
    acts = converse(Wyoming(), begins, whole[:1001], whole[1001:])
    assert samples(acts) == pytest.approx(wave, abs=0.02)  # 7 bits


def test_three_bytes_are_the_upper_ones_of_four():
    wave = (np.sin(np.arange(320) / 5) * (2**23 - 1)).astype("<i4")
    three = wave.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    acts = converse(Wyoming(), stated(width=3), three)
    assert samples(acts) == pytest.approx(wave / 2**23, abs=1e-6)


def test_the_format_may_change_between_chunks():
    """As a mixer of sounds sends it: no sample is lost or at another pitch."""

    def tone(rate: int, seconds: int = 1) -> bytes:
        return (
            (np.sin(2 * np.pi * 440 * np.arange(rate * seconds) / rate) * 9_000)
            .astype("<i2")
            .tobytes()
        )

    acts = converse(
        Wyoming(),
        tone(16_000),
        stated(rate=48_000, width=2, channels=1),
        tone(48_000),
        stated(rate=8_000),
        tone(8_000),
        stated(rate=None),
        tone(8_000),
    )
    heard = samples(acts)
    assert len(heard) == pytest.approx(4 * 16_000, abs=4 * 320)
    for second in range(4):
        part = heard[second * 16_000 + 2_000 :][:8_000]
        assert np.argmax(np.abs(np.fft.rfft(part))) == 220, second  # 440 Hz


async def test_each_chunk_states_its_format_with_or_without_a_start():
    async with talking(CountingStreams()) as (_, (client,)):
        for begins in (False, True):
            if begins:
                client.send("audio-start", rate=16_000, width=2, channels=1)
            for rate in (48_000, 48_000, 8_000, 16_000):
                client.send("audio-chunk", bytes(rate), rate=rate, width=2, channels=1)
            client.send("audio-stop")
            told = [await client.get()]
            while told[-1][0] != "transcript-stop":
                told.append(await client.get())
            (said,) = [data["text"] for kind, data in told if kind == "transcript"]
            assert int(said.split()[0]) in range(98, 103)


async def test_whoever_only_asks_opens_no_session(streams):
    async with talking(streams) as (_, (client,)):
        client.send("describe")
        client.send("ping", text="me")
        kind, described = await client.get()
        assert kind == "info"
        (program,) = described["asr"]
        assert program["supports_transcript_streaming"]
        assert program["models"][0]["name"] == "fake"
        assert await client.get() == ("pong", {"text": "me"})
        assert not streams.ingests


async def test_audio_becomes_a_transcript_more_than_once():
    async with talking(CountingStreams()) as (_, (client,)):
        for _ in range(2):
            client.send("transcribe", language="en")
            client.send("audio-start", rate=16000, width=2, channels=1)
            client.send("audio-chunk", bytes(1280), rate=16000, width=2, channels=1)
            client.send("describe")
            client.send("audio-stop")
            told = [await client.get()]
            while told[-1][0] != "transcript-stop":
                told.append(await client.get())
            assert ("transcript", {"text": "2 frames"}) in told
            assert "info" in dict(told)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"junk\n", "expected a Wyoming event"),
        (b'{"type":"\xff"}\n', "expected a Wyoming event"),
        (b'{"type":"ping","data_length":7}\n{"a":1}'.replace(b"1", b"\xff"), "Wyoming event"),
        (b"x" * 5000, "at most"),
        (b'{"type":"audio-chunk","payload_length":9999999}\n', "at most"),
        (b'{"type":"audio-chunk","payload_length":-1}\n', "at most"),
        (b'{"type":"ping","data_length":4097}\n', "at most"),
        (b'{"type":"audio-start","data":{"rate":"x"}}\n', "expected a Wyoming event"),
        (CHUNK.replace(b'"pay', b'"data":{"rate":80},"pay'), "rate must be"),
        (CHUNK.replace(b'"pay', b'"data":{"channels":99},"pay'), "channels must be"),
        (b'{"type":"audio-start","data":{"width":5}}\n' + CHUNK, "1 to 4 bytes"),
    ],
)
async def test_what_is_wrong_is_told_and_ends_the_connection(sent, says):
    async with talking(CountingStreams(), 2, max_message_bytes=4096) as (_, (client, other)):
        client.writer.write(sent)
        kind, data = await client.get()
        assert (kind, says in data["text"]) == ("error", True), data
        assert await client.reader.read() == b""
        other.send("ping")
        assert await other.get() == ("pong", {})


@pytest.mark.parametrize(
    "sent",
    [
        b'{"type":"ping","data_length":131073}\n',
        b'{"type":"ping","data":{"text":"' + bytes(131073).replace(b"\0", b"x") + b'"}}\n',
    ],
    ids=["data", "header"],
)
async def test_an_event_has_less_data_than_samples(sent):
    async with talking(CountingStreams()) as (_, (client,)):
        client.writer.write(sent)
        kind, data = await client.get()
        assert (kind, "at most 131072 bytes" in str(data["text"])) == ("error", True)


async def test_of_a_burst_as_many_are_let_in_as_there_are_places():
    async with talking(CountingStreams(), 5, max_streams=1) as (_, clients):
        for client in clients:
            client.send("audio-chunk", bytes(640))
            client.send("ping")
        kinds = [(await client.get())[0] for client in clients]
        assert sorted(kinds) == ["error"] * 3 + ["pong"] * 2


async def test_who_says_nothing_takes_no_place():
    async with talking(CountingStreams(), 9, max_streams=1) as (_, (*silent, client)):
        for each in silent:
            each.writer.write(b'{"type":')
        client.send("audio-chunk", bytes(640))
        client.send("ping")
        assert await client.get() == ("pong", {})


@pytest.mark.parametrize("before", ["", "ping"])
async def test_an_event_that_does_not_come_in_time_ends_the_connection(before):
    async with talking(CountingStreams(), send_deadline_ms=100) as (_, (client,)):
        if before:
            client.send(before)
            await client.get()
        client.writer.write(b'{"type":')
        assert await client.reader.read() == b""


async def test_who_spoke_may_be_silent_for_long(streams):
    async with talking(streams, 2, send_deadline_ms=100) as (_, (client, silent)):
        client.send("ping")
        await client.get()
        assert await silent.reader.read() == b""  # so more than the deadline has passed
        client.send("ping")
        assert await client.get() == ("pong", {})


async def test_the_limits_of_an_address_are_those_of_the_other_port(monkeypatch):
    monkeypatch.setattr("streamd.server.registry.is_loopback", lambda host: False)
    async with talking(CountingStreams(), 2, max_per_address=1) as (_, (client, other)):
        client.send("audio-chunk", bytes(640))
        client.send("ping")
        await client.get()
        other.send("audio-chunk", bytes(640))
        kind, told = await other.get()
        assert (kind, told["text"]) == ("error", "too many clients from this address")


async def test_of_those_that_say_nothing_the_oldest_is_dropped():
    async with talking(
        CountingStreams(), 4, max_pending=2, max_streams=1, max_subscribers=1, max_uploads=0
    ) as (_, clients):
        assert await clients[0].reader.read() == b""  # 2 + 1 may wait
        clients[3].send("ping")
        assert await clients[3].get() == ("pong", {})


async def test_the_server_ends_while_somebody_speaks():
    async with talking(CountingStreams(), 2) as (_, (client, silent)):
        client.send("audio-chunk", bytes(640))
        client.send("ping")
        await client.get()
    for each in (client, silent):
        await each.reader.read()


def test_where_it_listens():
    assert parse_address("10300") == ("127.0.0.1", 10300)
    assert parse_address("0.0.0.0:1") == ("0.0.0.0", 1)
    assert parse_address("[::1]:1") == ("::1", 1)
    for wrong in ("x", "host:", "70000", ""):
        with pytest.raises(ConfigError, match="--wyoming"):
            parse_address(wrong)


async def test_a_port_in_use_is_named():
    async with talking(CountingStreams(), 0) as (server, _):
        bind = BindOptions(port=0, wyoming=str(server.wyoming_port))
        with pytest.raises(BindError, match="--wyoming"):
            async with Server(bind, sessions=CountingStreams(), info=INFO):
                pass
