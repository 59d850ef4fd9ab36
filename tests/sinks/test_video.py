import json
import os
import re
import subprocess
from itertools import pairwise

import numpy as np
import pysubs2
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError, StreamdError
from streamd.events import Eos, TimedWord
from streamd.options import CueLayout
from streamd.sinks.cues import cues
from streamd.sinks.text import clean
from streamd.sinks.video import HEIGHT, WIDTH, Video, dialogue, fitting, script
from tests.support.said import SPEECH, final, spoken

END = Eos(seq=1, reason="end")
STOP = Eos(seq=1, reason="stop")
YELLOW = (255, 216, 72)


@pytest.fixture
def fake_ffmpeg(tmp_path, monkeypatch):
    """Puts a shell script in the place of all programs."""

    def fake(script):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "ffmpeg").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "ffmpeg").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return fake


@pytest.fixture
def sound(tmp_path):
    """Four seconds of a tone, in a file whose name ffmpeg could take for something else."""
    path = tmp_path / "concat:it's a, [b]; %d é.wav"
    tone = np.sin(np.arange(4 * 16_000) * 0.2).astype(np.float32) / 8
    soundfile.write(path, tone, 16_000)
    return str(path)


def video(path, sound, *events, layout=None):
    sink = Video(path, layout or CueLayout(), sound=sound)
    for event in events:
        sink.write(event)
    sink.close()
    return path


def facts(path):
    command = ["ffprobe", "-v", "error", "-show_streams", "-show_format", "-of", "json", str(path)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def picture(path, t_ms):
    """The picture at a time, (height, width, 3)."""
    command = ["ffmpeg", "-v", "error", "-ss", str(t_ms / 1000), "-i", f"file:{path}"]
    command += ["-frames:v", "1", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(pixels, np.uint8).reshape(HEIGHT, WIDTH, 3).astype(int)


def n_yellow(pixels):
    return int((np.abs(pixels - YELLOW).max(axis=2) < 60).sum())


def is_text(pixels):
    return pixels.max(axis=2) > 110


def test_it_plays_and_words_change_colour_as_they_are_spoken(ffmpeg, tmp_path, sound):
    path = tmp_path / "it's [mine], 100%: é.mp4"
    said = spoken("one two three four", word_ms=500, start_ms=500)
    video(path, sound, said, END)
    streams = {stream["codec_type"]: stream for stream in facts(path)["streams"]}
    assert (streams["video"]["codec_name"], streams["audio"]["codec_name"]) == ("h264", "aac")
    assert (streams["video"]["width"], streams["video"]["height"]) == (WIDTH, HEIGHT)
    assert 3.9 < float(streams["audio"]["duration"]) < 4.2
    assert 3.9 < float(streams["video"]["duration"]) < 5.5
    spoken_until = [n_yellow(picture(path, t_ms)) for t_ms in (540, 1040, 1540, 2040, 2440)]
    assert spoken_until[0] < 300
    assert all(n + 300 < later for n, later in pairwise(spoken_until))
    assert not is_text(picture(path, 200)).any(), "nothing is said yet"
    assert not is_text(picture(path, 3000)).any(), "all is said"
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []


HOSTILE = [
    SPEECH,
    "W" * 200,
    "{\\an8}{\\pos(0,0)} \\N\\N\\N\\N\\N\\N \\",
    "<b>\x1b[2J --> \n\n\u202e' , [x] :",
    "这是一个没有空格的很长的句子" * 6,
]


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        *((text, CueLayout()) for text in HOSTILE),
        ("W" * 200, CueLayout(line_cells=500, max_lines=10)),
    ],
)
def test_any_text_lies_inside_the_picture(ffmpeg, tmp_path, sound, text, layout):
    # What takes longer than a cue may is cut into several: these are short, and so is the video.
    said = final(text, end_ms=600)
    path = video(tmp_path / "a.mp4", sound, said, STOP, layout=layout)
    text = is_text(picture(path, 100))
    assert text.any()
    rows, columns = np.flatnonzero(text.any(axis=1)), np.flatnonzero(text.any(axis=0))
    assert rows[0] > 20
    assert rows[-1] < HEIGHT - 20
    assert columns[0] > 20
    assert columns[-1] < WIDTH - 20
    assert abs(rows[0] + rows[-1] - HEIGHT) < 80, "in the middle"


def test_letters_that_no_font_has_are_named(ffmpeg, tmp_path, sound, caplog):
    video(tmp_path / "a.mp4", sound, final("a \U0010fffd b", end_ms=1000), END)
    (warning,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "no font has \U0010fffd: install one" in warning


def test_a_video_that_was_stopped_ends_with_the_last_word(ffmpeg, tmp_path, sound):
    path = video(tmp_path / "a.mp4", sound, spoken("one two", word_ms=500), STOP)
    assert 0.9 < float(facts(path)["format"]["duration"]) < 1.3


def test_a_sound_that_ffmpeg_cannot_read_is_told(ffmpeg, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    sink = Video(tmp_path / "a.mp4", CueLayout(), sound=str(tmp_path / "bad.wav"))
    with pytest.raises(StreamdError, match=r"a\.mp4: ffmpeg cannot make the video: .*bad\.wav"):
        sink.write(END)
    sink.close()
    assert os.listdir(tmp_path) == ["bad.wav"]


def test_without_ffmpeg_it_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs ffmpeg: install it, for example"):
        Video(tmp_path / "a.mp4", CueLayout(), sound="talk.wav")
    assert os.listdir(tmp_path) == []


def test_an_ffmpeg_that_cannot_draw_text_is_told_from_one_that_can(tmp_path, fake_ffmpeg):
    fake_ffmpeg("echo \"[AVFilterGraph @ 0x55] No such filter: 'ass'\" >&2; exit 1")
    with pytest.raises(
        ConfigError, match=r"this ffmpeg cannot make videos: No such filter: 'ass'$"
    ):
        Video(tmp_path / "a.mp4", CueLayout(), sound="talk.wav")


def test_without_a_sound_file_there_is_no_video(tmp_path):
    with pytest.raises(ConfigError, match="a video needs one sound file"):
        Video(tmp_path / "a.mp4", CueLayout(), sound="")


def test_a_folder_that_is_missing_is_told(tmp_path, fake_ffmpeg):
    fake_ffmpeg("exit 0")
    with pytest.raises(ConfigError, match=r"none/a\.mp4: cannot be written: No such file"):
        Video(tmp_path / "none" / "a.mp4", CueLayout(), sound="talk.wav")


@pytest.mark.parametrize("reason", ["error", "stop", None])
def test_the_old_video_stays_if_there_is_no_new_one(tmp_path, fake_ffmpeg, reason):
    fake_ffmpeg("exit 0")
    (tmp_path / "a.mp4").write_bytes(b"old")
    events = [Eos(seq=0, reason=reason)] if reason else []
    video(tmp_path / "a.mp4", "talk.wav", *events)
    assert (tmp_path / "a.mp4").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "bin"]


LAYOUT = fitting(CueLayout())
TAG = re.compile(r"(?<!\\)\{\\(k|kf|fs)([\d.]+)\}")


def timed(*words):
    return tuple(
        TimedWord(text=word, start_ms=start_ms, end_ms=end_ms, prob=1, final=True)
        for word, start_ms, end_ms in words
    )


def fills(line):
    """(cs, text) of each part of a line of the script, after which its colour changes."""
    _, *parts = TAG.split(line.split(",,", 2)[2].rstrip("\n"))
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [(int(cs), text) for tag, cs, text in triples if tag != "fs"]


def shown(line):
    """What libass shows of a line."""
    text = "".join(text for _, text in fills(line))
    text = text.replace("\\N", " ").replace("\\\u2060", "\0")
    assert not re.search(r"(?<!\\)[{}]|\\(?![{}])", text), "a tag or an escape of its own"
    return re.sub(r"\\([{}])", r"\1", text).replace("\0", "\\")


def test_words_fill_when_they_are_spoken():
    words = timed(("Yes", 500, 750), ("or", 750, 1000), ("later", 1500, 1900))
    (cue,) = cues(final("Yes or later", start_ms=500, end_ms=1900, words=words))
    line = dialogue(cue, LAYOUT)
    assert line == (
        "Dialogue: 0,0:00:00.50,0:00:01.90,Default,,0,0,0,,"
        "{\\kf25}Yes {\\kf25}or {\\k50}{\\kf40}later\n"
    )


def test_another_reader_takes_the_script():
    lines = "".join(dialogue(cue, LAYOUT) for cue in cues(spoken(SPEECH, start_ms=3_600_000)))
    subtitles = pysubs2.SSAFile.from_string(script(lines, LAYOUT))
    assert " ".join(line.plaintext.replace("\n", " ") for line in subtitles) == SPEECH
    assert subtitles[0].start == 3_600_000
    assert subtitles.info["PlayResX"] == "1280"


def test_what_is_written_from_the_right_does_not_fill_from_the_left():
    (cue,) = cues(spoken("שלום world"))
    assert "{\\k30}שלום {\\kf30}world" in dialogue(cue, LAYOUT)


def test_lines_that_are_wider_than_usual_are_drawn_smaller():
    (usual,), (wide,) = cues(spoken("i" * 42)), cues(spoken("W" * 42))
    assert "\\fs" not in dialogue(usual, LAYOUT)
    assert "{\\fs29.2}" in dialogue(wide, LAYOUT)


TEXT = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["{\\an8}", "\\N", "a\\", "{", "}", "\\{"]
)


@given(st.lists(st.tuples(TEXT, st.integers(0, 900), st.integers(0, 900)), max_size=12))
def test_any_text_is_shown_as_it_is_at_its_time(words):
    said, t_ms = [], 0
    for word, pause_ms, word_ms in words:
        begins_ms = t_ms + pause_ms
        t_ms = begins_ms + word_ms
        if stripped := word.strip():
            said.append((stripped, begins_ms, t_ms))
    event = final(" ".join(word for word, _, _ in said), end_ms=t_ms, words=timed(*said))
    found = list(cues(event))
    lines = [dialogue(cue, LAYOUT) for cue in found]
    everything = " ".join(map(shown, lines))
    assert everything.split() == clean(event.text).split()
    for cue, line in zip(found, lines, strict=True):
        assert line.count("\n") == 1
        assert sum(cs for cs, _ in fills(line)) * 10 <= cue.end_ms - cue.start_ms // 10 * 10
