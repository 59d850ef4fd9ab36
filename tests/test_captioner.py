"""The names of ``import streamd``: one model, cheap sessions, from threads and from asyncio."""

import asyncio
import json
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from mypy import api as mypy

import streamd
from streamd import (
    Captioner,
    ConfigError,
    EngineError,
    FinalCaption,
    Flushed,
    Lag,
    Microphone,
    ModelError,
    PartialCaption,
    Pause,
    SourceError,
    Speech,
    transcribe,
)
from streamd.captioner import CaptionSession
from streamd.engines import yamnet
from streamd.events import Final
from streamd.sources.arrays import ArraySource
from streamd.streams.hub import Hub
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


def test_each_channel_of_samples_can_have_captions_of_its_own():
    sound = recorded.samples()
    stereo = np.stack([sound, np.zeros_like(sound)], axis=1)
    with Captioner("tiny.en", options={"channels": "split"}) as captions:
        with captions.session(channels=2) as session:
            session.feed(stereo[:, ::-1])
            session.finish()
            heard = [event for event in session if event.is_final]
        whole = captions.transcribe(stereo)
        assert {(final.text, final.speaker) for final in heard} == {(recorded.SENTENCE, 2)}
        assert (whole.text, whole.segments[0].speaker) == (recorded.SENTENCE, 1)
        assert finals(captions.listen(sound)) == [recorded.SENTENCE]  # one channel


def test_nothing_can_be_fed_after_the_end(captions):
    with captions.session() as session:
        session.finish()
        with pytest.raises(RuntimeError, match=r"over: finish\(\) was called"):
            session.feed(recorded.samples())


def test_a_flush_makes_final_what_was_fed_before_it(captions):
    with captions.session(events=True) as session:
        session.feed(recorded.samples()[: 4 * 16_000])  # in the midst of the sentence
        session.flush()
        heard = []
        for event in session:
            heard.append(event)
            if isinstance(event, Flushed):
                break
        assert [type(each) for each in heard][-2:] == [FinalCaption, Flushed]
        assert heard[-1].seq == heard[-2].seq == 1
        session.feed(recorded.samples()[4 * 16_000 :])
        session.finish()
        assert any(isinstance(event, FinalCaption) for event in session)


def test_voices_are_told_of_before_words_if_they_are_wanted(captions):
    heard = list(captions.listen(LAMP, events=True))
    untold = (PartialCaption, Lag)  # a busy machine lags
    kinds = [type(event) for event in heard if not isinstance(event, untold)]
    assert kinds[0] is Speech
    assert {*kinds[1:]} == {Pause, FinalCaption}
    assert {type(event) for event in captions.listen(LAMP)} <= {PartialCaption, FinalCaption}


def test_a_session_and_a_recording_have_choices_of_their_own(captions):
    with pytest.raises(ConfigError, match=r"language de: the model tiny\.en knows en only"):
        captions.listen(LAMP, language="de")
    with pytest.raises(ConfigError, match=r"language de: the model tiny\.en knows en only"):
        captions.transcribe(LAMP, language="de")
    with pytest.raises(ConfigError, match="endpoint_ms must be a whole number"):
        captions.session(endpoint_ms=60_000)
    for call in (captions.listen, captions.transcribe):
        with pytest.raises(TypeError, match="no such argument: langauge"):
            call(LAMP, langauge="en")
    spelt = "Would you please turn on the living room Lampe?"
    assert captions.transcribe(LAMP, hotwords="Lampe:4").text == spelt
    (live,) = finals(captions.listen(LAMP, hotwords=["Ada", "Lampe:4"]))
    assert live.endswith(" Lampe?")
    assert captions.transcribe(LAMP).text == LAMP_TEXT  # the others are as they were


def test_a_session_is_changed_and_corrected_while_there_is_audio(captions):
    samples, _ = soundfile.read(LAMP)
    heard = []
    with captions.session() as session:
        for words in ([], ["Ada", "Lampe:4"]):
            session.update(hotwords=words)
            session.feed(samples)
            session.flush()
            heard.append(next(event.text for event in session if event.is_final))
        session.correct("  Lampe   am Bett ", seq=2, first=8, last=8)
        assert session._stream.hub.choices.hotwords.splitlines()[0] == "Lampe am Bett"  # expected
        with pytest.raises(ConfigError, match="correct: final 9 has no such words"):
            session.correct("Ada", seq=9)
        with pytest.raises(ConfigError, match="endpoint_ms must be"):
            session.update(endpoint_ms=-1)
        with pytest.raises(TypeError, match="no such argument: speakers"):
            session.update(speakers=True)
    assert (heard[0], heard[1].split()[-1]) == (LAMP_TEXT, "Lampe?")


def test_speakers_are_counted_if_it_is_said_how_many_there_are(captions):
    people = {word.speaker for word in captions.transcribe(LAMP, num_speakers=2).segments[0].words}
    assert people == {1}  # they are told apart, and one of them speaks
    with pytest.raises(ConfigError, match="num_speakers must be"):
        captions.transcribe(LAMP, num_speakers=-1)


def test_a_session_that_is_refused_is_over(captions):
    streams = captions._streams
    before = streams.names()
    with pytest.raises(ConfigError):
        captions.session(language="xx")
    (refused,) = {*streams.names()} - {*before}
    assert streams.hub(refused).closed


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
        (np.zeros(4, np.complex64), TypeError, "an array of float32, .* got complex64"),
        (b"\0\0", TypeError, r"must be an array, got bytes: use np\.frombuffer"),
        (None, TypeError, "an array of float32, .* got NoneType"),
        (np.zeros((4, 2), np.float32), ValueError, r"the shape \(n,\), got \(4, 2\)"),
        (np.float32(0), ValueError, r"the shape \(n,\), got \(\), one number: use np.array"),
    ],
)
def test_samples_of_another_kind_are_refused_at_once(captions, samples, error, said):
    with captions.session() as session, pytest.raises(error, match=said):
        session.feed(samples)


@pytest.mark.parametrize(
    ("audio", "error", "said"),
    [
        (None, TypeError, "audio must be a file's name, .* got NoneType"),
        (b"\0\0", TypeError, r"np\.frombuffer"),
        (open(LAMP, "rb"), TypeError, "got BufferedReader"),  # noqa: SIM115
        ("", ValueError, "the name of the file is empty"),
        (np.zeros((2, 16_000), np.float32), ValueError, r"got \(2, 16000\): transpose them"),
    ],
)
def test_what_is_no_audio_is_refused_at_once(captions, audio, error, said):
    for call in (captions.listen, captions.transcribe):
        with pytest.raises(error, match=said):
            call(audio)


def test_only_samples_have_a_rate_to_name(captions):
    for audio in (LAMP, Microphone()):
        with pytest.raises(ValueError, match="rate_hz is the rate of samples"):
            captions.listen(audio, rate_hz=16_000)
    with pytest.raises(ValueError, match="at 48000 Hz, but rate_hz is 16000"):
        captions.transcribe((recorded.samples(), 48_000), rate_hz=16_000)


def test_samples_of_any_rate_are_heard_if_it_is_named(captions):
    thrice = np.repeat(recorded.samples(), 3)
    blocks = iter(np.array_split(thrice, 7))
    assert finals(captions.listen(thrice, rate_hz=48_000)) == [recorded.SENTENCE]
    assert finals(captions.listen(blocks, rate_hz=48_000)) == [recorded.SENTENCE]
    assert captions.transcribe((thrice, 48_000)).text == recorded.SENTENCE
    stereo = np.stack([thrice, thrice], axis=1)
    assert captions.transcribe(stereo, rate_hz=48_000).text == recorded.SENTENCE
    assert captions.transcribe(soundfile.read(LAMP)).text == LAMP_TEXT


def test_floats_at_the_scale_of_int16_are_divided_and_told(captions, caplog):
    said = [each.text for each in captions.listen(recorded.samples() * 32768) if each.is_final]
    plain = [each.text for each in captions.listen(recorded.samples()) if each.is_final]
    assert said == plain
    assert "the array has 16-bit samples as floats, which were divided by 32768" in caplog.text


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


def test_one_that_is_never_closed_is_warned_of_and_closes(monkeypatch):
    closed = threading.Event()
    monkeypatch.setattr("streamd.daemon.opening.OpenWhisper.close", lambda _: closed.set())
    captions = Captioner("tiny.en").__enter__()
    assert not list(captions.listen(np.zeros(16_000, np.float32)))
    thread = captions._thread
    with pytest.warns(ResourceWarning, match="unclosed <streamd.captioner.Captioner"):
        del captions
    thread.join(30)
    assert not thread.is_alive()
    assert closed.is_set(), "or a process of a GPU would stay"


@pytest.mark.parametrize("language", ["de", "en"])
def test_one_that_cannot_be_entered_closes_what_it_opened(language, monkeypatch):
    closed = threading.Event()
    monkeypatch.setattr("streamd.daemon.opening.OpenWhisper.close", lambda _: closed.set())
    if language == "en":
        monkeypatch.setattr("streamd.daemon.build.tokenizer", lambda *_: int("Ctrl-C"))
    with pytest.raises((ConfigError, ValueError)):
        Captioner("tiny.en", language=language).__enter__()
    assert closed.is_set()


def test_a_failed_engine_fails_every_session(monkeypatch):
    class Broken:
        def recognize(self, window: object) -> object:
            raise EngineError("the runtime failed")

    monkeypatch.setattr(
        "streamd.daemon.opening.OpenWhisper.recognizers", lambda _: ([Broken()], None)
    )
    with Captioner("tiny.en") as broken:
        for _ in range(2):
            with pytest.raises(EngineError, match="the runtime failed"):
                list(broken.listen(recorded.samples()))


def test_an_engine_that_hangs_fails_a_recording(monkeypatch):
    go = threading.Event()

    def hang(*_: object):
        assert go.wait(100)
        yield from ()

    monkeypatch.setattr("streamd.daemon.recording.FileTranscriber.transcribe", hang)
    with Captioner("tiny.en", options={"decoding.engine_deadline_ms": 10}) as hung:
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
    config = Captioner("tiny.en", language="en", options={"endpoint_ms": 9000})._config
    assert config.endpoint.plain == 450
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
        transcript.save(tmp_path / "a.pdf")


def test_a_transcript_has_the_sounds_that_are_wanted(captions, tmp_path, monkeypatch):
    scores = np.zeros(521, np.float32)
    scores[132] = 1
    monkeypatch.setattr(yamnet, "check_sounds", lambda: None)
    monkeypatch.setattr(yamnet.RecordedSounds.__init__, "__defaults__", (lambda samples: scores,))
    assert not captions.transcribe(recorded.samples()).sounds
    transcript = captions.transcribe(recorded.samples(), sounds=True)
    assert [sound.label for sound in transcript.sounds] == ["music"]
    assert transcript.to_dict()["sounds"][0]["label"] == "music"
    transcript.save(tmp_path / "a.vtt")
    assert "<c.sound>[Music]</c>" in (tmp_path / "a.vtt").read_text()


def test_a_transcript_has_sentences_and_is_short_where_it_is_looked_at(captions):
    told = []
    transcript = captions.transcribe(
        recorded.whole()[: 10 * 16_000],
        progress=lambda done, whole: told.append((done, whole)),
    )
    assert len(transcript.sentences) < len(transcript.segments)
    assert " ".join(each.text for each in transcript.sentences) == transcript.text
    assert told == sorted(told)
    assert {whole for _, whole in told} == {transcript.duration_ms}
    length_s, number = transcript.duration_ms / 1000, len(transcript.segments)
    assert repr(transcript) == f"<transcript {length_s:.2f} s 'en', segments: {number}>"
    assert len(repr(transcript.segments[0])) < 300
    written = json.loads(json.dumps(transcript.to_dict()))
    assert written["text"] == transcript.text
    assert written["segments"][0]["words"][0]["text"] == transcript.segments[0].words[0].text
    assert "details" not in written["segments"][0]


def test_what_progress_raises_ends_the_work(captions):
    def refuse(*_: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        captions.transcribe(LAMP, progress=refuse)
    assert captions.transcribe(LAMP).text == LAMP_TEXT


def test_silence_has_no_segments_and_no_language(captions, tmp_path):
    transcript = captions.transcribe(np.zeros(16_000, np.float32))
    assert (transcript.segments, transcript.text, transcript.language) == ((), "", "")
    transcript.save(tmp_path / "a.vtt")
    assert (tmp_path / "a.vtt").read_text() == "WEBVTT\n\n"


def programs() -> list[str]:
    pages = "".join((ROOT / page).read_text() for page in ("README.md", "docs/library.md"))
    return re.findall(r"^```python\n(.*?)^```", pages, re.M | re.S)


def test_the_programs_of_the_page_are_typed(tmp_path):
    assert len(programs()) >= 10
    for number, program in enumerate(programs()):
        (tmp_path / f"program_{number}.py").write_text(program)
    files = sorted(map(str, tmp_path.glob("*.py")))
    options = ["--strict", "--config-file=", "--disable-error-code=import-untyped"]
    # `make lint` has other options, with which nothing in its cache would be of use.
    options.append(f"--cache-dir={ROOT / '.mypy_cache/programs'}")
    said, errors, code = mypy.run([*options, *files])
    assert code == 0, said + errors


@pytest.mark.parametrize("program", programs())
def test_the_programs_of_the_page_run(program, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples, rate = soundfile.read(LAMP)
    soundfile.write(tmp_path / "talk.flac", samples, rate)
    for ending in re.findall(r'soundfile\.read\("\w+\.(\w+)"', program):
        assert ending.upper() in soundfile.available_formats()
    said = program.replace("Microphone()", '"talk.flac"').replace("talk.m4a", "talk.flac")
    exec(compile(said, "program", "exec"), {"__name__": "program"})
    assert capsys.readouterr().out


def test_it_is_a_module_that_python_runs():
    command = [sys.executable, "-m", "streamd", "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("streamd ")


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


def test_of_a_damaged_file_there_is_the_text_of_what_is_left(tmp_path, caplog):
    path = tmp_path / "talk.flac"
    soundfile.write(path, recorded.three_sentences(), 16_000)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    transcript = transcribe(path, "tiny.en")
    assert len(transcript.text.split()) > 5
    (warning,) = transcript.warnings
    assert warning.startswith(f"{path} is damaged or incomplete: only ")
    ours = [each for each in caplog.records if each.name.startswith("streamd")]
    assert [each.getMessage() for each in ours if each.levelname == "WARNING"] == [warning]
