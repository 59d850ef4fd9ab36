"""Clients that do not read, do not answer, or send garbage: nobody else notices."""

import asyncio
from base64 import b64encode
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConcurrencyError, ConnectionClosedOK

from streamd.events import Final
from streamd.options import ServerLimits
from streamd.server.connection import WebSocket
from streamd.server.dialects.deepgram import Deepgram
from streamd.streams.hub import Hub
from tests.server.test_operations import get
from tests.support.serving import Client, CountingStreams, DeafClient, client, joined, serving


def final(text: str = "") -> Final:
    return Final(seg=0, start_ms=0, end_ms=20, text=text, language="en")


async def turn(listener: Client) -> None:
    """Let the loop go round until the server has answered."""
    await (await listener.connection.ping())


async def test_a_client_that_does_not_read_is_cut_off_and_counted_and_delays_nobody(streams):
    async with (
        serving(streams, send_deadline_ms=500, write_buffer_bytes=1024) as server,
        joined(server.port) as listener,
    ):
        with DeafClient(server.port) as deaf:
            await deaf.opened()
            seq = 0
            while not deaf.is_cut():
                seq = streams.live.publish(final("x" * 65536)).seq
                assert (await listener.get())["seq"] == seq
            streams.live.publish(final())
            assert (await listener.get())["seq"] == seq + 1
        while "streamd_slow_disconnects_total 1.0" not in (await get(server.port, "/metrics"))[1]:
            pass


async def test_a_client_that_does_not_answer_pings_is_cut_off():
    async with (
        serving(CountingStreams(), ping_ms=300) as server,
        joined(server.port, ping_interval=None) as listener,
    ):
        with DeafClient(server.port) as deaf:
            await deaf.opened()
            while not deaf.is_cut():
                await turn(listener)


async def test_a_speaker_that_does_not_read_is_cut_off_and_what_it_said_is_final(streams):
    async with (
        serving(streams, send_deadline_ms=500, write_buffer_bytes=1024) as server,
        joined(server.port) as other,
    ):
        with DeafClient(server.port, "role=both&session=talk") as deaf:
            await deaf.opened()
            while not deaf.is_cut():
                streams.ingests["talk"].hub.publish(final("x" * 65536))
                await turn(other)
            while not streams.ingests["talk"].hub.closed:
                await turn(other)
    assert streams.ingests["talk"].finished == "disconnect"


async def test_who_falls_too_far_behind_is_told_and_misses_nothing_when_it_comes_back(streams):
    streams.live = Hub("live", bound=4)
    async with serving(streams, write_buffer_bytes=1024) as server:
        async with joined(server.port) as listener:
            for _ in range(6):
                streams.live.publish(final("x" * 1024))  # has to wait for room in the buffer
            *_, error = await listener.rest()
            assert (error["code"], error["fatal"]) == ("slow", True)
            assert listener.close_code == 4503
        async with joined(server.port, "after=0") as listener:
            assert [(await listener.get())["seq"] for _ in range(6)] == [1, 2, 3, 4, 5, 6]


async def test_who_has_sent_much_after_a_mistake_need_not_wait_for_the_end(caplog):
    caplog.set_level("INFO")
    async with (
        serving(CountingStreams(), send_deadline_ms=1000) as server,
        client(server.port, "role=both") as speaker,
    ):
        for message in ("nonsense", *[bytes(640)] * 100):  # more than the library's queue holds
            await speaker.say(message)
        *_, error = await speaker.rest()
        assert (error["code"], speaker.close_code) == ("bad_message", 1007)
    assert "does not close" not in caplog.text


async def test_a_bug_of_ours_ends_one_stream_and_is_reported(monkeypatch, caplog, streams):
    async with (
        serving(streams) as server,
        joined(server.port) as other,
        joined(server.port, "role=both&session=talk") as speaker,
    ):
        monkeypatch.setattr(streams.ingests["talk"].hub, "publish", None)
        await speaker.say(bytes(640))
        assert await speaker.rest() == []
        assert speaker.close_code == 1011
        streams.live.publish(final())
        assert (await other.get())["seq"] == 1
    assert streams.ingests["talk"].finished == "error"
    assert any(record.exc_info for record in caplog.records)


async def test_a_bug_in_a_dialect_ends_its_connection_only(monkeypatch, caplog):
    def say(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Deepgram, "say", say)
    streams, query = CountingStreams(), "encoding=linear16&sample_rate=16000&session=talk"
    async with (
        serving(streams) as server,
        client(server.port, query, path="/v1/listen") as foreign,
        joined(server.port, "session=talk") as listener,
    ):
        hub = streams.ingests["talk"].hub
        # Whoever publishes, which is the session, does not notice.
        assert [hub.publish(final(text)).seq for text in ("one", "two")] == [1, 2]
        assert [(await listener.get())["text"] for _ in range(2)] == ["one", "two"]
        assert await foreign.rest() == []
        assert foreign.close_code == 1011
        assert (await listener.rest())[-1]["type"] == "eos"
    bugs = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [bug.args for bug in bugs] == [("a bug",)]


async def test_a_stream_may_come_byte_by_byte(streams):
    loop = asyncio.get_running_loop()
    mask = b"\0\0\0\0"
    stop = b'{"type":"stop"}'
    frames = (
        b"\x82\xfe\x02\x80" + mask + bytes(640)  # binary, 640 bytes
        + bytes([0x81, 0x80 | len(stop)]) + mask + stop
        + b"\x88\x80" + mask  # close
    )  # fmt: skip
    async with serving(streams) as server:
        with DeafClient(server.port, "role=ingest&session=talk") as raw:
            for byte in raw.request:
                await loop.sock_sendall(raw.socket, bytes([byte]))
            await streams.opened.wait()
            for byte in frames:
                await loop.sock_sendall(raw.socket, bytes([byte]))
            async with client(server.port, "session=talk&after=0") as listener:
                *_, last, eos = await listener.rest()
    assert last["text"] == "1 frames"
    assert eos["reason"] == "stop"


@settings(max_examples=20)
@given(garbage=st.binary(min_size=1, max_size=200))
def test_garbage_instead_of_frames_ends_its_own_stream_only(garbage):
    async def run() -> None:
        streams = CountingStreams()
        async with serving(streams) as server, joined(server.port) as listener:
            with DeafClient(server.port, "role=ingest&session=talk") as raw:
                await raw.opened()
                await asyncio.get_running_loop().sock_sendall(raw.socket, garbage)
            while not streams.ingests["talk"].finished:
                await turn(listener)
            streams.live.publish(final())
            assert (await listener.get())["seq"] == 1
        assert streams.ingests["talk"].finished in ("disconnect", "error")

    asyncio.run(run())


async def test_who_receives_while_the_connection_is_being_closed_hears_that_it_is():
    class Lost:
        """Already lost, while `close` still holds what receives its messages."""

        protocol = SimpleNamespace(close_exc=ConnectionClosedOK(None, None))

        async def recv(self) -> str:
            raise ConcurrencyError("close receives what comes")

        async def wait_closed(self) -> None:
            pass

    with pytest.raises(ConnectionClosedOK):
        await WebSocket(Lost(), ServerLimits()).receive()


PCM = "session=talk&encoding=linear16&sample_rate=16000"


@pytest.mark.parametrize(
    ("path", "query", "named", "model"),
    [
        ("/v1/stream", "role=both&session=talk&model=fake", "other", "other"),
        ("/v1/stream", "role=both&session=talk", "fake", ""),
        ("/v1/listen", f"{PCM}&model=other", None, "other"),
        ("/v1/listen", f"{PCM}&model=nova-3", None, ""),
        ("/v1/realtime", "session=talk&model=other", None, "other"),
        ("/v1/realtime", "session=talk", "other", "other"),
        ("/v1/realtime", "session=talk&model=other", "whisper-1", ""),
    ],
)
async def test_a_client_may_name_the_model_of_its_session(
    path, query, named, model, streams, server
):
    async with client(server.port, query, path=path) as speaker:
        transcription = {"transcription": {"model": named}}
        if path == "/v1/realtime":
            audio = {"input": transcription if named else {}}
            await speaker.say({"type": "session.update", "session": {"audio": audio}})
            sound = b64encode(bytes(4_800)).decode()
            await speaker.say({"type": "input_audio_buffer.append", "audio": sound})
        else:
            await speaker.say({"type": "start", "model": named} if named else bytes(3_200))
            await speaker.say(bytes(3_200))
        await streams.opened.wait()
        await streams.ingests["talk"].until(lambda ingest: ingest.n_fed > 0)
        assert streams.ingests["talk"].hub.choices.model == model
        async with client(server.port, "session=talk") as listener:
            assert (await listener.get())["model"] == (model or "fake")


async def test_a_model_that_is_not_there_is_refused(server):
    async with client(server.port, "role=both") as speaker:
        await speaker.say({"type": "start", "model": "nova-3"})
        told = (await speaker.rest())[-1]
        assert (told["code"], told["message"], speaker.close_code) == (
            "bad_option",
            "model: nova-3 is not on this server",
            1008,
        )
