import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import websockets.asyncio.server
from websockets.http11 import Request

from streamd.errors import ConfigError, StreamdError, WireError
from streamd.events import Eos, Fault, Final, Gap, Missed, Partial, SessionEvent, TimedWord, Vad
from streamd.server.client import watch
from streamd.streams.hub import Hub
from tests.support.nats import free_port
from tests.support.serving import CountingStreams, Relay, joined, serving

HELLO = (
    '{"type":"hello","proto":"streamd.v1","session":"live","epoch":"e","seq":0,"model":"m",'
    '"language":"en","rate":16000,"limits":{"max_message_bytes":1}}'
)


def final(text: str = "") -> Final:
    return Final(seg=0, start_ms=0, end_ms=20, text=text, language="en")


@asynccontextmanager
async def speaking(*messages: str) -> AsyncIterator[str]:
    """A websocket server that says this and hangs up; gives its address."""

    async def speak(connection: websockets.asyncio.server.ServerConnection) -> None:
        for message in messages:
            await connection.send(message)

    async with websockets.asyncio.server.serve(speak, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def everything(url: str, **options: object) -> list[SessionEvent]:
    async with aclosing(watch(url, **options)) as events:
        return [event async for event in events]


@pytest.mark.parametrize(
    "address", ["ws://{}", "http://{}/", "{}", "ws://{}/v1/stream", "{}?session=live"]
)
async def test_events_arrive_as_they_were_published(address, streams, server):
    word = TimedWord(text="yes", start_ms=0, end_ms=20, prob=0.5, final=True)
    said = [
        Vad(speech=True, t_ms=0),
        Partial(seg=0, rev=1, start_ms=0, end_ms=20, text="ja", stable=1, words=(word,), lag_ms=5),
        Gap(t_ms=40, duration_ms=20, why="overrun"),
        Fault(code="engine", message="it broke", fatal=True),
    ]
    url = address.format(f"127.0.0.1:{server.port}")
    async with aclosing(watch(url, after=0)) as events:
        one = streams.live.publish(final("one"))
        assert (one.seq, await anext(events)) == (1, one)
        for event in said:
            streams.live.publish(event)
            assert await anext(events) == event
        streams.live.close("stop")
        assert [event async for event in events] == [Eos(seq=1, reason="stop")]


async def test_a_lost_connection_loses_and_doubles_nothing(streams):
    streams.live.publish(final("before"))
    streams.live.publish(Partial(seg=1, rev=1, start_ms=0, end_ms=20, text="on", stable=0))
    async with (
        serving(streams) as server,
        Relay(server.port) as relay,
        aclosing(watch(f"127.0.0.1:{relay.port}", retry_ms=0)) as events,
    ):
        assert isinstance(await anext(events), Partial)
        streams.live.publish(final("one"))
        heard = [await anext(events)]
        for n_dropped, texts in ((0, ["two"]), (3, ["three", "four"]), (0, [])):
            relay.n_to_drop = n_dropped
            relay.cut()
            for text in texts:
                streams.live.publish(final(text))
                heard.append(await anext(events))
        streams.live.close("stop")
        heard += [event async for event in events]
    assert [event.text for event in heard if isinstance(event, Final)] == [
        "one",
        "two",
        "three",
        "four",
    ]
    assert heard[-1] == Eos(seq=5, reason="stop")
    assert relay.n_calls == 1 + 3 + 3


async def test_a_server_that_was_restarted_is_noticed(streams, server):
    async with (
        Relay(server.port) as relay,
        aclosing(watch(f"127.0.0.1:{relay.port}?after=0", retry_ms=0)) as events,
    ):
        for text in ("one", "two"):
            streams.live.publish(final(text))
            assert (await anext(events)).text == text
        streams.live = Hub("live", epoch="e2")
        for text in ("eins", "zwei", "drei"):
            streams.live.publish(final(text))
        relay.cut()
        assert await anext(events) == Missed(from_seq=0, to_seq=0, why="epoch")
        assert [(await anext(events)).text for _ in range(3)] == ["eins", "zwei", "drei"]


async def test_it_comes_back_to_where_it_was_even_if_it_heard_nothing_but_hello():
    scripts = [
        [HELLO.replace('"seq":0', '"seq":5')],
        [HELLO.replace('"seq":0', '"seq":7').replace('"epoch":"e"', '"epoch":"f"')],
        [HELLO, '{"type":"eos","seq":0,"reason":"stop"}'],
    ]
    asked: list[str] = []

    async def speak(connection: websockets.asyncio.server.ServerConnection) -> None:
        assert connection.request is not None
        asked.append(connection.request.path.partition("?")[2])
        for message in scripts[len(asked) - 1]:
            await connection.send(message)

    async with websockets.asyncio.server.serve(speak, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        await everything(f"127.0.0.1:{port}", retry_ms=0)
    # The second run of the session counts anew: all of it is wanted.
    assert asked == ["", "after=5&epoch=e", "after=0&epoch=f"]


async def test_who_was_too_slow_comes_back(streams, server):
    streams.live = Hub("live", bound=4)
    async with aclosing(watch(f"127.0.0.1:{server.port}?after=0", retry_ms=0)) as events:
        streams.live.publish(final("0"))
        await anext(events)
        for n in range(1, 10):
            streams.live.publish(final(str(n)))
        assert [(await anext(events)).text for _ in range(9)] == list("123456789")


async def test_a_session_that_is_gone_when_we_come_back_is_an_error(streams, server):
    async with joined(server.port, "role=ingest&session=talk"):
        async with Relay(server.port) as relay:
            url = f"127.0.0.1:{relay.port}?session=talk&after=0"
            async with aclosing(watch(url, retry_ms=0)) as events:
                streams.ingests["talk"].hub.publish(final())
                await anext(events)
                gone = streams.ingests.pop("talk")
                relay.cut()
                with pytest.raises(WireError, match="no session 'talk'"):
                    await anext(events)
        assert not gone.finished


async def test_what_a_newer_server_says_besides_is_skipped():
    async with speaking(HELLO, '{"type":"mood"}', '{"type":"eos","seq":0,"reason":"stop"}') as url:
        assert await everything(url) == [Eos(seq=0, reason="stop")]


@pytest.mark.parametrize(
    "url", ["", "ws://", "ftp://localhost", "ws://localhost:port", "ws://[::1"]
)
async def test_what_is_no_address_is_named(url):
    with pytest.raises(ConfigError, match="expected ws://HOST:PORT"):
        await everything(url)


async def test_nobody_there():
    url = f"ws://127.0.0.1:{free_port()}"
    with pytest.raises(StreamdError, match=rf"cannot connect to {url} .*is streamd running"):
        await everything(url)


@pytest.mark.parametrize("said", ["hi", "{}", '{"type":"vad","speech":true,"t_ms":0}', "[1]"])
async def test_a_websocket_of_somebody_else(said):
    async with speaking(said) as url:
        with pytest.raises(StreamdError, match=f"{url} .*does not speak streamd.v1"):
            await everything(url)


async def test_a_server_that_is_no_websocket():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StreamdError, match="is not a streamd server"):
            await everything(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("path", "message"),
    [("/elsewhere", "refuses: 404 .*/v1/stream"), ("", "refuses: it needs a token: --token-file")],
)
async def test_a_refusal_says_why(path, message):
    async with serving(CountingStreams(), token="secret") as server:
        with pytest.raises(StreamdError, match=message):
            await everything(f"127.0.0.1:{server.port}{path}")


async def test_a_wrong_token_is_told_from_a_missing_one():
    async with serving(CountingStreams(), token="secret") as server:
        with pytest.raises(StreamdError, match="refuses: the token is wrong"):
            await everything(f"127.0.0.1:{server.port}", token="another")


async def test_a_server_without_tls_is_named_by_its_address(server):
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(StreamdError, match=f"does not speak TLS: .* ws://{address}"):
        await everything(f"wss://{address}")


class OnlyClients(CountingStreams):
    """A server without a microphone of its own."""

    def hub(self, session):
        return None if session == "live" else super().hub(session)

    def names(self):
        return super().names()[1:]


async def test_without_a_microphone_there_it_waits_for_a_speaker_and_shows_all(caplog):
    caplog.set_level("INFO")
    streams = OnlyClients()
    waits = asyncio.Event()
    names = streams.names
    streams.names = lambda: waits.set() or names()
    async with serving(streams) as server:
        watching = asyncio.create_task(everything(f"127.0.0.1:{server.port}", retry_ms=1))
        await waits.wait()
        speaker = streams.open("desk")
        speaker.hub.publish(final("hello"))
        speaker.hub.close("stop")
        *_, said, end = await watching
    assert (said.text, end.reason) == ("hello", "stop")


async def test_a_proxy_is_not_asked_for_the_sessions(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    streams = OnlyClients()
    speaker = streams.open("desk")
    async with serving(streams) as server:
        watching = asyncio.create_task(everything(f"127.0.0.1:{server.port}", retry_ms=1))
        speaker.hub.close("stop")
        assert await watching == [Eos(seq=0, reason="stop")]


async def test_a_server_that_does_not_tell_its_sessions_is_named(monkeypatch):
    monkeypatch.setattr("streamd.server.client._ANSWER_S", 0.05)
    unknown = '{"type":"error","code":"no_such_session","message":"none","fatal":true}'

    told = asyncio.Event()

    async def wait(_: object, request: Request) -> None:
        if request.path.startswith("/v1/sessions"):
            await told.wait()

    async def speak(connection: websockets.asyncio.server.ServerConnection) -> None:
        await connection.send(unknown)

    async with websockets.asyncio.server.serve(
        speak, "127.0.0.1", 0, process_request=wait
    ) as server:
        address = f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        with pytest.raises(StreamdError, match=f"http://{address}/v1/sessions does not answer"):
            await everything(address)
        told.set()


async def test_with_the_token_one_may_watch(streams):
    streams.live.close("stop")
    async with serving(streams, token="secret") as server:
        events = await everything(f"127.0.0.1:{server.port}", token="secret")
        link = f"http://127.0.0.1:{server.port}/#token=secret"  # as `--share` prints it
        assert events == await everything(link) == [Eos(seq=0, reason="stop")]


async def test_an_unknown_session_is_an_error_with_its_code(server):
    says = "refuses: there is no session 'x'; sessions: live"
    with pytest.raises(WireError, match=says) as caught:
        await everything(f"127.0.0.1:{server.port}?session=x")
    assert caught.value.code == "no_such_session"
