"""A speaker that counts its samples may lose its connection: the session waits for it."""

import asyncio

import pytest

from streamd.events import Fault
from tests.support.serving import Client, CountingIngest, CountingStreams, client, joined, serving

START = {"type": "start", "samples": 0}
QUERY = "role=ingest&session=talk"


def s16(n_samples: int) -> bytes:
    return bytes(2 * n_samples)


async def begun(speaker: Client, start: dict[str, object] | None = None) -> tuple[str, int]:
    """The epoch, and where to go on."""
    hello = await speaker.get()
    await speaker.say(start or START)
    (started,) = await speaker.until("started")
    return str(hello["epoch"]), int(str(started["samples"]))


async def lost(port: int, streams: CountingStreams, n_samples: int) -> str:
    """The epoch of a speaker whose line breaks when so much was heard."""
    async with client(port, QUERY) as speaker:
        epoch, at = await begun(speaker)
        assert at == 0
        await speaker.say(s16(n_samples))
        await streams.ingests["talk"].until(lambda ingest: ingest.n_fed == n_samples // 320)
        speaker.connection.transport.abort()
    return epoch


async def test_who_comes_back_goes_on_where_it_was(streams):
    async with serving(streams) as server, joined(server.port, "session=live"):
        epoch = await lost(server.port, streams, 320 * 3 + 100)
        async with client(server.port, f"{QUERY}&epoch={epoch}") as speaker:
            assert await begun(speaker) == (epoch, 1060)
            await speaker.say(s16(220))
            *_, ack, eos = await speaker.stop()
    assert (ack, eos["reason"]) == ({"type": "ack", "samples": 1280}, "stop")
    assert streams.ingests["talk"].n_fed == 4


async def test_a_session_that_has_ended_because_of_a_bug_is_not_kept_for_its_client(
    streams, server
):
    async with client(server.port, QUERY) as speaker:
        epoch, _ = await begun(speaker)
        ingest = streams.ingests["talk"]
        ingest.hub.publish(Fault(code="internal", message="a bug", fatal=True))
        ingest.end("error", resumable=False)
        *_, fault, eos = await speaker.rest()
        assert (fault["code"], eos["reason"]) == ("internal", "error")
        assert speaker.close_code == 1000
    await ingest.until(lambda ingest: ingest.finished)
    async with client(server.port, f"{QUERY}&epoch={epoch}") as speaker:
        *_, refused = await speaker.rest()
        assert refused["code"] == "session_over"


async def test_acks_tell_what_is_final_each_second(server):
    async with client(server.port, QUERY) as speaker:
        await begun(speaker)
        await speaker.say(s16(8000))
        await speaker.say({"type": "flush", "id": "x"})
        await speaker.until("flushed")
        for _ in range(3):
            await speaker.say(s16(8000))
        assert (await speaker.until("ack"))[-1] == {"type": "ack", "samples": 8000}


async def test_who_does_not_count_gets_no_acks_and_is_not_waited_for(streams):
    async with serving(streams) as server:
        async with joined(server.port, QUERY) as speaker:
            await speaker.say({"type": "start"})
            await speaker.say(s16(32000))
            await speaker.say({"type": "flush", "id": "x"})
            assert [m["type"] for m in await speaker.until("flushed")] == ["flushed"]
            speaker.connection.transport.abort()
        ingest = streams.ingests["talk"]
        await ingest.until(lambda ingest: ingest.finished)
    assert ingest.finished == "disconnect"


async def test_a_connection_whose_end_we_have_not_noticed_is_replaced(streams):
    async with serving(streams) as server, client(server.port, QUERY) as old:
        epoch, _ = await begun(old)
        await old.say(s16(320))
        await streams.ingests["talk"].until(lambda ingest: ingest.n_fed == 1)
        async with client(server.port, f"{QUERY}&epoch={epoch}") as new:
            assert await begun(new) == (epoch, 320)
            (error,) = await old.rest()
            assert (error["code"], old.close_code) == ("replaced", 4409)
            await new.say(s16(320))
            await new.stop()
    assert streams.ingests["talk"].n_fed == 2


async def test_what_a_replaced_connection_is_still_feeding_is_counted(streams, server):
    async with client(server.port, QUERY) as old:
        epoch, _ = await begun(old)
        ingest = streams.ingests["talk"]
        ingest.has_room.clear()
        await old.say(s16(320))
        await ingest.waiting_for_room.wait()
        await old.say(s16(640))  # is not taken any more
        async with joined(server.port, f"{QUERY}&epoch={epoch}") as new:
            await new.say(START)
            (error,) = await old.rest()
            assert error["code"] == "replaced"
            ingest.has_room.set()
            assert (await new.get())["samples"] == 320


@pytest.mark.parametrize("epoch", ["", "&epoch=other"])
async def test_only_who_fed_it_may_replace_it(epoch, server):
    async with client(server.port, QUERY) as speaker:
        await begun(speaker)
        async with client(server.port, QUERY + epoch) as stranger:
            (error,) = await stranger.rest()
            assert error["code"] == "session_busy"


async def test_a_listener_can_neither_end_nor_take_over_a_session(streams, server):
    """Also with the epoch, which every listener is told."""
    async with client(server.port, QUERY) as speaker:
        told, _ = await begun(speaker)
        async with client(server.port, "session=talk") as listener:
            epoch = (await listener.get())["epoch"]
            assert streams.ingests["talk"].hub.listeners == 1  # the speaker is none
        assert told.startswith(f"{epoch}.")
        for guess in (epoch, f"{epoch}.", f"{epoch}.0", f"{told}0", told[:-1], "é"):
            async with client(server.port, f"{QUERY}&epoch={guess}") as stranger:
                assert [message["code"] for message in await stranger.rest()] == ["session_busy"]
        await speaker.say(s16(320))
        speaker.connection.transport.abort()
        async with client(server.port, f"{QUERY}&epoch={epoch}") as stranger:
            assert [message["code"] for message in await stranger.rest()] == ["session_busy"]
        async with client(server.port, f"{QUERY}&epoch={told}") as again:
            assert await begun(again) == (told, 320)


async def test_a_speaker_may_name_its_epoch_as_a_listener(server):
    async with client(server.port, QUERY) as speaker:
        told, _ = await begun(speaker)
        await speaker.say(s16(320))
        await speaker.say({"type": "flush", "id": "x"})
        await speaker.until("flushed")
        async with client(server.port, f"session=talk&after=0&epoch={told}") as listener:
            assert [m["type"] for m in await listener.until("final")] == ["hello", "final"]


async def test_the_secret_of_who_resumes_a_session_of_an_earlier_process_stays_valid(
    streams, server
):
    open_session = streams.open

    def opened(session: str, *, epoch: str | None, secret: str) -> CountingIngest:
        ingest = open_session(session)
        ingest.hub.epoch = epoch or ingest.hub.epoch  # as if the journal had it
        ingest.is_resumed = secret == "known"
        return ingest

    streams.open = opened
    async with client(server.port, f"{QUERY}&epoch=e1.known") as speaker:
        assert (await begun(speaker))[0] == "e1.known"
    for known in ("e2", "e2.", "e2.guess"):  # as a listener knows it
        query = f"role=ingest&session={known}&epoch={known}"
        async with client(server.port, query) as speaker:
            assert (await begun(speaker))[0] not in (known, "e2.known")


async def test_what_the_speaker_has_forgotten_is_a_gap(streams):
    async with serving(streams) as server:
        epoch = await lost(server.port, streams, 320)
        async with client(server.port, f"{QUERY}&epoch={epoch}") as speaker:
            _, at = await begun(speaker, {"type": "start", "samples": 16320})
            assert at == 16320
    assert streams.ingests["talk"].gaps == [(1000, "resume")]


@pytest.mark.parametrize(
    "first", [s16(320), {"type": "start", "samples": 0, "rate": 8000}, {"type": "start"}]
)
async def test_a_session_goes_on_with_the_audio_that_it_began_with(first, streams, server):
    epoch = await lost(server.port, streams, 320)
    async with joined(server.port, f"{QUERY}&epoch={epoch}") as speaker:
        await speaker.say(first)
        (*_, error) = await speaker.rest()
        assert error["code"] == "late_start"


async def test_who_comes_back_too_late_is_told_what_was_heard(streams):
    async with serving(streams, resume_ms=1) as server:
        epoch = await lost(server.port, streams, 16000)
        await streams.ingests["talk"].until(lambda ingest: ingest.finished)
        async with client(server.port, f"{QUERY}&epoch={epoch}") as speaker:
            (error,) = await speaker.rest()
    assert (error["code"], error["heard_ms"]) == ("session_over", 1000)
    assert streams.ingests["talk"].finished == "disconnect"


async def test_the_end_of_the_server_does_not_wait_for_who_is_away(streams):
    async with serving(streams, resume_ms=1_000_000) as server:
        await lost(server.port, streams, 3200)
        async with client(server.port) as listener:
            await listener.get()
    assert streams.ingests["talk"].finished == "shutdown"
    assert streams.ingests["talk"].hub.seq == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_session_may_have_a_greatest_length(streams):
    async with (
        serving(streams, max_session_ms=1000) as server,
        client(server.port, "role=both&session=talk") as speaker,
    ):
        assert (await speaker.get())["limits"]["max_session_ms"] == 1000
        for _ in range(4):
            await speaker.say(s16(8000))
        *_, final, eos = await speaker.rest()
    assert (final["text"], eos["reason"]) == ("50 frames", "limit")
    assert speaker.close_code == 1000
