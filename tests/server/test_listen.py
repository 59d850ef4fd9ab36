import asyncio

import pytest
from websockets.asyncio.client import connect

from streamd.events import Final, Partial, TimedWord, Vad
from streamd.server.connection import WebSocket
from tests.support.serving import CountingStreams, client, joined, serving


def final(seg: int) -> Final:
    word = TimedWord(text="word", start_ms=0, end_ms=20, prob=0.5, final=True)
    return Final(seg=seg, start_ms=0, end_ms=20, text="word", language="en", words=(word,))


def partial(seg: int, rev: int) -> Partial:
    return Partial(seg=seg, rev=rev, start_ms=0, end_ms=20, text="wo", stable=0)


async def test_hello_says_where_the_listener_is(streams, server):
    streams.live.publish(final(0))
    async with client(server.port) as listener:
        assert await listener.get() == {
            "type": "hello",
            "proto": "streamd.v1",
            "session": "live",
            "epoch": "e1",
            "seq": 1,
            "model": "fake",
            "language": "en",
            "task": "transcribe",
            "prompt": "",
            "hotwords": "",
            "endpoint": "silence",
            "endpoint_ms": 600,
            "rate": 16000,
            "corrects": True,
            "started": streams.live.started.isoformat().replace("+00:00", "Z"),
            "limits": {
                "max_message_bytes": 1 << 20,
                "min_rate": 4000,
                "max_rate": 192000,
                "max_channels": 8,
                "max_session_ms": 0,
                "resume_ms": 30_000,
            },
        }


async def test_events_come_in_order_until_eos_and_a_normal_close(streams, server):
    async with joined(server.port) as listener:
        streams.live.publish(Vad(speech=True, t_ms=0))
        streams.live.publish(partial(0, 2))
        assert await listener.until("partial") == [
            {"type": "vad", "speech": True, "t_ms": 0},
            {
                "type": "partial",
                "seg": 0,
                "rev": 2,
                "start_ms": 0,
                "end_ms": 20,
                "text": "wo",
                "stable": 0,
                "words": [],
                "lag_ms": 0,
            },
        ]
        streams.live.publish(final(0))
        streams.live.close("stop")
        final_message, eos = await listener.rest()
        assert (final_message["type"], final_message["seq"]) == ("final", 1)
        assert eos == {"type": "eos", "seq": 1, "reason": "stop"}
        assert listener.close_code == 1000


async def test_after_replays_what_was_missed_then_the_current_partial(streams, server):
    for seg in range(4):
        streams.live.publish(final(seg))
    streams.live.publish(partial(4, 1))
    async with client(server.port, "after=2") as listener:
        messages = await listener.until("partial")
        assert [message.get("seq") for message in messages] == [4, 3, 4, None]


async def test_a_long_replay_lets_the_others_go_on(monkeypatch):
    streams, n_before_a_turn = CountingStreams(), []
    for seg in range(900):
        streams.live.publish(final(seg))
    send, n_sent = WebSocket.send, 0

    async def counted(socket: WebSocket, text: bytes) -> None:
        nonlocal n_sent
        n_sent += 1
        if n_sent == 2:  # the replay begins
            asyncio.get_running_loop().call_soon(lambda: n_before_a_turn.append(n_sent))
        await send(socket, text)

    monkeypatch.setattr(WebSocket, "send", counted)
    async with serving(streams) as server, joined(server.port, "after=0") as listener:
        assert [(await listener.get())["seq"] for _ in range(900)] == list(range(1, 901))
    assert n_before_a_turn == [2]


async def test_another_epoch_is_announced_and_everything_replayed(streams, server):
    streams.live.publish(final(0))
    async with client(server.port, "after=1&epoch=e0") as listener:
        _, missed, replayed = await listener.until("final")
        assert missed == {"type": "missed", "from_seq": 0, "to_seq": 0, "why": "epoch"}
        assert replayed["seq"] == 1


async def test_partials_and_words_can_be_declined(streams, server):
    async with joined(server.port, "partials=0&words=0") as listener:
        streams.live.publish(partial(0, 1))
        streams.live.publish(final(0))
        (message,) = await listener.until("final")
        assert message["words"] == []
        assert message["text"] == "word"


async def test_the_subprotocol_is_agreed_upon_if_it_is_offered(server):
    for offered, agreed in ((["x", "streamd.v1"], "streamd.v1"), (["x"], None), (None, None)):
        async with connect(
            f"ws://127.0.0.1:{server.port}/v1/stream", subprotocols=offered, proxy=None
        ) as connection:
            assert connection.subprotocol == agreed
            assert '"hello"' in str(await connection.recv())


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("session=nobody", "no_such_session"),
        ("role=dance", "bad_query"),
        ("after=-1", "bad_query"),
        ("after=many", "bad_query"),
        ("partials=perhaps", "bad_query"),
        ("session=../etc", "bad_query"),
        ("&".join(f"x{n}=1" for n in range(201)), "bad_query"),
    ],
)
async def test_what_cannot_be_had_is_refused_with_a_reason(query, code, server):
    async with client(server.port, query) as listener:
        (message,) = await listener.rest()
        assert (message["type"], message["code"], message["fatal"]) == ("error", code, True)
        assert message["message"]
        assert listener.close_code == 1008


@pytest.mark.parametrize(
    ("message", "code", "close"),
    [
        (b"\0\0", "not_ingest", 1003),
        ('{"type":"stop"}', "not_ingest", 1003),
        ("{}", "bad_message", 1007),
    ],
)
async def test_a_listener_that_talks_is_sent_away_and_the_others_go_on(
    message, code, close, streams, server
):
    async with joined(server.port) as other:
        async with joined(server.port) as listener:
            await listener.say(message)
            (error,) = await listener.rest()
            assert error["code"] == code
            assert listener.close_code == close
        streams.live.publish(final(0))
        assert (await other.get())["seq"] == 1
