"""Listeners who choose a language, over the websocket."""

from streamd.server import ServerInfo
from streamd.translation.service import Translations
from tests.support.serving import CountingStreams, client, serving
from tests.support.translating import final, shouting


def info() -> ServerInfo:
    translator, _ = shouting("en-pt", "en-de")
    return ServerInfo("fake", "en", Translations(translator, ["pt", "de"]))


async def test_the_query_names_the_language(streams):
    async with (
        serving(streams, info=info()) as server,
        client(server.port, "translate=pt") as listener,
    ):
        assert (await listener.get())["translates"] == ["pt", "de"]
        streams.live.publish(final("Hi."))
        *_, found = await listener.until("translation")
        assert (found["text"], found["into"], found["first"]) == ("pt:HI.", "pt", 1)


async def test_a_message_chooses_another_and_none(streams):
    streams.live.publish(final("Hi."))
    async with serving(streams, info=info()) as server, client(server.port) as listener:
        await listener.until("hello")
        await listener.say({"type": "translate", "into": "de", "after": 0})
        assert (await listener.until("translation"))[-1]["text"] == "de:HI."
        await listener.say({"type": "translate", "into": "pt", "after": 0})
        assert (await listener.until("translation"))[-1]["text"] == "pt:HI."
        await listener.say({"type": "translate", "into": "xx"})
        *_, refused = await listener.until("error")
        assert (refused["code"], refused["fatal"]) == ("bad_option", False)
        await listener.say({"type": "translate", "into": ""})
        await listener.say({"type": "translate", "into": "xx"})  # its answer: that one was heard
        await listener.until("error")
        streams.live.publish(final("Ho.", seg=2, start_ms=3_000))
        streams.live.close("end")
        assert [each["type"] for each in await listener.rest()] == ["final", "eos"]


async def test_the_last_sentence_comes_before_the_end(streams):
    async with (
        serving(streams, info=info()) as server,
        client(server.port, "translate=pt") as listener,
    ):
        await listener.until("hello")
        streams.live.publish(final("the end"))
        streams.live.close("end")
        *said, last = await listener.rest()
        whole = [
            each["text"] for each in said if each["type"] == "translation" and each["complete"]
        ]
        assert (whole, last["type"]) == (["pt:THE END"], "eos")


async def test_a_session_that_is_over_is_translated_for_who_asks(streams):
    streams.live.publish(final("Hi."))
    streams.live.close("end")
    async with (
        serving(streams, info=info()) as server,
        client(server.port, "translate=pt&after=0") as listener,
    ):
        said = await listener.rest()
    assert [each["type"] for each in said] == ["hello", "final", "translation", "eos"]


async def test_a_query_with_a_language_that_is_not_offered_is_refused():
    async with (
        serving(CountingStreams(), info=info()) as server,
        client(server.port, "translate=xx") as listener,
    ):
        (refused,) = await listener.rest()
        assert (refused["code"], refused["fatal"]) == ("bad_option", True)
        assert listener.close_code == 1008


async def test_a_server_without_translations_says_so(server):
    async with client(server.port, "translate=pt") as listener:
        (refused,) = await listener.rest()
        assert "--translate-into" in str(refused["message"])


async def test_a_listener_may_send_nothing_else(monkeypatch, streams):
    monkeypatch.setattr(streams, "own", lambda session: None)
    async with serving(streams, info=info()) as server, client(server.port) as listener:
        await listener.until("hello")
        assert (await listener.stop())[-1]["code"] == "not_ingest"
