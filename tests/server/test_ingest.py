import asyncio
import errno
import io
import json
from contextlib import asynccontextmanager

import av
import numpy as np
import pytest

from streamd.config import load
from streamd.daemon import build
from streamd.errors import ConfigError, WireError, os_error_as
from streamd.events import Correction
from streamd.options import BindOptions
from streamd.server import Server, guest_token, wire
from streamd.server.dialects.native import Native
from streamd.server.ingest import Ingest
from streamd.server.wire import Start, Stop
from streamd.sources.framing import Framer
from streamd.streams import Streams
from streamd.streams.hub import Hub
from tests.support.loop import turn
from tests.support.serving import (
    INFO,
    CountingIngest,
    CountingStreams,
    DeafClient,
    client,
    joined,
    serving,
)

FRAME_BYTES = 640


def s16(n_frames: int) -> bytes:
    return bytes(n_frames * FRAME_BYTES)


@asynccontextmanager
async def feeding(query: str = "role=ingest&session=talk"):
    """The sessions of a server, the server, and a client that feeds one."""
    streams = CountingStreams()
    async with serving(streams) as server, joined(server.port, query) as speaker:
        yield streams, server, speaker


async def test_a_whole_stream_and_its_speaker_hears_it_back():
    async with feeding("role=both&session=talk") as (streams, _, speaker):
        hello = speaker.hello
        assert (hello["session"], hello["seq"]) == ("talk", 0)
        await speaker.say(s16(5))
        (partial,) = await speaker.until("partial")
        assert partial["text"] == "5"
        await speaker.say({"type": "flush", "id": "x"})
        final, flushed = await speaker.until("flushed")
        assert (final["type"], final["seq"], final["text"]) == ("final", 1, "5 frames")
        assert flushed == {"type": "flushed", "id": "x", "seq": 1}
        await speaker.say(s16(2) + bytes(2))
        *_, last, eos = await speaker.stop()
        # The odd sample makes a third frame: nothing that was said is left out.
        assert (last["type"], last["text"]) == ("final", "3 frames")
        assert eos == {"type": "eos", "seq": 2, "reason": "stop"}
        assert speaker.close_code == 1000
    assert streams.ingests["talk"].finished == "stop"


async def test_who_only_speaks_is_not_sent_the_transcript():
    async with feeding("role=ingest") as (_, server, speaker):
        hello = speaker.hello
        async with joined(server.port, f"session={hello['session']}") as listener:
            await speaker.say(s16(3))
            await speaker.say({"type": "stop"})
            heard = await listener.rest()
        assert [message["type"] for message in heard][-2:] == ["final", "eos"]
        assert [message["type"] for message in await speaker.rest()] == ["eos"]


@pytest.mark.parametrize(
    ("encoding", "dtype", "scale"), [("pcm_s16le", "<i2", 32768), ("pcm_f32le", "<f4", 1)]
)
async def test_samples_arrive_exactly_however_they_are_cut(encoding, dtype, scale):
    ramp = np.arange(-1600, 1600) / 32768
    pcm = (ramp * scale).astype(dtype).tobytes()
    async with feeding() as (streams, _, speaker):
        await speaker.say({"type": "start", "encoding": encoding})
        width = np.dtype(dtype).itemsize
        for start in range(0, len(pcm), 77 * width):
            await speaker.say(pcm[start : start + 77 * width])
        await speaker.stop()
    assert np.array_equal(streams.ingests["talk"].samples(), ramp.astype(np.float32))


async def test_rate_and_channels_are_converted():
    async with feeding() as (streams, _, speaker):
        await speaker.say({"type": "start", "rate": 48000, "channels": 2})
        await speaker.say(bytes(48000 * 2 * 2))
        await speaker.stop()
    assert streams.ingests["talk"].n_fed == 50


async def test_half_a_second_of_audio_at_most_is_fed_at_once_and_only_when_there_is_room():
    async with feeding() as (streams, _, speaker):
        ingest = streams.ingests["talk"]
        ingest.has_room.clear()
        await speaker.say(s16(130))
        await ingest.waiting_for_room.wait()
        assert ingest.n_fed == 0
        ingest.has_room.set()
        await speaker.stop()
    assert [len(frames) for frames in ingest.frames] == [25] * 5 + [5]


async def test_who_sends_much_at_once_holds_up_nobody():
    ingest = CountingIngest(Hub("talk"))
    speaking = asyncio.create_task(Ingest(ingest, epoch="e.s", max_session_ms=0).take(s16(500)))
    seen = set()
    while not speaking.done():
        seen.add(ingest.n_fed)
        await turn()
    await speaking
    assert seen >= set(range(0, 500, 25))


async def test_a_large_message_is_resampled_in_pieces(monkeypatch):
    """More would block all other clients: a message of 1 MiB may hold minutes of audio."""
    sizes, push = [], Framer.push

    def noted(framer: Framer, block: np.ndarray) -> np.ndarray:
        sizes.append(len(block))
        return push(framer, block)

    monkeypatch.setattr(Framer, "push", noted)
    session = CountingIngest(Hub("talk"))
    ingest = Ingest(session, epoch="e.s", max_session_ms=0)
    await ingest.take(Start(rate=4001))
    await ingest.take(bytes(1 << 20))
    await ingest.take(Stop())
    assert max(sizes) == 2000
    assert sum(sizes) == 1 << 19
    assert abs(session.n_fed * 320 / 16000 - sum(sizes) / 4001) < 0.02


async def test_a_client_that_waits_for_us_is_not_taken_for_dead(streams):
    async with (
        serving(streams, ping_ms=300) as server,
        joined(server.port, "role=both&session=talk", ping_interval=None) as speaker,
    ):
        ingest = streams.ingests["talk"]
        ingest.has_room.clear()
        # More than the library's queue holds, so that it stops reading, pongs included.
        for _ in range(40):
            await speaker.say(s16(1))
        await ingest.waiting_for_room.wait()
        # Meanwhile time passes: enough for one that is dead to be found out.
        with DeafClient(server.port) as dead:
            await dead.opened()
            async with client(server.port) as listener:
                while not dead.is_cut():
                    await (await listener.connection.ping())
        ingest.has_room.set()
        *_, final, eos = await speaker.stop()
        assert final["text"] == "40 frames"
        assert eos["reason"] == "stop"


BAD_MESSAGES = {
    "nonsense": ("nonsense", "bad_message", 1007),
    "no type": ("{}", "bad_message", 1007),
    "unknown type": ('{"type":"sing"}', "bad_message", 1007),
    "an array": ("[1]", "bad_message", 1007),
    "deep": ('{"x":' + "[" * 100_000, "bad_message", 1007),
    "wrong field": ('{"type":"start","rate":"fast"}', "bad_message", 1007),
    "unknown encoding": ('{"type":"start","encoding":"mp3"}', "bad_message", 1007),
    "no channel": ('{"type":"start","channels":0}', "bad_message", 1007),
    "long id": ('{"type":"flush","id":"' + "x" * 201 + '"}', "bad_message", 1007),
    "endless": ('{"type":"start","samples":9007199254740993}', "bad_message", 1007),
    "before the start": ('{"type":"start","samples":-1}', "bad_message", 1007),
    "slow rate": ('{"type":"start","rate":3999}', "bad_rate", 1008),
    "fast rate": ('{"type":"start","rate":192001}', "bad_rate", 1008),
    "odd bytes": (b"\0\0\0", "bad_audio", 1007),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_nonsense_ends_its_own_stream_only(name):
    message, code, close_code = BAD_MESSAGES[name]
    async with feeding("role=both&session=other") as (streams, server, other):
        async with joined(server.port, "role=ingest&session=talk") as speaker:
            await speaker.say(message)
            (error,) = await speaker.rest()
            assert (error["type"], error["code"], error["fatal"]) == ("error", code, True)
            assert "\n" not in str(error["message"])
            assert speaker.close_code == close_code
        await other.say(s16(1))
        assert (await other.stop())[-1]["reason"] == "stop"
    assert streams.ingests["talk"].finished == "error"


def encoded(form: str, codec: str, seconds: int = 3) -> bytes:
    """A tone, as a browser's MediaRecorder sends it while it records."""
    file, rate = io.BytesIO(), 48_000
    tone = np.sin(np.arange(seconds * rate) * 0.05).astype(np.float32)
    with av.open(file, "w", format=form, options={"live": "1"} if form == "webm" else {}) as made:
        track = made.add_stream(codec, rate=rate, layout="mono")
        sound = av.AudioFrame.from_ndarray(tone[np.newaxis], format="flt", layout="mono")
        sound.sample_rate, sound.pts = rate, 0
        for frame in (*av.AudioResampler("s16", "mono", rate).resample(sound), None):
            made.mux(track.encode(frame))
    return file.getvalue()


@pytest.mark.parametrize("form", ["webm", "ogg"])
async def test_a_container_of_a_browser_is_decoded_as_it_comes(form):
    data = encoded(form, "libopus")
    async with feeding("role=both&session=talk") as (_, _, speaker):
        await speaker.say({"type": "start", "encoding": "container"})
        for at in range(0, len(data) // 2, 700):
            await speaker.say(data[at : at + 700])
        (partial,) = (await speaker.until("partial"))[-1:]
        assert int(partial["text"]) > 0  # before the end is there
        await speaker.say(data[at + 700 :])
        *_, final, eos = await speaker.stop()
        assert 150 <= int(final["text"].split()[0]) <= 152  # frames of 20 ms
        assert eos["reason"] == "stop"


async def test_what_is_no_container_is_bad_audio_and_disturbs_nobody():
    async with feeding() as (_, server, speaker):
        await speaker.say({"type": "start", "encoding": "container"})
        await speaker.say(b"no container" * 1000)
        *_, error = [each for each in await speaker.stop() if each["type"] == "error"]
        assert (error["code"], error["fatal"]) == ("bad_audio", True)
        async with joined(server.port, "role=ingest&session=other") as other:
            await other.say({"type": "start", "encoding": "container", "samples": 0})
            (error,) = await other.rest()
            assert error["message"] == "a container has one mixed channel, and cannot be resumed"


def test_of_very_many_unknown_fields_only_a_few_are_looked_at(monkeypatch):
    looked_at = []
    monkeypatch.setattr(wire, "get_close_matches", lambda name, *_, **__: looked_at.append(name))
    many = {f"x{n}": 0 for n in range(50_000)}
    told, start = Native("").hear(json.dumps({"type": "start", **many}))
    assert told.message.message.count("no field") == len(looked_at) == 5
    assert start == Start()


async def test_what_is_allowed_and_what_is_ignored_is_said(server):
    async with feeding() as (_, _, speaker):
        await speaker.say({"type": "start", "lang": "en", "x\n": 1, "rate": 16_000})
        warning = await speaker.get()
        assert (warning["code"], warning["fatal"]) == ("unknown_field", False)
        assert warning["message"] == (
            "start has no field 'lang'; did you mean language?; start has no field 'x\\n'"
        )
        await speaker.say({"type": "start", "encoding": "opus"})
        (error,) = await speaker.rest()
        assert error["message"].endswith(
            "- at `$.encoding`; allowed: pcm_s16le, pcm_f32le, container"
        )
    async with client(server.port, "role=speak") as lost:
        (error,) = await lost.rest()
        assert (
            error["message"] == "Invalid enum value 'speak' for role; allowed: listen, ingest, both"
        )


@pytest.mark.parametrize("first", [b"\0\0", '{"type":"start"}'])
async def test_start_comes_once_and_before_the_audio(first):
    async with feeding("role=ingest") as (_, _, speaker):
        await speaker.say(first)
        await speaker.say({"type": "start"})
        (error,) = await speaker.rest()
        assert error["code"] == "late_start"
        assert speaker.close_code == 1008


async def test_samples_that_are_no_numbers_are_complained_about_once():
    nan = np.full(320, np.nan, "<f4").tobytes()
    async with feeding() as (streams, _, speaker):
        await speaker.say({"type": "start", "encoding": "pcm_f32le"})
        await speaker.say(nan)
        await speaker.say(nan)
        error, eos = await speaker.stop()
        assert (error["code"], error["fatal"]) == ("bad_audio", False)
        assert eos["type"] == "eos"
    assert not streams.ingests["talk"].samples().any()


async def test_too_large_a_message_closes_with_1009_and_what_was_said_is_final(server):
    async with (
        joined(server.port, "role=ingest&session=talk") as speaker,
        joined(server.port, "session=talk") as listener,
    ):
        await speaker.say(s16(3))
        await speaker.say(bytes((1 << 20) + 2))
        assert await speaker.rest() == []
        assert speaker.close_code == 1009
        assert (await listener.rest())[-2]["text"] == "3 frames"


async def test_what_is_sent_after_stop_is_ignored():
    async with feeding() as (streams, _, speaker):
        ingest = streams.ingests["talk"]
        ingest.may_finish.clear()
        await speaker.say({"type": "stop"})
        for _ in range(3):
            await speaker.say(s16(1))
        await speaker.say("nonsense")
        ingest.may_finish.set()
        (eos,) = await speaker.rest()
        assert eos["type"] == "eos"
        assert speaker.close_code == 1000
    assert ingest.n_fed == 0


@pytest.mark.parametrize("session", ["talk", "live"])
async def test_a_session_has_one_speaker(session, server):
    async with joined(server.port, "role=both&session=talk") as speaker:
        async with client(server.port, f"role=ingest&session={session}") as second:
            (error,) = await second.rest()
            assert error["code"] == "session_busy"
            assert second.close_code == 1008
        assert (await speaker.stop())[-1]["reason"] == "stop"


async def test_too_many_streams_are_told_to_try_later(streams, server):
    streams.max_streams = 0
    async with client(server.port, "role=ingest") as speaker:
        (error,) = await speaker.rest()
        assert error["code"] == "too_many_streams"
        assert speaker.close_code == 1013


@pytest.mark.parametrize(("last", "reason"), [("nonsense", "error"), ("", "disconnect")])
async def test_what_was_said_before_nonsense_or_by_who_vanishes_is_final(server, last, reason):
    async with (
        joined(server.port, "role=ingest&session=talk") as speaker,
        joined(server.port, "session=talk") as listener,
    ):
        await speaker.say(s16(4) + bytes(100))
        await listener.until("partial")
        if last:
            await speaker.say(last)
        else:
            speaker.connection.transport.abort()
        *_, final, eos = await listener.rest()
        assert (final["text"], eos["reason"]) == ("5 frames", reason)
        assert listener.close_code == 1000


async def test_a_client_that_vanishes_while_we_are_busy_is_waited_for_by_nobody():
    async with feeding() as (streams, server, speaker):
        ingest = streams.ingests["talk"]
        ingest.has_room.clear()
        await speaker.say(s16(1))
        await ingest.waiting_for_room.wait()
        speaker.connection.transport.abort()
        async with joined(server.port, "role=both") as other:
            await other.say(s16(2))
            assert (await other.stop())[-2]["text"] == "2 frames"
        ingest.has_room.set()
        assert [event.text async for event in ingest.hub.subscribe(0) if hasattr(event, "text")]
    assert ingest.finished == "disconnect"
    assert asyncio.all_tasks() == {asyncio.current_task()}


CHOSEN = {
    "language": "fr",
    "task": "translate",
    "prompt": "Bees.",
    "hotwords": "Apis",
    "endpoint_ms": 400,
}


async def test_what_a_speaker_chooses_is_for_its_session_and_told_to_listeners(server):
    async with (
        client(server.port, "role=ingest&session=talk") as speaker,
        client(server.port, "role=ingest&session=other") as other,
    ):
        default = await speaker.get()
        for message in ({"type": "start", **CHOSEN}, s16(1), {"type": "flush"}):
            await speaker.say(message)
        await speaker.until("flushed")
        await other.say({"type": "start", "language": None})
        await other.say({"type": "flush"})
        await other.until("flushed")
        for session, told in (
            ("talk", CHOSEN),
            ("other", {name: default[name] for name in CHOSEN}),
        ):
            async with client(server.port, f"session={session}") as listener:
                hello = await listener.get()
                assert {name: hello[name] for name in CHOSEN} == told


async def test_a_choice_that_is_not_allowed_ends_the_session_with_one_line():
    async with feeding("role=both") as (_, _, speaker):
        await speaker.say({"type": "start", "language": "refused"})
        (error,) = await speaker.rest()
        assert (error["code"], error["fatal"], speaker.close_code) == ("bad_option", True, 1008)
        assert "\n" not in str(error["message"])


@pytest.mark.parametrize(("query", "start", "n_words"), [(1, False, 0), (0, True, 1), (0, None, 0)])
async def test_the_speaker_may_change_its_mind_about_words(query, start, n_words, server):
    """For itself: a listener gets what its own query says."""
    async with (
        client(server.port, f"role=both&session=talk&words={query}") as speaker,
        joined(server.port, "session=live"),
    ):
        for message in ({"type": "start", "words": start}, s16(1), {"type": "stop"}):
            await speaker.say(message)
        finals = [message for message in await speaker.rest() if message["type"] == "final"]
        assert [len(final["words"]) for final in finals] == [n_words]
        async with client(server.port, "session=talk&after=0") as listener:
            (final,) = [message for message in await listener.rest() if message["type"] == "final"]
        assert len(final["words"]) == 1


async def test_who_no_longer_waits_for_the_end_does_not_prevent_it():
    session = CountingIngest(Hub("talk"))
    ingest = Ingest(session, epoch="e", max_session_ms=0)
    session.may_finish.clear()
    impatient, patient = (asyncio.create_task(ingest.finish("stop")) for _ in range(2))
    await session.asked_to_flush.wait()
    impatient.cancel()
    await asyncio.wait({impatient})
    session.may_finish.set()
    await asyncio.wait_for(patient, 60)
    assert session.hub.closed


async def test_what_was_chosen_can_be_changed_while_there_is_audio():
    async with feeding("role=both&session=talk") as (streams, _, speaker):
        await speaker.say({"type": "start", "prompt": "Bees.", "hotwords": "Apis"})
        await speaker.say(s16(1))
        changed = {"hotwords": "mellifera", "endpoint_ms": 400, "sounds": True}
        await speaker.say({"type": "update"} | changed)
        await speaker.say({"type": "update", "language": "refused"})
        *_, fault = await speaker.until("error")
        assert (fault["code"], fault["fatal"]) == ("bad_option", False)
        choices = streams.ingests["talk"].hub.choices
        await speaker.say(s16(1))
        *_, eos = await speaker.stop()
        assert choices.prompt == "Bees."
        assert {name: getattr(choices, name) for name in changed} == changed
        assert (choices.language, eos["reason"]) == ("en", "stop")


async def test_updates_that_follow_at_once_become_one_before_the_next_command(monkeypatch):
    monkeypatch.setattr("streamd.server.ingest._MOMENT_S", 1e6)
    async with feeding("role=both&session=talk") as (streams, _, speaker):
        for prompt in "abcd":
            await speaker.say({"type": "update", "prompt": prompt})
        await speaker.say({"type": "update", "hotwords": "Apis"})
        await speaker.say({"type": "flush"})
        await speaker.until("flushed")
        updates = streams.ingests["talk"].updates
        assert updates == [{"prompt": "a"}, {"prompt": "d", "hotwords": "Apis"}]


async def test_an_update_that_says_the_same_costs_nothing_until_something_else_has_changed_it():
    async with feeding("role=both&session=talk") as (streams, _, speaker):
        same, flush = {"type": "update", "hotwords": "Apis"}, {"type": "flush"}
        for message in (same, flush, same, flush, {"type": "correct", "text": "Bees"}, same, flush):
            await speaker.say(message)
        for _ in range(3):
            await speaker.until("flushed")
        assert streams.ingests["talk"].updates == [{"hotwords": "Apis"}] * 2


async def test_an_update_is_made_after_one_that_waited_and_said_the_same():
    async with feeding("role=both&session=talk") as (_, _, speaker):
        same = {"type": "update", "hotwords": "Apis"}
        for message in (same, same, {"type": "flush"}, {"type": "update", "language": "refused"}):
            await speaker.say(message)
        *_, fault = await speaker.until("error")
        assert fault["code"] == "bad_option"


async def test_of_updates_that_become_one_those_that_are_allowed_are_made():
    async with feeding("role=both&session=talk") as (streams, _, speaker):
        for chosen in ({"prompt": "a"}, {"hotwords": "Apis"}, {"language": "refused"}):
            await speaker.say({"type": "update"} | chosen)
        await speaker.say({"type": "flush"})
        *_, fault, _ = await speaker.until("flushed")
        assert fault["code"] == "bad_option"
        choices = streams.ingests["talk"].hub.choices
        assert (choices.prompt, choices.hotwords) == ("a", "Apis")


async def test_updates_that_wait_are_made_at_the_end_of_the_moment(monkeypatch):
    monkeypatch.setattr("streamd.server.ingest._MOMENT_S", 0.01)
    async with feeding("role=both&session=talk") as (streams, _, speaker):
        for language in ("de", "fr", "refused"):
            await speaker.say({"type": "update", "language": language})
        *_, fault = await speaker.until("error")
        assert (fault["code"], fault["fatal"]) == ("bad_option", False)
        assert streams.ingests["talk"].hub.choices.language in ("de", "fr")
        assert streams.ingests["talk"].updates[-1] == {"language": "refused"}


async def test_who_feeds_a_session_corrects_it_and_all_listeners_are_told():
    async with feeding("role=both&session=talk") as (streams, server, speaker):
        await speaker.say(s16(1))
        await speaker.say({"type": "flush"})
        await speaker.until("flushed")
        word = {"type": "correct", "text": " Ana Botín ", "seq": 1, "first": 0, "last": 1}
        async with client(server.port, "session=talk") as listener:
            hello = await listener.get()
            await speaker.say({**word, "keep": True})
            told = {**word, "type": "correction", "text": "Ana Botín"}
            assert (await speaker.get(), await listener.get()) == (told, told)
            await speaker.say({"type": "correct", "text": "refused"})
            *_, fault = await speaker.until("error")
            assert (fault["code"], fault["fatal"]) == ("bad_option", False)
            assert not hello["corrects"]
            await listener.say(word)
            assert (await listener.rest())[-1]["code"] == "not_ingest"
        async with client(server.port, "session=talk&after=0") as late:
            await late.until("final")
            assert (await late.get())["type"] == "correction"
        await speaker.say({"type": "correct", "text": "so, there"})  # two phrases
        *_, fault = await speaker.until("error")
        assert (fault["code"], fault["fatal"]) == ("bad_message", True)
        assert streams.ingests["talk"].corrected == [("Ana Botín", True)]


async def test_whoever_may_send_audio_corrects_the_servers_own_session_and_no_mere_listener(
    streams,
):
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    correct = {"type": "correct", "text": "Zoë"}
    async with (
        Server(bind, sessions=streams, info=INFO) as server,
        client(server.port, "token=ears") as reader,
        client(server.port, "token=secret") as owner,
    ):
        assert not (await reader.get())["corrects"]
        assert (await owner.get())["corrects"]
        await owner.say(correct)
        assert (await owner.get())["type"] == "correction"
        assert (await reader.get())["text"] == "Zoë"
        for each, message in ((owner, {"type": "stop"}), (reader, correct)):
            await each.say(message)
            assert (await each.rest())[-1]["code"] == "not_ingest"
    assert streams.stream.corrected == [("Zoë", False)]


async def test_whoever_may_correct_names_speakers_for_all_readers():
    streams, own = CountingStreams(), "a-long-and-random-token"
    bind = BindOptions(port=0, token=own, listen_token="ears", share="speak")
    name = {"type": "name", "speaker": 2, "name": "Ana Botín"}
    async with (
        Server(bind, sessions=streams, info=INFO) as server,
        client(server.port, "token=ears") as reader,
        client(server.port, f"token={guest_token(own)}") as guest,
        client(server.port, f"token={own}&role=both&session=talk") as speaker,
    ):
        for each in (reader, guest, speaker):
            await each.get()
        for each in (guest, speaker):
            await each.say(name)
            assert await each.get() == name
            await each.say({**name, "name": "refused"})
            assert (await each.get())["code"] == "bad_option"
        assert streams.stream.asked_to_keep is None  # a guest has no voice forgotten, either
        assert await reader.get() == name
        await reader.say(name)
        assert (await reader.rest())[-1]["code"] == "not_ingest"
        await speaker.say({**name, "name": "a" * 101})
        *_, fault = await speaker.until("error")
        assert (fault["code"], fault["fatal"]) == ("bad_message", True)


async def test_only_the_owner_has_voices_kept_and_only_where_they_are():
    streams, own = CountingStreams(), "a-long-and-random-token"
    bind = BindOptions(port=0, token=own, share="speak")
    tries = ((None, own, []), (object, guest_token(own), []), (object, own, ["Ana"]))
    async with Server(bind, sessions=streams, info=INFO) as server:
        for speaker, (keeper, token, kept) in enumerate(tries, 1):
            streams.context.new_keeper, streams.stream.kept = keeper, []
            async with client(server.port, f"token={token}") as talker:
                assert (await talker.get()).get("keeps_voices", False) == bool(kept)
                name = {"type": "name", "speaker": speaker, "name": "Ana"}
                await talker.say({**name, "keep": True})
                while await talker.get() != name:
                    pass  # what the others were called
                if token != own:
                    assert (await talker.get())["code"] == "bad_option"
            if keeper is not None:
                assert streams.stream.kept == kept


async def test_what_guests_teach_is_for_their_session_only():
    """The link of `--sharing speak` is not the server's own token, with which words are kept."""
    streams, own = CountingStreams(), "a long and random token"
    bind = BindOptions(port=0, token=own, share="speak")
    word = {"type": "correct", "text": "Ada", "keep": True, "seq": 0, "first": 0, "last": 0}
    async with Server(bind, sessions=streams, info=INFO) as server:
        for token, kept in ((guest_token(own), False), (own, True)):
            bearer = {"Authorization": f"Bearer {token}"}
            for query in ("role=both&session=talk", "session=live"):
                async with client(server.port, query, additional_headers=bearer) as speaker:
                    assert (await speaker.get())["corrects"]
                    await speaker.say(word)
                    assert (await speaker.get())["type"] == "correction"
                    if not kept:
                        told = await speaker.get()
                        assert (told["code"], told["fatal"]) == ("bad_option", False)
            while not (talk := streams.ingests["talk"]).finished:
                await turn()
            assert [*talk.corrected, *streams.stream.corrected] == [("Ada", kept)] * 2
            streams.stream.corrected.clear()
    assert own not in guest_token(own)


async def test_a_correction_precedes_the_phrases_of_a_session():
    streams = Streams(build.session_factory(load({}, {})), max_backlog=1, max_ingest=1)
    kept: list[str] = []
    streams.learn = kept.append
    stream = streams.open("talk")
    await streams.transcribe()  # nothing, but choices are checked from now on
    await stream.update({"hotwords": "Apis"})
    for text, keep in (("Zoë", False), ("Ana Botín", True), ("Zoë", True), ("x:9", True)):
        await stream.correct(Correction(text=text), keep=keep)
    assert stream.hub.choices.hotwords == "x:9:1\nAna Botín\nZoë\nApis"
    assert kept == ["Ana Botín", "Zoë", "x:9"]
    for no_phrase in ("_", "# Ada", "a\x1b", "a\u202eb"):
        with pytest.raises(WireError, match="correct: ") as error:
            await stream.correct(Correction(text=no_phrase), keep=True)
        assert error.value.code == "bad_option"
    assert len(kept) == 3
    for nowhere in (Correction(text="Zoë", seq=1), Correction(text="Zoë", first=1)):
        with pytest.raises(WireError, match="no such words"):
            await stream.correct(nowhere, keep=False)


async def test_a_correction_that_cannot_be_kept_is_told():
    def refuse(phrase: str) -> None:
        with os_error_as(ConfigError, "/srv/somebody/vocabulary.txt: cannot write it"):
            raise OSError(errno.ENOSPC, "No space left on device")

    streams = Streams(build.session_factory(load({}, {})), max_backlog=1, max_ingest=1)
    stream = streams.open("talk")
    await streams.transcribe()  # nothing, but choices are checked from now on
    for learn, why in ((None, "no list"), (refuse, "No space left")):
        streams.learn = learn
        with pytest.raises(WireError, match=why) as error:
            await stream.correct(Correction(text="Zoë"), keep=True)
        assert error.value.code == "bad_option"
        assert "somebody" not in str(error.value)
