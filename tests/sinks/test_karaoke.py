import re

import pysubs2
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import TimedWord
from streamd.sinks.cues import Layout, cues
from streamd.sinks.karaoke import dialogue, fitting, script
from streamd.sinks.text import clean
from tests.support.said import SPEECH, final, spoken

LAYOUT = fitting(Layout())
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


text = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["{\\an8}", "\\N", "a\\", "{", "}", "\\{"]
)


@given(st.lists(st.tuples(text, st.integers(0, 900), st.integers(0, 900)), max_size=12))
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
