"""Sessions that outlive the process: the next one goes on behind what was kept."""

import asyncio
import os
import sqlite3
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from msgspec.structs import replace

from streamd.config import Config
from streamd.daemon.display import written
from streamd.errors import EngineError, StreamdError, WireError
from streamd.events import Eos, Fault, Final, Gap, Partial, SpeakerName
from streamd.options import Choices
from streamd.server import Transcripts
from streamd.speakers import VOICEPRINT_BYTES
from streamd.streams import SessionStorage, Streams
from streamd.streams import hub as streams_hub
from streamd.streams import stream as streams_stream
from streamd.streams.journal.database import Database
from streamd.streams.journal.lines import proof_of
from streamd.streams.journal.tables import transcript
from streamd.streams.stream import Stream
from streamd.types import ResumeState
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session
from tests.support.said import spoken
from tests.support.serving import client, serving

SECRET = "5ec4e7"
SPEECH = [False] * WORD + [True] * (5 * WORD) + [False] * 60


WRITING = "streamd.streams.journal.database.put_run"


def fail(*_: object) -> None:
    """Fail as SQLite does where a disk is full."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


class Daemon:
    """One process's sessions, transcribed until `die`."""

    def __init__(self, path, *, recordings=None, resume_s=0.0) -> None:
        self.journals = Database(path)
        self.streams = Streams(
            lambda _: scripted_session(),
            max_backlog=500,
            max_ingest=8,
            storage=SessionStorage(self.journals, recordings, resume_s, disk=path),
        )
        self.task = asyncio.create_task(self.streams.transcribe(ScriptedRecognizer()))

    async def die(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.journals.__exit__()  # nothing but what the kernel does for a dead process


class Processes:
    """Starts one process after the other in a folder: the one before dies first."""

    def __init__(self, path) -> None:
        self._path, self._alive = path, None

    async def __call__(self, path=None, **options: object) -> Daemon:
        await self.end()
        self._alive = Daemon(path or self._path, **options)
        return self._alive

    async def end(self) -> None:
        if self._alive:
            await self._alive.die()
        self._alive = None


@pytest.fixture
async def process(tmp_path):
    started = Processes(tmp_path)
    yield started
    await started.end()


async def said(stream: Stream) -> list[Final]:
    finalised_ms = stream.hub.journal.finalised_ms
    n_again = max(0, finalised_ms - stream.began_ms) // 20 if stream.is_resumed else 0
    stream.feed(scripted_audio([False] * n_again + SPEECH))
    await stream.flush()
    events = []
    with stream.hub.subscribe(after=0) as replay:
        while (event := replay.pop()) is not None:
            events.append(event)
    return [event for event in events if isinstance(event, Final)]


async def left_behind(
    process, *, secret: str = SECRET, name: str = "talk", **chosen: object
) -> tuple[Stream, list[Final]]:
    """A session of a process that died after something was said in it, and the finals."""
    stream = (await process()).streams.open(name)
    await stream.choose(chosen, secret=secret)
    finals = await said(stream)
    await process.end()
    return stream, finals


@pytest.mark.parametrize("end", ["kill", "shutdown"])
async def test_the_next_process_goes_on_with_higher_numbers_and_later_times(process, tmp_path, end):
    first = await process()
    stream = first.streams.open("talk")
    before = await said(stream)
    if end == "shutdown":
        await stream.finish("shutdown")
    second = await process()
    again = second.streams.open("talk")
    assert again.hub.epoch == stream.hub.epoch
    heard = again.hub.subscribe()
    finals = await said(again)
    assert finals[:1] == before
    assert [final.seq for final in finals] == [1, 2]
    assert finals[1].seg > finals[0].seg
    assert finals[1].start_ms >= finals[0].end_ms
    assert finals[1].words[0].start_ms >= finals[1].start_ms
    gap = heard.pop()
    assert (type(gap), gap.why, gap.t_ms + gap.duration_ms <= finals[1].start_ms) == (
        Gap, "restart", True,
    )  # fmt: skip
    await process.end()
    kinds = [type(event) for event in transcript(tmp_path, "talk")]
    assert kinds == [Final, Gap, Final]


async def test_speakers_keep_their_numbers_and_names_in_the_next_process(process):
    first = await process()
    stream = first.streams.open("talk")
    await said(stream)
    half = VOICEPRINT_BYTES // 2
    known = (b"\x7f" * half + bytes(half), bytes(half) + b"\x7f" * half)
    journal = stream.hub.journal
    journal.resume_state = ResumeState(start_ms=journal.finalised_ms, voiceprints=known)
    stream.rename(SpeakerName(speaker=2, name="Ana"))
    second = await process()
    again = second.streams.open("talk")
    assert again.session.resume_state.voiceprints == known
    assert again.began_ms > 0  # no sound of before
    assert again.hub.speakers_named == {2}


@pytest.mark.parametrize("days", [-1, 1])
async def test_a_clock_that_jumps_turns_no_time_of_a_session_back(process, monkeypatch, days):
    class Jumped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    first = await process()
    stream = first.streams.open("talk")
    before = await said(stream)
    for module in (streams_stream, streams_hub):
        monkeypatch.setattr(module, "datetime", Jumped)
    n_heard = stream.session.now
    stream.feed(scripted_audio([False] * n_heard + SPEECH)[n_heard:])
    await stream.flush()
    with stream.hub.subscribe(after=1) as replay:
        again = replay.pop()
    assert before[-1].end_ms <= again.start_ms < before[-1].end_ms + 3_600_000
    second = await process()
    finals = await said(second.streams.open("talk"))
    await process.end()
    assert [final.seq for final in finals] == [1, 2, 3]
    assert all(a.end_ms <= b.start_ms for a, b in pairwise(finals))


async def test_who_sends_again_what_was_not_settled_goes_on_without_a_gap(process, tmp_path):
    first = await process()
    stream = first.streams.open("talk")
    await stream.choose({}, secret=SECRET)
    await said(stream)
    finalised_ms = stream.session.finalised_ms
    stream.feed(scripted_audio([False] * 10 + [True] * 30))  # is lost
    second = await process()
    again = second.streams.open("talk", epoch=stream.hub.epoch, secret=SECRET)
    assert again.session.finalised_ms == finalised_ms
    finals = await said(again)
    assert finals[1].start_ms - finalised_ms == finals[0].start_ms
    assert not any(isinstance(event, Gap) for event in transcript(tmp_path, "talk"))


@pytest.mark.parametrize("lost_ms", [-1000, 500])
async def test_who_no_longer_has_all_audio_goes_on_with_what_it_has(process, tmp_path, lost_ms):
    stream, _ = await left_behind(process)
    finalised_ms = stream.session.finalised_ms
    second = await process()
    again = second.streams.open("talk", epoch=stream.hub.epoch, secret=SECRET)
    await again.choose({}, secret=SECRET, has_ms=finalised_ms + lost_ms)
    assert again.began_ms == finalised_ms + lost_ms
    assert again.session.finalised_ms == finalised_ms + max(0, lost_ms)
    one, two = await said(again)
    assert two.start_ms > one.end_ms
    gaps = [event for event in transcript(tmp_path, "talk") if isinstance(event, Gap)]
    wanted = Gap(t_ms=finalised_ms, duration_ms=500, why="resume")
    assert gaps == [wanted] * (lost_ms > 0)


@pytest.mark.parametrize("reason", ["stop", "disconnect"])
async def test_a_session_that_its_speaker_ended_begins_anew(process, reason):
    daemon = await process()
    stream = daemon.streams.open("talk")
    await said(stream)
    await stream.finish(reason)
    again = daemon.streams.open("talk")
    assert again.hub.epoch != stream.hub.epoch
    (final,) = await said(again)
    assert (final.seq, final.seg) == (1, 1)


async def test_partials_and_finals_of_a_segment_have_one_number(process):
    for _ in range(2):
        daemon = await process()
        stream = daemon.streams.add("live")
        with stream.hub.subscribe() as events:
            await said(stream)
            stream.end("shutdown", resumable=True)
            heard = [event async for event in events]
        final = next(event for event in heard if isinstance(event, Final))
        assert all(event.seg == final.seg for event in heard if isinstance(event, Partial))


async def test_what_cannot_be_kept_is_told_to_everybody_and_ends_the_program(
    process, tmp_path, monkeypatch
):
    daemon = await process()
    streams = [daemon.streams.open(name) for name in ("a", "b")]
    heard = [stream.hub.subscribe() for stream in streams]

    with monkeypatch.context() as disk:
        disk.setattr(WRITING, fail)
        streams[0].feed(scripted_audio(SPEECH))
        # It must not be told that all is well: its last words are not in the journal.
        stop = asyncio.create_task(streams[0].finish("stop"))
        with pytest.raises(StreamdError, match="No space left") as failure:
            await daemon.task
        await stop
    daemon.streams.fail(failure.value)
    for subscription in heard:
        *_, fault, eos = [event async for event in subscription]
        assert isinstance(fault, Fault)
        assert (fault.code, fault.fatal, eos) == ("journal", True, Eos(seq=0, reason="error"))
        assert str(tmp_path) not in fault.message


async def test_the_audio_is_recorded_as_it_was_heard(process, tmp_path):
    daemon = await process(tmp_path / "journal", recordings=tmp_path / "audio")
    stream = daemon.streams.open("talk")
    await said(stream)
    await stream.finish("stop")
    await process.end()
    (path,) = (tmp_path / "audio").glob("talk~*.wav")
    samples, _ = soundfile.read(path, dtype="float32")
    assert np.allclose(samples, scripted_audio(SPEECH).reshape(-1), atol=1 / 65536)


async def test_a_session_that_cannot_be_stored_takes_nobodys_place(
    process, tmp_path, monkeypatch, caplog
):
    """Neither without a folder for recordings nor on a full disk."""
    audio = tmp_path / "audio"
    daemon = await process(tmp_path / "journal", recordings=audio)
    audio.touch()  # no folder
    n_open = len(os.listdir("/dev/fd"))

    async def refused() -> None:
        for _ in range(9):
            with pytest.raises(WireError) as error:
                daemon.streams.open("talk")
            assert error.value.code == "storage"
            assert str(tmp_path) not in str(error.value)
            assert str(tmp_path) in caplog.text
        assert daemon.streams.names() == []
        assert len(os.listdir("/dev/fd")) == n_open
        assert daemon.journals.select("SELECT * FROM runs") == []

    await refused()
    audio.unlink()

    with monkeypatch.context() as disk:
        disk.setattr(WRITING, fail)
        await refused()
    assert list(audio.iterdir()) == []
    assert "No space left" in caplog.text
    stream = daemon.streams.open("talk")
    assert [final.seq for final in await said(stream)] == [1]
    await stream.finish("stop")


async def test_where_a_disk_cannot_be_read_no_session_begins(process, tmp_path):
    daemon = await process(tmp_path / "journal", recordings=tmp_path / ("a" * 300))
    with pytest.raises(WireError, match="cannot be read: File name too long") as error:
        daemon.streams.open("talk")
    assert error.value.code == "storage"
    assert any("cannot be read" in reason for reason in daemon.streams.unready())


async def test_before_a_disk_is_full_no_new_session_begins(process, tmp_path, monkeypatch):
    """What runs goes on, here or in the next process."""
    disk: set[str] = set()
    monkeypatch.setattr("streamd.streams.storage.is_nearly_full", lambda at: at.name in disk)
    first = await process(tmp_path / "journal", recordings=tmp_path / "audio")
    stream = first.streams.open("talk")
    await stream.choose({}, secret=SECRET)
    for full in ("journal", "audio"):
        disk = {full}
        async with serving(first.streams) as server, client(server.port, "role=ingest") as new:
            (told,) = await new.rest()
            assert (told["code"], new.close_code) == ("storage", 1013)
        assert any("nearly full" in reason for reason in first.streams.unready())
    await said(stream)
    assert first.streams.names() == ["talk"]
    await stream.finish("shutdown")
    second = await process(tmp_path / "journal", recordings=tmp_path / "audio")
    own = second.streams.add("live")
    again = second.streams.open("talk", epoch=stream.hub.epoch, secret=SECRET)
    assert [final.seq for final in await said(again)] == [1, 2]
    assert [final.seq for final in await said(own)] == [1]
    disk.clear()
    assert not any("full" in reason for reason in second.streams.unready())
    new = second.streams.open("new")
    assert [final.seq for final in await said(new)] == [1]
    for each in (own, again, new):
        await each.finish("stop")


async def test_a_full_disk_for_recordings_ends_no_session(process, tmp_path, caplog):
    daemon = await process(tmp_path / "journal", recordings=tmp_path / "audio")
    stream = daemon.streams.open("talk")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, stream._recording._file.fileno())
    os.close(full)
    (final,) = await said(stream)
    await stream.finish("stop")
    assert "No space left" in caplog.text
    assert list(transcript(tmp_path / "journal", "talk")) == [final]


async def test_a_session_that_ends_as_it_begins_leaves_no_recording(process, tmp_path):
    daemon = await process(tmp_path / "journal", recordings=tmp_path / "audio")
    daemon.streams.fail(EngineError("the engine is dead"))
    assert daemon.streams.open("talk").is_over
    assert list((tmp_path / "audio").iterdir()) == []


async def test_who_listens_before_the_speaker_is_back_waits_for_it(process):
    stream, (before,) = await left_behind(process)
    second = await process()
    assert second.streams.hub("nobody") is None
    hub = second.streams.hub("talk")
    heard = hub.subscribe(after=0, epoch=stream.hub.epoch)
    assert heard.pop() == before
    again = second.streams.open("talk", epoch=stream.hub.epoch, secret=SECRET)
    assert again.hub is hub
    await said(again)
    assert [event.seq for event in iter(heard.pop, None) if isinstance(event, Final)] == [2]


async def test_unfinished_sessions_are_forgotten_when_nobody_listens_and_go_on_all_the_same(
    process,
):
    first = await process()
    names = [f"s{n}" for n in range(3)]
    spoken = [first.streams.open(name) for name in names]
    for stream in spoken:
        await said(stream)
    second = await process()
    files = len(os.listdir("/dev/fd"))
    staying = second.streams.hub("s0").subscribe(after=0)
    for name in names[1:]:
        with second.streams.hub(name).subscribe(after=0) as visit:
            assert isinstance(visit.pop(), Final)
    second.streams.forget()
    assert second.streams.names() == ["s0"]
    staying.close()
    second.streams.forget()
    assert second.streams.names() == []
    assert len(os.listdir("/dev/fd")) == files
    assert second.journals.writing == set()
    for stream in spoken:
        again = second.streams.open(stream.hub.session, epoch=stream.hub.epoch)
        assert [final.seq for final in await said(again)] == [1, 2]


async def test_what_was_said_in_a_session_that_is_over_can_still_be_heard(process):
    first = await process()
    stream = first.streams.open("talk")
    (final,) = await said(stream)
    await stream.finish("stop")
    second = await process()
    heard = [event async for event in second.streams.hub("talk").subscribe(after=0)]
    assert heard == [final, Eos(seq=1, reason="stop")]
    with pytest.raises(WireError) as over:
        second.streams.open("talk", epoch=stream.hub.epoch)
    assert (over.value.code, over.value.heard_ms) == ("session_over", len(SPEECH) * 20)
    assert second.streams.open("talk").hub.epoch != stream.hub.epoch


@pytest.mark.parametrize(
    ("epoch", "secret"), [("", SECRET), ("other", SECRET), ("right", ""), ("right", "guess")]
)
async def test_after_a_restart_nobody_but_its_speaker_resumes_a_session(process, epoch, secret):
    """Others wait as long as without a restart; then they get a session of their own."""
    stream, (before,) = await left_behind(process)
    run = stream.hub.epoch
    presented = {"epoch": run if epoch == "right" else epoch or None, "secret": secret}
    second = await process(resume_s=3600.0)
    with pytest.raises(WireError) as busy:
        second.streams.open("talk", **presented)
    assert busy.value.code == "session_busy"
    again = second.streams.open("talk", epoch=run, secret=SECRET)
    assert (again.hub.epoch, again.is_resumed, again.hub.seq) == (run, True, 1)
    late = await process()
    heard = late.streams.hub("talk").subscribe(after=0)
    other = late.streams.open("talk", **presented)
    assert (other.is_resumed, other.hub.seq) == (False, 0)
    assert other.hub.epoch != run
    assert [event async for event in heard] == [before, Eos(seq=1, reason="disconnect")]
    with pytest.raises(WireError) as over:
        late.streams.open("talk", epoch=run, secret=SECRET)
    assert (over.value.code, over.value.heard_ms) == ("session_over", stream.session.finalised_ms)


async def test_the_secret_of_hello_holds_over_a_restart(process):
    query, start = "role=ingest&session=talk", {"type": "start", "samples": 0, "language": "fr"}
    first = await process()
    async with serving(first.streams) as server, client(server.port, query) as speaker:
        told = (await speaker.get())["epoch"]
        await speaker.say(start)
        await speaker.until("started")
        await process.end()
    second = await process(resume_s=3600.0)
    async with serving(second.streams) as server:
        async with client(server.port, "session=talk") as listener:
            hello = await listener.get()
        for guess in (hello["epoch"], f"{hello['epoch']}.", f"{hello['epoch']}.{SECRET}", ""):
            async with client(server.port, f"{query}&epoch={guess}") as stranger:
                assert [message["code"] for message in await stranger.rest()] == ["session_busy"]
        async with client(server.port, f"{query}&epoch={told}") as speaker:
            hello = await speaker.get()
            assert (hello["epoch"], hello["language"]) == (told, "fr")
            await speaker.say(start)
            assert await speaker.get() == {"type": "started", "samples": 0}


async def test_no_secret_can_be_read_in_the_journal(process, tmp_path):
    daemon = await process()
    await daemon.streams.open("talk").choose({}, secret=SECRET)
    await process.end()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert proof_of(SECRET).encode() in stored
    assert SECRET.encode() not in stored


async def test_a_session_whose_speaker_cannot_resume_is_continued_by_the_next(process, tmp_path):
    stream, _ = await left_behind(process, secret="")
    second = await process(resume_s=3600.0)
    again = second.streams.open("talk", epoch=stream.hub.epoch, secret="any")
    assert (again.hub.epoch, again.is_resumed) == (stream.hub.epoch, False)
    assert isinstance((await said(again) and list(transcript(tmp_path, "talk")))[1], Gap)


async def test_the_daemons_own_session_has_the_choices_of_no_client(process):
    """Nor can the client resume it, which fed one of that name in an earlier process."""
    stream, _ = await left_behind(process, name="live", language="fr")
    second = await process()
    live = second.streams.add("live")
    assert (live.hub.seq, live.hub.choices) == (1, second.streams.choices)
    third = await process()
    again = third.streams.open("live", epoch=stream.hub.epoch, secret=SECRET)
    assert (again.is_resumed, again.hub.choices) == (False, third.streams.choices)


async def test_a_resumed_session_has_its_model_opened_again(process):
    async def open_named(model):
        opened.append(model)
        return lambda before, chosen: replace(before, model=model, **chosen)

    opened = []
    first = await process()
    first.streams.open_named = open_named
    first.streams.meant = lambda model, exactly: model
    stream = first.streams.open("talk")
    await stream.choose({"model": "base"}, secret=SECRET)
    await said(stream)
    second = await process()
    second.streams.open_named = open_named
    second.streams.meant = lambda model, exactly: model
    again = second.streams.open("talk", epoch=stream.hub.epoch, secret=SECRET)
    await again.choose({}, secret=SECRET)
    assert (opened, again.hub.choices.model) == (["base", "base"], "base")
    other = second.streams.open("other")
    await other.choose({"model": "base"})  # by a client that cannot resume
    await said(other)
    third = await process()
    assert third.streams.hub("other").choices.model == "base"
    assert third.streams.open("other").hub.choices.model == ""


async def test_what_a_speaker_has_chosen_holds_after_a_restart(process):
    chosen = {"language": "fr", "prompt": "Bees.", "endpoint_ms": 400}
    stream, _ = await left_behind(process, **chosen)
    again = await process()
    again.streams.choices = Choices(language="de", hotwords="of the server")
    assert again.streams.hub("talk").choices == Choices(**chosen)
    stream = again.streams.open("talk", epoch=stream.hub.epoch, secret=SECRET)
    await stream.choose({"language": "it"}, secret=SECRET)
    assert stream.hub.choices == Choices(**{**chosen, "language": "it"})
    other = again.streams.open("other")
    assert other.hub.choices == again.streams.choices
    last = await process()
    assert last.streams.hub("talk").choices.language == "it"


@pytest.mark.parametrize("end", ["kill", "shutdown"])
async def test_changed_choices_take_no_more_of_the_disk_than_the_audio_allows(
    process, tmp_path, end
):
    """The newest ones hold after a restart all the same."""
    daemon = await process()
    stream = daemon.streams.open("talk")
    await stream.choose({}, secret=SECRET)
    before = n_bytes(tmp_path)
    prompts = [f"{n:4}" * 1000 for n in range(40)]
    for prompt in prompts:
        await stream.update({"prompt": prompt})
    assert n_bytes(tmp_path) < before + 30_000  # one of them, in pages of 4 kB
    if end == "kill":
        stream.feed(scripted_audio([False] * 500))  # 10 s, for 10,000 bytes
        assert n_bytes(tmp_path) < before + 60_000
        await daemon.streams.kept()
    else:
        await stream.finish("shutdown")
    again = await process()
    assert again.streams.hub("talk").choices.prompt == prompts[-1]


def n_bytes(folder) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.db*"))


async def test_a_change_is_stored_at_once_if_there_was_none_for_long(process):
    daemon = await process()
    stream = daemon.streams.open("talk")
    await stream.update({"prompt": "One."})
    stream.feed(scripted_audio([False] * 50))
    await stream.update({"prompt": "Two."})
    again = await process()
    assert again.streams.hub("talk").choices.prompt == "Two."


async def test_the_transcript_of_an_earlier_process_is_written_whole(process):
    first = await process()
    stream = first.streams.open("talk")
    for n in range(3):
        stream.hub.publish(spoken(f"number {n}", start_ms=1000 * n))
    await stream.finish("stop")
    second = await process()
    transcripts = Transcripts(second.streams, partial(written, Config()))
    answer = await transcripts.answer("talk", "format=txt")
    assert answer.body.decode().splitlines() == [f"number {n}" for n in range(3)]
