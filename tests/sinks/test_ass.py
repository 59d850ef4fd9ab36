"""Karaoke subtitles: what a reader of the format, and libass in ffmpeg, make of them."""

import re
import subprocess
from itertools import pairwise

import numpy as np
import pysubs2
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import TimedWord
from streamd.sinks.text import clean
from tests.support.said import SPEECH, final, spoken, written

WIDTH, HEIGHT = 1280, 720
YELLOW = (255, 216, 72)
TAG = re.compile(r"(?<!\\)\{\\(k|kf)(\d+)\}")


def timed(*words):
    return tuple(
        TimedWord(text=word, start_ms=start_ms, end_ms=end_ms, prob=1, final=True)
        for word, start_ms, end_ms in words
    )


def dialogues(*events):
    return [line for line in written("ass", *events).splitlines() if line.startswith("Dialogue")]


def fills(line):
    """(cs, text) of each part of a line of the file, after which its colour changes."""
    _, *parts = TAG.split(line.split(",,", 2)[2])
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [(int(cs), text) for _, cs, text in triples]


def shown(line):
    """What libass shows of a line."""
    text = "".join(text for _, text in fills(line))
    text = text.replace("\\N", " ").replace("\\\u2060", "\0")
    assert not re.search(r"(?<!\\)[{}]|\\(?![{}])", text), "a tag or an escape of its own"
    return re.sub(r"\\([{}])", r"\1", text).replace("\0", "\\")


def test_words_fill_when_they_are_spoken():
    words = timed(("Yes", 500, 750), ("or", 750, 1000), ("later", 1500, 1900))
    (line,) = dialogues(final("Yes or later", start_ms=500, end_ms=1900, words=words))
    assert line == (
        "Dialogue: 0,0:00:00.50,0:00:01.90,Default,,0,0,0,,"
        "{\\kf25}Yes {\\kf25}or {\\k50}{\\kf40}later"
    )


def test_another_reader_takes_the_file():
    subtitles = pysubs2.SSAFile.from_string(written("ass", spoken(SPEECH, start_ms=3_600_000)))
    assert " ".join(line.plaintext.replace("\n", " ") for line in subtitles) == SPEECH
    assert subtitles[0].start == 3_600_000
    assert subtitles.info["PlayResX"] == "1280"
    assert subtitles.styles["Default"].fontsize == 48


def test_what_is_written_from_the_right_does_not_fill_from_the_left():
    assert "{\\k30}שלום {\\kf30}world" in dialogues(spoken("שלום world"))[0]


def picture(folder, t_ms):
    """What ffmpeg draws at a time, (height, width, 3), as the recipe has it burn a file in."""
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", f"color=s={WIDTH}x{HEIGHT}:r=25"]
    command += ["-vf", f"ass=talk.ass,trim=start={t_ms / 1000}", "-frames:v", "1"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, capture_output=True, check=True, cwd=folder).stdout
    return np.frombuffer(pixels, np.uint8).reshape(HEIGHT, WIDTH, 3).astype(int)


def test_ffmpeg_draws_words_that_change_colour_as_they_are_spoken(ffmpeg, tmp_path):
    said = spoken("one two three four", word_ms=500, start_ms=500)
    (tmp_path / "talk.ass").write_text(written("ass", said))
    times = (540, 1040, 1540, 2040, 2440)
    drawn = [np.abs(picture(tmp_path, t_ms) - YELLOW).max(axis=2) < 60 for t_ms in times]
    yellow = [int(each.sum()) for each in drawn]
    assert yellow[0] < 300
    assert all(n + 300 < later for n, later in pairwise(yellow))
    assert picture(tmp_path, 200).max() < 60, "nothing is said yet"


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
    lines = dialogues(event)
    assert " ".join(map(shown, lines)).split() == clean(event.text).split()
    read = pysubs2.SSAFile.from_string(written("ass", event))
    for line, cue in zip(lines, read, strict=True):
        assert sum(cs for cs, _ in fills(line)) * 10 <= cue.end - cue.start
