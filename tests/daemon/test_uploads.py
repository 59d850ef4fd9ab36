"""Recordings of clients, on the engine of live captions: the same text, after all who wait."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.live import supervise
from streamd.daemon.opening import OpenWhisper, open_model
from streamd.daemon.other_models import OtherModels
from streamd.daemon.uploads import Uploads
from streamd.engines import yamnet
from streamd.errors import EngineError, ModelError, SourceError, WireError
from streamd.events import Final
from streamd.library.listeners import Listeners
from streamd.library.shelf import Shelf
from streamd.library.tables import opened as library_in
from streamd.models import store
from streamd.models.catalog import entry
from streamd.server import Recording, Wanted
from streamd.sources.confined import ConfinedSource
from streamd.streams import Streams
from streamd.streams.journal.database import Database
from streamd.types import Hypothesis, Window
from tests.support import recorded
from tests.support.fakes import ScriptedRecognizer, scripted_audio, scripted_session
from tests.support.loop import turn
from tests.support.serving import CountingStreams, serving
from tests.support.uploads import form, head, post

TRANSCRIBE = Wanted(task="transcribe")


@pytest.fixture(scope="module")
def opened():
    return open_model(load({"model": "tiny.en"}, {}))


def at_once(**options: str) -> tuple[SimpleNamespace, list[str]]:
    """Streams without sessions, where nothing has to wait, and what was computed."""
    called: list[str] = []

    async def between(call, *args):
        called.append(getattr(call, "__name__", ""))
        return call(*args)

    return SimpleNamespace(between=between, are_idle=True), called


async def uploads(opened, **given: str) -> tuple[Uploads, list[str]]:
    config = load({"model": "tiny.en", **given}, {})
    streams, called = at_once()
    streams.choices = build.default_choices(config)
    made = Uploads(config, streams)
    made.opened.set_result(OpenWhisper(config, *opened))
    return made, called


@pytest.fixture(scope="module")
def wav(tmp_path_factory):
    path = tmp_path_factory.mktemp("uploads") / "upload"
    soundfile.write(path, recorded.three_sentences(), 16_000, format="WAV")
    return path


async def read(made: Uploads, path: Path, name: str, wanted: Wanted = TRANSCRIBE) -> Recording:
    with path.open("rb") as file:
        return await made.read(file.fileno(), name, wanted)


async def test_the_text_is_that_of_transcribe(opened, wav):
    made, called = await uploads(opened)
    recording = await read(made, wav, "talk.wav")
    finals = [final async for final in recording.finals]
    said = " ".join(final.text for final in finals)
    assert recorded.words(said) == recorded.words(" ".join(recorded.SENTENCES))
    assert abs(recording.duration_ms - len(recorded.three_sentences()) / 16) < 20
    assert made.written(finals, "vtt").startswith("WEBVTT\n\n00:00:00.")
    # A second of the file, or a window, at a time.
    assert called.count("take") >= recording.duration_ms // 1000
    assert called.count("next") >= 2


@pytest.fixture
def loud_is_music(monkeypatch):
    def classify(samples: np.ndarray) -> np.ndarray:
        scores = np.zeros(521, np.float32)
        scores[132] = np.mean(np.abs(samples) > 0.2)
        return scores

    monkeypatch.setattr(yamnet, "check_sounds", lambda: None)
    monkeypatch.setattr(yamnet.RecordedSounds.__init__, "__defaults__", (classify,))


@pytest.fixture(scope="module")
def with_music(tmp_path_factory):
    path = tmp_path_factory.mktemp("uploads") / "music.wav"
    loud = 0.5 * np.sign(np.sin((np.arange(48_000) / 300) ** 2))  # whose pitch rises: no hum
    soundfile.write(path, np.concatenate([recorded.samples(), loud]), 16_000)
    return path


async def test_a_recording_has_the_sounds_that_a_client_or_the_server_wants(
    opened, with_music, loud_is_music
):
    plain, _ = await uploads(opened)
    asked = Wanted(task="transcribe", sounds=True)
    sounding, _ = await uploads(opened, sounds="true")
    for made, wanted in ((plain, asked), (sounding, TRANSCRIBE)):
        recording = await read(made, with_music, "talk.wav", wanted)
        *_, final, sound = [event async for event in recording.events]
        assert (final.text, sound.label) == (recorded.SENTENCE, "music")
        assert abs(sound.start_ms - len(recorded.samples()) // 16) <= 500
        assert "<c.sound>[Music]</c>" in made.written([final, sound], "vtt")
        (heard,) = json.loads(made.written([final, sound], "json"))["sounds"]
        assert heard["label"] == "music"
    recording = await read(plain, with_music, "talk.wav")
    assert {type(event) async for event in recording.events} == {Final}


async def test_sounds_are_in_the_answers_that_have_a_place_for_them(
    opened, with_music, loud_is_music
):
    made, _ = await uploads(opened)
    data = with_music.read_bytes()
    async with serving(CountingStreams(), recordings=made) as server:
        for kind, sounds in (("verbose_json", ["music"]), ("json", [])):
            fields = form(("sounds", "true"), ("response_format", kind), file=data)
            status, _, body = await post(server.port, fields)
            answer = json.loads(body)
            assert (status, answer["text"]) == (200, recorded.SENTENCE)
            assert [each["label"] for each in answer.get("sounds", [])] == sounds


async def test_sounds_without_the_network_are_refused_to_the_client(opened, wav, monkeypatch):
    made, _ = await uploads(opened)
    error = ModelError("--sounds needs YAMNet; run: streamd models get sounds")
    monkeypatch.setattr(yamnet, "check_sounds", Mock(side_effect=error))
    with pytest.raises(WireError, match="needs YAMNet") as refused:
        await read(made, wav, "talk.wav", Wanted(task="transcribe", sounds=True))
    assert refused.value.code == "bad_form"


async def test_a_model_that_a_client_names_transcribes_beside_live_captions(
    opened, wav, monkeypatch
):
    made, called = await uploads(opened)
    listed = [("base", entry("base").outline)]
    monkeypatch.setattr(store, "installed", lambda here: iter(listed))
    config = load({"model": "tiny.en"}, {})
    streams = Streams(build.session_factory(config), max_backlog=500, max_ingest=8)
    made.others = OtherModels(config, streams, lambda other: OpenWhisper(other, *opened))
    recording = await read(made, wav, "a.wav", Wanted(task="transcribe", model="whisper-base"))
    said = " ".join([final.text async for final in recording.finals])
    assert recorded.words(said) == recorded.words(" ".join(recorded.SENTENCES))
    assert (recording.model, "next" in called, "take" in called) == ("base", False, False)
    assert made.models() == ["tiny.en", "base"]
    made.others.close()


async def test_clients_see_the_name_of_a_model_and_not_where_it_is(opened, wav, tmp_path):
    made, _ = await uploads(opened)
    (path := tmp_path / "mine.gguf").touch()
    config = load({"model": str(path)}, {})
    streams = Streams(build.session_factory(config), max_backlog=500, max_ingest=8)
    made.others = OtherModels(config, streams)
    made._config = config
    assert made.models()[0] == "mine.gguf"
    assert not any("/" in name for name in made.models())
    assert made.others.meant("mine.gguf") == made.others.meant(str(path)) == ""
    assert (await read(made, wav, "a.wav", Wanted(task="transcribe"))).model == "mine.gguf"


async def test_what_a_client_asks_for_is_what_the_server_does(opened, tmp_path):
    wav = recorded.wav(tmp_path / "a.wav", recorded.samples())
    made, _ = await uploads(opened, prompt="of the server", language="en")
    wanted = Wanted(task="transcribe", prompt="", temperature=1.0)
    finals = [final async for final in (await read(made, wav, "a.wav", wanted)).finals]
    assert {final.details.temperature for final in finals} == {1.0}
    with pytest.raises(WireError, match="knows en only"):
        await read(made, wav, "a.wav", Wanted(task="transcribe", language="de"))
    with pytest.raises(WireError, match="knows en only"):
        await read(made, wav, "a.wav", Wanted(task="translate"))


@pytest.mark.parametrize(
    "name", ["talk.wav", "x/tälk.wav", f"{'x' * 90}talk.wav", "– 🎉 talk!.wav"]
)
async def test_a_kept_recording_does_not_take_the_name_of_a_session(opened, wav, tmp_path, name):
    config = load({"model": "tiny.en", "library": str(tmp_path)}, {})
    streams, _ = at_once()
    streams.choices = build.default_choices(config)
    with library_in(tmp_path) as library:
        made = Uploads(config, streams, library)
        made.opened.set_result(OpenWhisper(config, *opened))
        async for _ in (await read(made, wav, name)).finals:
            (kept,) = Shelf(tmp_path).sessions()
            run = Shelf(tmp_path).run(kept.id)
            assert Listeners(streams, made).is_transcribed(run)  # so it is not deleted now
        assert not Listeners(streams, made).is_transcribed(run)
    (kept,) = Shelf(tmp_path).sessions()
    assert re.fullmatch(r"recording-x{0,46}talk", kept.name)
    assert recorded.words(kept.first) == recorded.words(recorded.SENTENCES[0])


async def test_a_thread_may_ask_for_recordings_while_others_begin(wav, monkeypatch):
    """The library's server asks in threads whether it may delete a session."""
    asked, begun = threading.Event(), []

    class FakeAddition:
        def __init__(self, *_, epoch):
            self.hub, self.is_open = Mock(epoch=epoch), True
            begun.append(self)

    monkeypatch.setattr("streamd.library.additions.Addition", FakeAddition)
    made = Uploads(load({"library": "x"}, {}), at_once()[0], Mock(spec=Database))
    wrong: list[Exception] = []

    def ask() -> None:
        while not asked.is_set():
            try:
                made.is_writing("none")
            except RuntimeError as error:
                wrong.append(error)
                return

    thread = threading.Thread(target=ask)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for n in range(2_000):
            made._addition("a.wav", f"epoch {n}")
    finally:
        sys.setswitchinterval(before)
        asked.set()
        thread.join()
    assert wrong == []
    assert made.is_writing("epoch 1999")


async def test_a_recording_has_a_greatest_length(opened, wav):
    made, _ = await uploads(opened, set="limits.max_upload_ms=3000")
    with pytest.raises(WireError, match="at most 3000 ms"):
        await read(made, wav, "a.wav")


class Reading:
    """What reads recordings: takes frames only where it may, and more is there than is kept."""

    def __init__(self, monkeypatch) -> None:
        self.pipes: list[asyncio.ReadTransport] = []
        self.may_go = asyncio.Event()
        monkeypatch.setattr("streamd.daemon.uploads.stranger_file", self._source)

    @asynccontextmanager
    async def _source(
        self, file: int, name: str, languages: Sequence[str]
    ) -> AsyncIterator[ConfinedSource]:
        async with ConfinedSource(file, name) as source:
            self.pipes.append(source._process._transport.get_pipe_transport(1))
            yield source

    async def between(self, call, *args):
        if call.__name__ == "take":
            await self.may_go.wait()
            while self.pipes[-1].is_reading():
                await turn()
        return call(*args)


@pytest.fixture(scope="module")
def half_an_hour():
    """A recording of which far more is unread than a pipe and its reader hold."""
    file = BytesIO()
    soundfile.write(file, np.zeros(1800 * 16_000, np.float32), 16_000, format="FLAC")
    return form(file=file.getvalue())


async def test_forty_senders_who_hang_up_take_no_place(opened, half_an_hour, monkeypatch):
    made, _ = await uploads(opened)
    reading = Reading(monkeypatch)
    made.streams.between = reading.between
    async with serving(CountingStreams(), recordings=made) as server:
        n_open = len(os.listdir("/dev/fd"))
        for _ in range(5):
            reading.pipes.clear()
            senders = []
            for _ in range(8):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(head(len(half_an_hour)) + half_an_hour)
                senders.append(writer)
            while len(reading.pipes) < 8 or any(pipe.is_reading() for pipe in reading.pipes):
                await turn()
            for writer in senders:
                writer.transport.abort()
            while len(os.listdir("/dev/fd")) > n_open:
                await turn()
            assert b"streamd_uploads_active 0.0" in server._metrics.text()


async def test_a_recording_over_the_limit_is_refused_though_more_of_it_is_decoded(
    opened, half_an_hour, monkeypatch
):
    made, _ = await uploads(opened, set="limits.max_upload_ms=3000")
    reading = Reading(monkeypatch)
    made.streams.between = reading.between
    async with serving(CountingStreams(), recordings=made) as server:
        reading.may_go.set()
        assert (await post(server.port, half_an_hour))[0] == 413


async def test_messages_name_the_clients_file(opened, tmp_path):
    made, _ = await uploads(opened)
    path = tmp_path / "secret"
    for junk in (b"", b"no sound" * 1000):
        path.write_bytes(junk)
        with pytest.raises(SourceError, match=r"holiday\.mp3") as caught:
            await read(made, path, "holiday.mp3")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile secret.wav\n",
    ],
)
async def test_a_playlist_cannot_have_files_of_the_server_read(opened, wav, tmp_path, playlist):
    made, _ = await uploads(opened, set="limits.max_upload_ms=0")
    path = tmp_path / "upload"
    shutil.copy(wav, secret := tmp_path / "secret.wav")  # FFmpeg would read it by this name
    path.write_text(playlist.format(secret))
    with pytest.raises(SourceError, match="is damaged or not a sound file"):
        await read(made, path, "a.m3u8")


SPEECH = [False] * 25 + [True] * 200 + [False] * 60


class Watching(ScriptedRecognizer):
    """Notes the windows among the steps."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self._order = order

    def recognize(self, window: Window) -> Hypothesis:
        self._order.append("window")
        return super().recognize(window)


@pytest.fixture
async def transcribing():
    tasks = []

    def start(*recognizers) -> Streams:
        streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=8)
        tasks.append(asyncio.create_task(streams.transcribe(*recognizers)))
        return streams

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_live_windows_go_first_and_recordings_take_turns(transcribing):
    order: list[str] = []
    streams = transcribing(Watching(order))
    running, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(running.set)
        assert go.wait(30)

    async def recording(name: str) -> None:
        for i in range(3):
            await streams.between(order.append, f"{name}{i}")

    blocked = asyncio.create_task(streams.between(block))
    await running.wait()
    recordings = [asyncio.create_task(recording(name)) for name in "ab"]
    live = streams.open("live")
    live.feed(scripted_audio(SPEECH))
    go.set()
    await asyncio.gather(blocked, *recordings)
    await live.finish("stop")
    assert order[0] == "window"
    assert [each for each in order if each != "window"] == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_one_recognizer_of_several_is_left_to_live_windows(transcribing):
    order: list[str] = []
    streams = transcribing(Watching(order), Watching(order))
    running, go = asyncio.Semaphore(0), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(running.release)
        assert go.wait(30)

    steps = [asyncio.create_task(streams.between(block)) for _ in range(3)]
    await running.acquire()
    live = streams.open("live")
    live.feed(scripted_audio(SPEECH))
    await live.finish("stop")  # though a recording has the other recognizer
    with live.hub.subscribe(after=0) as events:
        assert [event async for event in events if isinstance(event, Final)]
    assert running.locked()
    go.set()
    await asyncio.gather(*steps)


async def test_what_fails_fails_alone(transcribing):
    streams = transcribing(ScriptedRecognizer())

    def fail() -> None:
        raise EngineError("this recording only")

    with pytest.raises(EngineError, match="this recording only"):
        await streams.between(fail)
    gone = asyncio.create_task(streams.between(fail))
    await turn()
    gone.cancel()
    assert await streams.between(lambda: 42) == 42


async def test_who_waits_for_an_engine_that_hangs_hears_of_it():
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=8, deadline_s=0.01)
    go = threading.Event()
    running = asyncio.create_task(streams.transcribe(ScriptedRecognizer(), ScriptedRecognizer()))
    steps = [asyncio.create_task(streams.between(call)) for call in (go.wait, int)]
    for step in steps:  # the second one waits for the first
        with pytest.raises(EngineError, match="has not finished a window"):
            await asyncio.wait_for(step, 60)
    with pytest.raises(EngineError, match="has not finished a window"):
        await running
    with pytest.raises(EngineError, match="has not finished a window"):
        await asyncio.wait_for(streams.between(int), 60)
    go.set()


async def test_who_waits_for_an_engine_that_is_stopped_hears_of_it():
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=8)
    started, go, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(started.set)
        assert go.wait(60)

    running = asyncio.create_task(streams.transcribe(ScriptedRecognizer()))
    steps = [asyncio.create_task(streams.between(call)) for call in (block, int)]
    await started.wait()
    running.cancel()
    for step in steps:
        with pytest.raises(EngineError, match="the engine was stopped"):
            await asyncio.wait_for(step, 60)
    go.set()


async def test_who_waits_for_a_model_that_cannot_be_loaded_hears_of_it():
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=8)

    def open_engine() -> None:
        raise ModelError("/srv/somebody/model: torn")

    step = asyncio.create_task(streams.between(int))
    with pytest.raises(ModelError):
        await supervise(streams, open_engine)
    with pytest.raises(EngineError, match="the model cannot be used: see the log"):
        await asyncio.wait_for(step, 60)


@pytest.mark.parametrize("form", ["MP3", "WAV", "FLAC"])
async def test_of_a_damaged_recording_there_is_the_text_of_what_is_left(opened, tmp_path, form):
    path = tmp_path / "upload"
    soundfile.write(path, recorded.three_sentences(), 16_000, format=form)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    made, _ = await uploads(opened)
    with path.open("rb") as file:
        recording = await made.read(file.fileno(), "talk", TRANSCRIBE)
    assert [final.text async for final in recording.finals]
    (warning,) = recording.warnings
    assert warning.startswith("talk is ")
    assert "complete copy" in warning


async def test_of_several_tracks_the_one_in_the_wanted_language_is_read(opened, tmp_path, ffmpeg):
    path = tmp_path / "film.mka"
    speech = recorded.wav(tmp_path / "speech.wav", recorded.samples())
    command = (
        *("ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", "sine=duration=3", "-i", speech),
        *("-map", "0", "-map", "1", "-metadata:s:a:0", "language=ger"),
        *("-metadata:s:a:1", "language=eng", path),
    )
    await asyncio.to_thread(subprocess.run, command, check=True)
    made, _ = await uploads(opened)
    with path.open("rb") as file:
        recording = await made.read(file.fileno(), "film.mka", TRANSCRIBE)
    assert [final.text async for final in recording.finals]
