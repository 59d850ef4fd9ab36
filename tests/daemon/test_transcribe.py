"""Files that are written down: what is told of them, and who may break off."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from streamd.config import load
from streamd.daemon.opening import OpenWhisper, open_model
from streamd.daemon.recording import FileTranscriber, token_texts
from streamd.daemon.transcribe import check, transcribe
from streamd.errors import ConfigError, EngineError, SourceError
from streamd.events import Final, Gap
from streamd.sources import Lost
from streamd.system.calls import in_thread
from streamd.types import FRAME, SAMPLE_RATE
from streamd.whisper.longform import TranscribedWindow
from streamd.whisper.longform.segments import SpokenWord, TimedSegment
from streamd.whisper.tokenizer import Tokenizer
from tests.support import recorded
from tests.support.decoders import N_VOCAB, vocabulary
from tests.support.loop import without_slow_steps
from tests.support.programs import PROGRAM, begun, cleared, ended, logged
from tests.support.recorded import SENTENCE, SENTENCES

HANGS = """
import asyncio
import logging
import sys
from threading import Event
from streamd.cli import main
from streamd.engines.onnx import OnnxEngine
from streamd.streams import inference

encode, n_encoded, where, n_good = OnnxEngine.encode, 0, sys.argv.pop(1), int(sys.argv.pop(1))
hangs = Event()


class Patient:  # until the engine hangs, no deadline counts: a good window may take long
    get_running_loop = staticmethod(asyncio.get_running_loop)

    @staticmethod
    async def wait(calls, timeout):
        done = set()
        while not (done or hangs.is_set()):
            done, _ = await asyncio.wait(calls, timeout=0.05)
        if not done:
            await asyncio.wait(calls, timeout=timeout)


inference.asyncio = Patient


def hang(*args, **kwargs):
    global n_encoded
    n_encoded += 1
    if n_encoded <= n_good:
        return encode(*args, **kwargs)
    logging.getLogger("streamd").warning("it hangs")
    hangs.set()
    while True:
        if where == "in C":
            Event().wait()


OnnxEngine.encode = hang
sys.exit(main())
"""
"""The program, with an engine that never returns after its first windows."""


@pytest.fixture(scope="module")
def opened():
    return open_model(load({"model": "tiny.en"}, {}))


def finals(opened, n_times: int = 1, **given: str):
    config = load({"model": "tiny.en", **given}, {})
    writer = FileTranscriber(config, *opened, is_alone=lambda: True)
    recording = writer.new_file(pytest.fail)
    recording.take(recorded.frames(np.tile(recorded.three_sentences(), n_times)))
    heard = list(writer.transcribe(recording))
    return [final for window in heard for final in window.finals], heard


class LosingEngine:
    """An engine that is lost after so many encodings or passes: of several windows, or of one."""

    def __init__(self, engine, n_left: int, *, is_batch: bool) -> None:
        self._engine, self.n_left = engine, n_left
        self.dims, self.n_cheap, self.n_together = engine.dims, engine.n_cheap, engine.n_together
        if is_batch:
            self.together = self._together

    def _count(self) -> None:
        self.n_left -= 1
        if self.n_left < 0:
            raise EngineError("it is lost")

    def encode(self, *given, **options):
        self._count()
        return self._engine.encode(*given, **options)

    def decoder(self, features, n_slots: int):
        decoder = self._engine.decoder(features, n_slots)
        run = decoder.run
        decoder.run = lambda asked: self._count() or run(asked)
        return decoder

    def _together(self, is_alone):
        together = self._engine.together(is_alone)
        encode = together.encode_alone

        class Counted:
            run = staticmethod(lambda passes: self._count() or together.run(passes))
            encode_alone = staticmethod(lambda mel: self._count() or encode(mel))
            begin = staticmethod(lambda mel: lambda: Counted.encode_alone(mel()))

        return Counted()


class Switch:
    """Has another engine serve until that is lost; then one that is `back`, if any."""

    def __init__(self, fast: LosingEngine, cpu, *back: LosingEngine) -> None:
        self.dims, self._fast, self._cpu, self.is_lost = cpu.dims, fast, cpu, False
        self._back, self.n_used = [*back], 0

    def use(self):
        self.n_used += 1
        if self.is_lost and self._back:
            self._fast, self.is_lost = self._back.pop(), False
        return self._cpu if self.is_lost else self._fast

    def instead_of(self, engine, error):
        if engine is self._cpu:
            raise error
        self.is_lost = True
        return self._cpu


@pytest.mark.parametrize(("n_left", "is_batch"), [(0, True), (8, False), (30, True)])
def test_a_recording_goes_on_where_an_engine_is_lost(opened, n_left, is_batch):
    model, cpu = opened
    switch = Switch(LosingEngine(cpu, n_left, is_batch=is_batch), cpu)
    found, heard = finals((model, switch), 2)
    assert switch.is_lost
    said = "".join(filter(str.isalpha, "".join(final.text for final in found).lower()))
    assert said == 2 * "".join(filter(str.isalpha, "".join(SENTENCES).lower()))
    reached = [window.reached_ms for window in heard]
    assert reached == sorted(reached)
    # An engine is lost too often by windows, not by passes; one to detect the language.
    assert switch.n_used <= 1 + len({*reached})


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_recording_goes_back_to_an_engine_that_serves_again(opened, is_batch):
    model, cpu = opened
    again = LosingEngine(cpu, 10_000, is_batch=is_batch)
    switch = Switch(LosingEngine(cpu, 8, is_batch=is_batch), cpu, again)
    found, heard = finals((model, switch), 3)
    assert not switch.is_lost
    assert again.n_left < 10_000
    said = "".join(filter(str.isalpha, "".join(final.text for final in found).lower()))
    assert said == 3 * "".join(filter(str.isalpha, "".join(SENTENCES).lower()))
    reached = [window.reached_ms for window in heard]
    assert reached == sorted(reached)


def test_each_sentence_of_the_recording_is_a_final_with_words(opened):
    found, heard = finals(opened)
    assert [final.seg for final in found] == list(range(1, len(found) + 1))
    said = " ".join(final.text for final in found)
    assert recorded.words(said) == recorded.words(" ".join(recorded.SENTENCES))
    first, *_, last = found
    assert abs(first.start_ms - 300) < 700
    assert abs(first.end_ms - 4_780) < 700
    assert abs(last.end_ms - 17_280) < 700
    for final in found:
        assert " ".join(word.text for word in final.words) == final.text
        assert final.start_ms == final.words[0].start_ms
        assert final.end_ms == final.words[-1].end_ms
        assert all(word.final for word in final.words)
        details = final.details
        assert details.seek_ms <= final.start_ms
        text = "".join(token.text for token in details.tokens if token.id < 50_256)
        assert text.strip() == final.text
        assert all(0 <= token.prob <= 1 for token in details.tokens)
        assert details.temperature in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    reached = [window.reached_ms for window in heard]
    assert reached == sorted(reached)


def test_a_second_thread_changes_nothing_but_the_time(monkeypatch):
    """With one thread, all windows are encoded in it; with four, each of two has two."""
    told, calls = [], []
    monkeypatch.setattr(
        "streamd.engines.onnx.batch.in_thread", lambda call: calls.append(call) or in_thread(call)
    )
    for threads, most in (("1", 0), ("2", 99), ("4", 99)):
        config = load({"model": "tiny.en", "threads": threads, "precision": "int8"}, {})
        told.append(finals(open_model(config, recordings=True), n_times=4)[0])
        assert min(1, most) <= len(calls) <= most
        calls.clear()
    assert told[0] == told[1] == told[2]


def test_without_words_there_are_none(opened):
    found, _ = finals(opened, set=["longform.word_timestamps=false"])
    assert found
    assert not any(final.words for final in found)


TOKENS = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
DICTATED = [" dial", " 9", "-0", "-2", "-1", "-0.", " 018", "-03"]


def final_of(opened, monkeypatch, n_words: int, **given: str) -> Final:
    """What becomes of a segment with that text, of which so many words have times."""
    words = tuple(
        SpokenWord(text, at, at + 1.0, 0.1 * at) for at, text in enumerate(DICTATED[:n_words])
    )
    return final_with(words, opened, monkeypatch, **given)


def final_with(words: Sequence[SpokenWord], opened, monkeypatch, **given: str) -> Final:
    """What becomes of a segment from 0 to 8 s with that text and these words."""
    decoded = SimpleNamespace(
        language="en",
        avg_logprob=-0.1,
        no_speech_prob=0.0,
        temperature=0.0,
        compression_ratio=1.0,
    )
    segment = TimedSegment(0, 0.0, 8.0, "".join(DICTATED), (), (), decoded, tuple(words))

    def transcribe(*_: object, **__: object) -> list[TranscribedWindow]:
        return [TranscribedWindow((segment,), 8_000)]

    monkeypatch.setattr("streamd.whisper.longform.Transcriber.transcribe", transcribe)
    (final,), _ = finals(opened, **given)
    return final


@pytest.mark.parametrize("n_words", [0, len(DICTATED)])
def test_a_number_that_was_dictated_is_one_word(opened, monkeypatch, n_words):
    """As in live captions."""
    final = final_of(opened, monkeypatch, n_words)
    assert final.text == "dial 90210. 018-03"
    found = [(word.text, word.start_ms, word.end_ms, word.prob) for word in final.words]
    number = ("90210.", 1_000, 6_000, 0.3)
    others = [("018", 6_000, 7_000, 0.6), ("-03", 7_000, 8_000, 0.7)]
    assert found == ([("dial", 0, 1_000, 0.0), number, *others] if n_words else [])


@given(st.lists(st.integers(0, 255) | st.integers(TOKENS.timestamp_begin, N_VOCAB - 1)))
def test_the_first_token_of_a_character_has_its_text(tokens):
    texts = [*token_texts(tokens, TOKENS)]
    assert len(texts) == len(tokens)
    spoken = [text for text in texts if not text.startswith("<|")]
    assert "\ufffd" not in "".join(spoken)
    if TOKENS.timestamp_begin > max(tokens, default=0):
        assert "".join(spoken) == TOKENS.decode(tokens).replace("\ufffd", "")


def test_the_tokens_of_a_character_are_told_apart_from_those_of_the_next():
    time = TOKENS.timestamp_begin + 64
    assert [*token_texts([time, *"a東b".encode(), time], TOKENS)] == [
        *("<|1.28|>", "a", "東", "", "", "b", "<|1.28|>")
    ]


@pytest.mark.parametrize("detector", ["silero", "off"])
def test_bytes_that_spell_no_character_are_left_out(opened, monkeypatch, detector):
    words = [SpokenWord(" a\ufffd", 0.0, 1.0, 0.5), SpokenWord("\ufffd", 1.0, 2.0, 0.5)]
    monkeypatch.setattr(f"{__name__}.DICTATED", [word.text for word in words])
    final = final_with(words, opened, monkeypatch, vad=detector)
    assert (final.text, [word.text for word in final.words]) == ("a", ["a"])


ODD = [(1.0, 2.0), (2.0, 2.0), (1.5, 3.0), (7.98, 9.0), (7.99, 7.99)]
"""Times of words in seconds: one takes none, one begins in another, two end where they may not."""


@pytest.mark.parametrize("detector", ["silero", "off"])
def test_every_word_lasts_and_lies_within_its_final(opened, monkeypatch, detector):
    """Without the detector, the words have openai-whisper's times."""
    words = [SpokenWord(f" {at}.", *times, 0.5) for at, times in enumerate(ODD)]
    final = final_with(words, opened, monkeypatch, vad=detector)
    found = [(word.start_ms, word.end_ms) for word in final.words]
    lasting = [(1_000, 2_000), (2_000, 2_020), (2_020, 3_000), (7_960, 7_980), (7_980, 8_000)]
    odd = [(round(start_s * 1000), round(end_s * 1000)) for start_s, end_s in ODD]
    assert found == (odd if detector == "off" else lasting)


@pytest.mark.parametrize(("detector", "n_words"), [("off", len(DICTATED)), ("silero", 4)])
def test_numbers_stay_where_the_text_is_openai_whispers_or_words_are_missing(
    opened, monkeypatch, detector, n_words
):
    final = final_of(opened, monkeypatch, n_words, vad=detector)
    assert final.text == "".join(DICTATED).strip()
    assert [word.text for word in final.words] == [text.strip() for text in DICTATED[:n_words]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"set": ["cues.highlight_words=true"]}, "cues.highlight_words=true needs word timestamps"),
        ({"speakers": "true"}, "--speakers needs word timestamps"),
    ],
)
def test_options_that_contradict_each_other(given, says):
    pairs = ["longform.word_timestamps=false", *given.get("set", ())]
    with pytest.raises(ConfigError, match=says):
        check(load({**given, "set": pairs}, {}))


def test_lost_audio_is_told_and_silence_takes_its_place(opened):
    writer, told = FileTranscriber(load({"model": "tiny.en"}, {}), *opened), []
    recording = writer.new_file(told.append)
    frames = recorded.frames(recorded.samples())
    recording.take(frames[:20])
    recording.take(Lost(100_010, "paused"))
    recording.take(frames[20:])
    assert told == [Gap(t_ms=400, duration_ms=100_010, why="paused")]
    assert recording.duration_ms == 100_000 + 20 * len(frames)
    (*_, last) = writer.transcribe(recording)
    assert last.reached_ms > 100_400


async def test_a_file_that_breaks_off_is_written_as_far_as_it_goes(tmp_path, capfd):
    torn = tmp_path / "torn.flac"
    soundfile.write(torn, recorded.three_sentences(), 16_000)
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) * 3 // 4])
    given = {
        "model": "tiny.en",
        "realtime": "false",
        "files": [str(torn)],
        "output": [str(tmp_path / "a.txt")],
    }
    config = load(given, {})
    with pytest.raises(SourceError, match="damaged or incomplete"):
        await transcribe(config)
    text = (tmp_path / "a.txt").read_text()
    assert recorded.SENTENCE in text
    assert recorded.SENTENCE in capfd.readouterr().out


async def test_a_file_waits_for_a_gpu_no_longer_than_it_lasts(tmp_path, monkeypatch, capfd):
    waited = []
    monkeypatch.setattr(OpenWhisper, "wait", lambda self, load_s: waited.append(load_s))
    sounds = [np.zeros(16_000, np.float32), recorded.samples()[:48_000]]
    files = [str(recorded.wav(tmp_path / f"{i}.wav", each)) for i, each in enumerate(sounds)]
    assert (
        await transcribe(load({"model": "tiny.en", "realtime": "false", "files": files}, {})) == 0
    )
    assert waited == [1.0, 3.0]


async def test_an_interrupt_ends_a_file_behind_the_window_at_hand(tmp_path):
    long = recorded.wav(tmp_path / "long.wav", np.tile(recorded.three_sentences(), 8))
    process = await begun(PROGRAM, "transcribe", long, "--jsonl", "-o", tmp_path / "a.txt")
    first = await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, complaints = await process.communicate()
    assert process.returncode == 130, complaints
    *said, eos = [json.loads(line) for line in (first + rest).splitlines()]
    assert said[-1]["end_ms"] < 100_000
    assert eos == {"type": "eos", "seq": len(said), "reason": "stop"}
    cut = tmp_path / "a.partial.txt"  # nobody takes it for the whole transcript
    assert sorted(tmp_path.iterdir()) == [cut, long]
    text = " ".join(cut.read_text().splitlines())
    assert text == " ".join(final["text"] for final in said)
    assert re.search(
        rf"{long}: interrupted at 0:0\d:\d\d of 0:02:2\d; {cut} has what was said until then$",
        without_slow_steps(complaints)[-1],
    )


async def test_an_interrupted_batch_is_done_with_the_same_command(tmp_path):
    sounds = [recorded.wav(tmp_path / f"{n}.wav", recorded.samples()) for n in range(2)]
    sounds.append(recorded.wav(tmp_path / "2.wav", np.tile(recorded.three_sentences(), 8)))
    sounds.append(recorded.wav(tmp_path / "3.wav", recorded.samples()))
    out = tmp_path / "out"
    command = (PROGRAM, "transcribe", *map(str, sounds), "-f", "srt", "--output-dir", str(out))
    process = await begun(*command, "--jsonl")
    n_ended, line = 0, b""
    while n_ended < 2 or b'"final"' not in line:
        line = await process.stdout.readline()
        n_ended += b'"eos"' in line
    complaints = await ended(process, 130, by=signal.SIGINT)
    said = "interrupted: 2 of 4 files are not done: run it again with --skip-existing\n"
    assert complaints.decode().endswith(said)
    assert sorted(os.listdir(out)) == ["0.srt", "1.srt", "2.partial.srt"]
    recorded.wav(sounds[2], recorded.samples())  # a shorter one
    before = (out / "0.srt").stat().st_mtime_ns
    rest = await begun(*command, "--skip-existing", "--jsonl")
    printed, _ = await rest.communicate()
    assert (rest.returncode, printed.count(b'"eos"')) == (0, 2)
    assert sorted(os.listdir(out)) == ["0.srt", "1.srt", "2.partial.srt", "2.srt", "3.srt"]
    assert (out / "0.srt").stat().st_mtime_ns == before


async def test_there_must_be_transcripts_to_look_for(tmp_path):
    given = {"model": "tiny.en", "files": [str(recorded.RECORDING)], "skip-existing": "true"}
    with pytest.raises(ConfigError, match="--skip-existing looks for transcripts: add -o FILE"):
        await transcribe(load(given, {}))


async def test_an_interrupt_ends_a_pipe_and_what_it_gave_is_written():
    reader, writer = os.pipe()
    process = await begun(PROGRAM, "transcribe", "-", stdin=reader)
    os.close(reader)
    pcm = (recorded.samples() * 32767).astype("<i2").tobytes()
    # A pipe holds 64 KiB: when the last of the silence went into it, what was said was taken out.
    await asyncio.to_thread(os.write, writer, pcm + bytes(200_000))
    process.send_signal(signal.SIGINT)  # the pipe stays open
    out, complaints = await process.communicate()
    os.close(writer)
    assert (process.returncode, out.decode()) == (0, f"{recorded.SENTENCE}\n"), complaints


@pytest.fixture
async def hung():
    """Transcribes a file window by window, and hangs in a later one than the first."""
    processes = []

    async def start(sound: Path, where: str, *args: str) -> asyncio.subprocess.Process:
        python = (sys.executable, "-W", "error", "-c", HANGS, where, "1")
        options = ("--precision", "int8", "--vad", "off", *args)
        processes.append(await begun(*python, "transcribe", sound, *options))
        return processes[-1]

    yield start
    await cleared(*processes)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    """A minute of speech."""
    folder = tmp_path_factory.mktemp("audio")
    return recorded.wav(folder / "long.wav", np.tile(recorded.three_sentences(), 4))


@pytest.mark.parametrize(
    ("where", "number"), [("in Python", signal.SIGINT), ("in C", signal.SIGTERM)]
)
async def test_a_window_that_never_returns_cannot_prevent_the_end(
    hung, long, tmp_path, where, number
):
    text = tmp_path / "a.txt"
    process = await hung(long, where, "-o", str(text), "--set", "limits.shutdown_ms=300")
    await logged(process, b"it hangs")
    process.send_signal(number)
    out, complaints = await process.communicate()
    assert process.returncode == 130, complaints
    why, last = complaints.decode().splitlines()[-2:]
    assert why == f"streamd: warning: {long}: its end could not be transcribed in time"
    assert f"{long}: interrupted at 0:00:" in last
    assert recorded.SENTENCE in out.decode()
    assert out.decode() == text.with_name("a.partial.txt").read_text()


async def test_an_engine_that_hangs_ends_it_after_the_deadline(hung, long, tmp_path):
    text = tmp_path / "a.txt"
    process = await hung(long, "in C", "-o", str(text), "--set", "decoding.engine_deadline_ms=1500")
    out, complaints = await process.communicate()
    assert process.returncode == 1, complaints
    last = complaints.decode().splitlines()[-1]
    assert last.startswith("streamd: the engine has not finished a window within 7.5 s")
    assert out.decode() == text.read_text()
    assert recorded.SENTENCE in text.read_text()


def in_two_channels(first, second, *, after_s: float):
    """A recording in which the second sound begins after the first, in a channel of its own."""
    n_before = round(after_s * SAMPLE_RATE) // FRAME * FRAME
    together = np.zeros((max(len(first), n_before + len(second)), 2), np.float32)
    together[: len(first), 0] = first
    together[n_before : n_before + len(second), 1] = second
    return together


async def test_each_channel_of_a_file_is_a_speaker_with_times_on_one_clock(tmp_path):
    name, wanted = tmp_path / "talk.wav", tmp_path / "talk.json"
    one, other = recorded.samples(), recorded.samples("jfk")
    soundfile.write(name, in_two_channels(one, other, after_s=2), SAMPLE_RATE)
    given = {"model": "tiny.en", "files": [str(name)], "output": [str(wanted)]}
    assert await transcribe(load({**given, "channels": "split"}, {})) == 0
    segments = json.loads(wanted.read_text())["segments"]
    assert [each["start"] for each in segments] == sorted(each["start"] for each in segments)
    words = [word for segment in segments for word in segment["words"]]
    for speaker, sentences, begin_s, end_s in (
        (1, SENTENCES[:1], 0.3, 4.8),
        (2, SENTENCES[1:], 2.3, 12.5),
    ):
        own = [word for word in words if word["speaker"] == speaker]
        text = "".join(word["word"] for word in own)
        assert recorded.words(text) == recorded.words(" ".join(sentences))
        assert abs(own[0]["start"] - begin_s) < 0.7
        assert abs(own[-1]["end"] - end_s) < 0.7


async def test_a_silent_channel_says_nothing(tmp_path):
    name, wanted = tmp_path / "talk.wav", tmp_path / "talk.txt"
    soundfile.write(
        name, in_two_channels(recorded.samples(), recorded.samples()[:0], after_s=0), SAMPLE_RATE
    )
    given = {"model": "tiny.en", "files": [str(name)], "output": [str(wanted)]}
    assert await transcribe(load({**given, "channels": "split"}, {})) == 0
    assert wanted.read_text() == f"Speaker 1: {SENTENCE}\n"


async def test_raw_pcm_whose_channels_are_split_has_to_be_counted(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"--set pcm\.channels"):
        await transcribe(load({"files": [str(pipe)], "channels": "split"}, {}))


def test_channels_that_are_speakers_already_are_not_searched_for_more():
    with pytest.raises(ConfigError, match=r"--channels: .*drop --speakers"):
        load({"channels": "split", "speakers": "true"}, {})
