"""Files that are written down: what is told of them, and who may break off."""

import asyncio
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamd.config import load
from streamd.daemon import transcribe
from streamd.daemon.longform import Writer, check
from streamd.engine.onnx import prepare
from streamd.engine.store import load_model
from streamd.errors import ConfigError, SourceError
from streamd.events import Gap
from streamd.types import FRAME

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "models/demo/recording.flac"
PROGRAM = str(Path(sys.executable).with_name("streamd"))
NOTES = json.loads((ROOT / "models/demo/recording.json").read_text())


@pytest.fixture(scope="module")
def demo():
    model = load_model("demo")
    engine = prepare.build(model.dims, model.weights, alignment_heads=model.alignment_heads)
    return model, engine


def frames() -> np.ndarray:
    samples, _ = soundfile.read(RECORDING, dtype="float32")
    return samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)


def finals(demo, **given: str):
    writer = Writer(load({"model": "demo", **given}, {}), *demo)
    recording = writer.recording(pytest.fail)
    recording.feed(frames())
    heard = list(writer.transcribe(recording))
    segments = [segment for window in heard for segment in window.segments]
    return [writer.final(segment, i) for i, segment in enumerate(segments, 1)], heard


def test_each_phrase_of_the_recording_is_a_final_with_words(demo):
    found, heard = finals(demo)
    assert [final.seg for final in found] == list(range(1, len(found) + 1))
    phrases = [final.text for final in found]
    for clip in NOTES["clips"]:
        if clip["clip"].startswith("cards"):
            assert clip["text"] in phrases
            final = found[phrases.index(clip["text"])]
            assert abs(final.start_ms - clip["start_ms"]) < 700  # its first word has a pause in it
            assert abs(final.end_ms - clip["end_ms"]) < 700
            assert " ".join(word.text for word in final.words) == final.text
    for final in found:
        assert final.start_ms == final.words[0].start_ms
        assert final.end_ms == final.words[-1].end_ms
        assert all(word.final for word in final.words)
        details = final.details
        assert details.seek_ms <= final.start_ms
        assert "".join(token.text for token in details.tokens).strip() == final.text
        assert all(0 <= token.prob <= 1 for token in details.tokens)
        assert details.temperature in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    reached = [window.reached_ms for window in heard]
    assert reached == sorted(reached)


def test_without_words_there_are_none(demo):
    found, _ = finals(demo, **{"word-timestamps": "false"})
    assert found
    assert not any(final.words for final in found)


def test_only_the_clips_that_the_user_names(demo):
    clip = next(clip for clip in NOTES["clips"] if clip["clip"] == "cards_1")
    points = f"{clip['start_ms'] - 300},{clip['end_ms'] + 300}"
    found, heard = finals(demo, **{"clip-timestamps-ms": points, "word-timestamps": "false"})
    assert [final.text for final in found] == [clip["text"]]
    assert len(heard) == 1


def test_the_model_is_asked_only_for_what_it_knows(demo):
    """The demo model says that it knows no timestamps; were it asked, it would write some."""
    model, engine = demo
    believed = replace(model, timestamps=True), engine

    def timestamps(model_engine) -> list[str]:
        found, _ = finals(model_engine, vad="off", fallback="false")
        tokens = [token for final in found for token in final.details.tokens]
        assert tokens
        return [token.text for token in tokens if token.id > 1110]

    assert timestamps(demo) == []
    assert all(re.fullmatch(r"<\|\d+\.\d[02468]\|>", text) for text in timestamps(believed))
    assert timestamps(believed)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"word-timestamps": "false", "hallucination-silence-threshold-ms": "900"},
            "--hallucination-silence-threshold-ms looks at words",
        ),
        (
            {"word-timestamps": "false", "highlight-words": "true"},
            "--highlight-words needs words",
        ),
        ({"clip-timestamps-ms": "0,900,800"}, "must not go back, got 0,900,800"),
    ],
)
def test_options_that_contradict_each_other(given, says):
    with pytest.raises(ConfigError, match=says):
        check(load(given, {}))


def test_lost_audio_is_told_and_silence_takes_its_place(demo):
    writer, told = Writer(load({"model": "demo"}, {}), *demo), []
    recording = writer.recording(told.append)
    recording.feed(frames()[:100])
    recording.gap(100_010, "paused")
    recording.feed(frames()[100:])
    assert told == [Gap(t_ms=2_000, duration_ms=100_010, why="paused")]
    assert recording.duration_ms == 100_000 + 20 * len(frames())
    (*_, last) = writer.transcribe(recording)
    assert last.reached_ms > 130_000


async def test_a_file_that_breaks_off_is_written_as_far_as_it_goes(tmp_path, capfd):
    whole = RECORDING.read_bytes()
    torn = tmp_path / "torn.flac"
    torn.write_bytes(whole[: len(whole) // 2])
    config = load({"model": "demo", "output": [str(tmp_path / "a.txt")], "files": [str(torn)]}, {})
    with pytest.raises(SourceError, match="damaged or incomplete"):
        await transcribe(config)
    text = (tmp_path / "a.txt").read_text()
    assert "ten of clubs" in text
    assert "ten of clubs" in capfd.readouterr().out


async def test_an_interrupt_ends_a_file_behind_the_window_at_hand(tmp_path):
    long = tmp_path / "long.wav"
    soundfile.write(long, np.tile(frames().reshape(-1), 20), 16_000)
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "transcribe", str(long), "-m", "demo", "--jsonl", "-o", str(tmp_path / "a.txt")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    first = await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, complaints = await process.communicate()
    assert process.returncode == 0, complaints
    *said, eos = [json.loads(line) for line in (first + rest).splitlines()]
    assert said[-1]["end_ms"] < 400_000
    assert eos == {"type": "eos", "seq": len(said), "reason": "stop"}
    assert (tmp_path / "a.txt").read_text().splitlines() == [final["text"] for final in said]


async def test_an_interrupt_ends_a_pipe_and_what_it_gave_is_written():
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "transcribe", "-", "-m", "demo"),
        stdin=reader,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(reader)
    clip = next(clip for clip in NOTES["clips"] if clip["clip"] == "cards_1")
    first, last = (
        (clip[edge] + more) // 20 for edge, more in (("start_ms", -300), ("end_ms", 300))
    )
    pcm = (frames()[first:last] * 32767).astype("<i2").tobytes()
    # A pipe holds 64 KiB: when the last of the silence went into it, what was said was taken out.
    await asyncio.to_thread(os.write, writer, pcm + bytes(200_000))
    process.send_signal(signal.SIGINT)  # the pipe stays open
    out, complaints = await process.communicate()
    os.close(writer)
    assert (process.returncode, out) == (0, b"ten of clubs\n"), complaints
