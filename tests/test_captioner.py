"""The names of ``import streamd``: one model, cheap sessions, from threads and from asyncio."""

import asyncio
import json
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import streamd
from streamd import Captioner, ConfigError, EngineError, ModelError, SourceError, transcribe
from streamd.captioner import CaptionSession
from streamd.events import Final
from streamd.hub import Hub
from streamd.sources.arrays import ArraySource
from tests.support import recorded

ROOT = Path(__file__).resolve().parents[1]
LAMP = str(ROOT / "tests/golden/lamp.flac")
CARDS = str(ROOT / "tests/golden/cards.flac")
LAMP_TEXT = "Would you please turn on the living room lamp?"


@pytest.fixture(scope="module")
def captions():
    with Captioner("tiny.en") as opened:
        yield opened


def finals(events) -> list[str]:
    return [event.text for event in events if event.is_final]


def test_importing_streamd_loads_nothing_heavy():
    program = "import sys, streamd; print([*{'numpy', 'asyncio', 'msgspec'} & {*sys.modules}])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n"


def test_every_name_exists_and_no_other():
    assert {*dir(streamd)} == {*streamd.__all__}
    assert all(getattr(streamd, name) is not None for name in streamd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Captoiner'"):
        _ = streamd.Captoiner


def test_captions_grow_while_somebody_speaks_and_end_in_a_final(captions):
    shown = threading.Event()

    def blocks():
        *before, after = np.split(recorded.samples(), [16_000, 32_000])
        yield from before
        assert shown.wait(60)
        yield after

    events = []
    for event in captions.listen(blocks()):
        events.append(event)
        shown.set()
    assert finals(events) == [recorded.SENTENCE]
    partial, *_ = events
    assert not partial.is_final
    assert recorded.SENTENCE.startswith(partial.text[: partial.stable])
    final = events[-1]
    assert (final.start, final.end) == (final.start_ms / 1000, final.end_ms / 1000)
    assert 0 < final.words[0].end <= final.words[-1].start < 5


def test_a_session_takes_blocks_of_any_size_rate_and_type(captions):
    sound = np.repeat(recorded.samples(), 2)  # at 32 kHz
    stereo = (np.stack([sound, sound], axis=1) * 32767).astype(np.int16)
    with captions.session(rate_hz=32_000, channels=2) as session:
        for start in range(0, len(stereo), 4_321):
            session.feed(stereo[start : start + 4_321])
        early = session.poll()
        session.finish()
        assert finals([*early, *session]) == [recorded.SENTENCE]
        with pytest.raises(RuntimeError, match="the session is over"):
            session.feed(stereo)


def test_what_was_fed_may_be_overwritten(captions):
    with captions.session() as session:
        block = np.zeros(16_000, np.float32)
        for start in range(0, len(recorded.samples()) - 16_000, 16_000):
            block[:] = recorded.samples()[start : start + 16_000]
            session.feed(block)
        block[:] = 0
        session.finish()
        assert finals(session)[0].startswith("Out of his 1800, he laid aside")


async def test_two_sessions_at_a_time_in_asyncio(captions):
    async def texts(audio: object) -> list[str]:
        return [event.text async for event in captions.listen(audio) if event.is_final]

    found = await asyncio.gather(texts(LAMP), texts(iter([recorded.samples()])))
    assert found == [[LAMP_TEXT], [recorded.SENTENCE]]


def test_audio_that_cannot_be_had_fails_only_its_own_session(captions):
    with pytest.raises(SourceError, match=r"nowhere\.wav: .*; check the path"):
        list(captions.listen("nowhere.wav"))
    assert finals(captions.listen(LAMP)) == [LAMP_TEXT]


def test_an_iterable_that_fails_raises_its_own_error(captions):
    def blocks():
        yield np.zeros(1600, np.float32)
        raise ZeroDivisionError("the caller's bug")

    with pytest.raises(ZeroDivisionError, match="the caller's bug"):
        list(captions.listen(blocks()))


@pytest.mark.parametrize(
    ("samples", "error", "said"),
    [
        (np.zeros(4, np.complex64), TypeError, "samples must be float32, .* got complex64"),
        (np.zeros((4, 2), np.float32), ValueError, r"the shape \(n,\), got \(4, 2\)"),
        (np.float32(0), ValueError, r"the shape \(n,\), got \(\)"),
    ],
)
def test_samples_of_another_kind_are_refused_at_once(captions, samples, error, said):
    with captions.session() as session, pytest.raises(error, match=said):
        session.feed(samples)


def test_only_a_session_of_the_callers_own_can_be_fed(captions):
    with captions.listen(LAMP) as session, pytest.raises(RuntimeError, match="only session"):
        session.feed(np.zeros(320, np.float32))


class Silence(ArraySource):
    """A live source that says when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = threading.Event()
        self.put(recorded.samples())

    async def __aexit__(self, *_: object) -> None:
        self.closed.set()


def test_leaving_the_loop_closes_the_source(captions):
    source = Silence()
    for _ in captions.listen(source):
        break
    assert source.closed.wait(10)


def test_closing_ends_what_waits():
    source = Silence()
    with Captioner("tiny.en") as opened:
        session = opened.listen(source)
        event = next(iter(session))
        assert not event.is_final
        waiting = opened.session()
        reader = threading.Thread(target=lambda: read.extend(waiting))
        read: list[object] = []
        reader.start()
    reader.join(10)
    assert not reader.is_alive()
    assert read == []
    assert source.closed.is_set()
    assert list(waiting) == waiting.poll() == []
    with pytest.raises(RuntimeError, match="the session is over"):
        waiting.feed(np.zeros(320, np.float32))
    with pytest.raises(RuntimeError, match="use it in a with statement"):
        opened.session()
    opened.close()


def test_a_failed_engine_fails_every_session(monkeypatch):
    class Broken:
        def recognize(self, window: object) -> object:
            raise EngineError("the runtime failed")

    monkeypatch.setattr("streamd.captioner.recognizers", lambda *_: ([Broken()], None))
    with Captioner("tiny.en") as broken:
        for _ in range(2):
            with pytest.raises(EngineError, match="the runtime failed"):
                list(broken.listen(recorded.samples()))


def test_an_engine_that_hangs_fails_a_recording(monkeypatch):
    go = threading.Event()

    def hang(*_: object):
        assert go.wait(100)
        yield from ()

    monkeypatch.setattr("streamd.captioner.FileTranscriber.transcribe", hang)
    with Captioner("tiny.en", options={"engine-deadline-ms": 10}) as hung:
        for _ in range(2):
            with pytest.raises(EngineError, match="has not finished a window"):
                hung.transcribe(LAMP)
        go.set()


async def test_who_reads_too_late_misses_no_final():
    class Quiet:
        hub = Hub("s", bound=4)

    session = CaptionSession(asyncio.get_running_loop(), Quiet(), ArraySource(), owns_source=False)
    for i in range(20):
        text = f"number {i}"
        Quiet.hub.publish(Final(seg=i, start_ms=i, end_ms=i + 1, text=text, language="en"))
    assert [event.text for event in await session._drain()] == [f"number {i}" for i in range(20)]
    Quiet.hub.close("end")
    assert await session._next() is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stepp": 250}, "unknown option stepp; did you mean step?"),
        ({"step": 40_000}, "option step must be "),
        ({"gate.open_sharp": 1}, "option gate.open_sharp: no such setting; did you mean"),
        ({"step": 6000, "length": 5000}, "must be at least"),
        ({"fast": 1}, "unknown option fast"),
    ],
)
def test_options_are_checked(options, said):
    with pytest.raises(ConfigError) as error:
        Captioner("tiny.en", options=options)
    assert said in str(error.value)


def test_options_may_be_written_as_in_python_and_reach_their_parts():
    config = Captioner("tiny.en", language="en", options={"max_utterance_ms": 9000})._config
    assert config.endpoint.longest == 450
    assert config.decoding.model == "tiny.en"


def test_a_model_that_is_not_here_is_not_downloaded():
    with pytest.raises(ModelError, match="run: streamd models get large-v3"), Captioner("large-v3"):
        pass


def test_a_transcript_has_segments_and_saves_itself(captions, tmp_path):
    transcript = captions.transcribe(recorded.samples())
    assert transcript.text == recorded.SENTENCE
    assert transcript.language == "en"
    assert transcript.duration_ms == len(recorded.samples()) // 16
    assert transcript.segments[0].words[0].text == "Out"
    of_file = captions.transcribe(recorded.wav(tmp_path / "a.wav", recorded.samples()))
    assert of_file.text == transcript.text
    transcript.save(tmp_path / "a.srt")
    assert (tmp_path / "a.srt").read_text().startswith("1\n00:00:0")
    transcript.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["text"].strip() == recorded.SENTENCE
    with pytest.raises(ConfigError, match=r"option output must be FILE\.txt"):
        transcript.save(tmp_path / "a.docx")


def test_silence_has_no_segments_and_no_language(captions, tmp_path):
    transcript = captions.transcribe(np.zeros(16_000, np.float32))
    assert (transcript.segments, transcript.text, transcript.language) == ((), "", "")
    transcript.save(tmp_path / "a.vtt")
    assert (tmp_path / "a.vtt").read_text() == "WEBVTT\n\n"


def test_a_recording_in_one_call():
    (segment,) = transcribe(LAMP, "tiny.en").segments
    assert (segment.text, segment.start < segment.end) == (LAMP_TEXT, True)


@pytest.mark.parametrize(
    ("name", "audio", "said"),
    [
        ("subtitles", [LAMP], "1 segments in en: "),
        ("bot", [LAMP], f"> {LAMP_TEXT}\nThe lamp is on.\n"),
        ("samples", [LAMP], f" s  {LAMP_TEXT}  (final)\n"),
        ("several", [LAMP, CARDS], f"{LAMP}: {LAMP_TEXT}\n"),
    ],
)
def test_the_examples_run(name, audio, said, monkeypatch, capsys, tmp_path):
    extra = [str(tmp_path / "out.srt")] if name == "subtitles" else []
    monkeypatch.setattr("sys.argv", [name, *audio, *extra])
    runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


class Field:
    """As much of a text field of tkinter as dictation needs: one mark, and text to its right."""

    def __init__(self) -> None:
        self.text, self.marked = "Dear Sir, ", 0

    def mark_set(self, name: str, place: str) -> None:
        self.marked = len(self.text)

    def mark_gravity(self, name: str, side: str) -> None:
        assert side == "left"

    def delete(self, start: str, end: str) -> None:
        self.text = self.text[: self.marked]

    def insert(self, place: str, text: str) -> None:
        self.text += text


def test_dictation_replaces_what_was_tentative(captions):
    pytest.importorskip("tkinter")
    field = Field()
    session = captions.session()
    dictation = runpy.run_path(str(ROOT / "examples/dictation.py"))["Dictation"](field, session)
    session.feed(recorded.samples())
    session.finish()
    while f"{recorded.SENTENCE} " not in field.text:
        dictation.update()
    assert field.text == f"Dear Sir, {recorded.SENTENCE} "
