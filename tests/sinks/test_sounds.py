"""Sounds in every output: in their places, once, with the end that they had."""

import io
import json

import pytest
import webvtt

from streamd.events import Final, Gap, Sound
from streamd.options import CueLayout
from streamd.sinks.formats import FORMATS, Jsonl, Text
from streamd.sinks.terminal import TerminalSink
from streamd.sinks.text import Look
from streamd.sinks.transcripts import Revised, transcript
from streamd.sinks.writing import FileSink, SentenceSink, StreamSink, sentences
from tests.support import said


def final(seq: int, start_ms: int, text: str) -> Final:
    return said.final(text, start_ms=start_ms, end_ms=start_ms + 900, seq=seq)


def sound(start_ms: int, end_ms: int, label: str = "music") -> Sound:
    return Sound(label=label, start_ms=start_ms, end_ms=end_ms, prob=0.875)


EVENTS = [
    final(1, 0, "First."),
    sound(5000, 5500),
    final(2, 4000, "Second."),  # which had begun before
    sound(5000, 15_000),
    final(3, 16_000, "Third."),
]


def new(name: str):
    return FORMATS[name](CueLayout())


def test_a_transcript_has_sounds_where_they_began():
    text = Revised()
    assert [text.take(each) for each in EVENTS] == [0, 1, 1, 2, 3]
    shown = [each.seq if isinstance(each, Final) else each.end_ms for each in text.since(0)]
    assert shown == [1, 2, 15_000, 3]


def test_a_gap_keeps_its_place_before_later_sounds():
    text = Revised()
    for each in (sound(5000, 6000), Gap(t_ms=4000, duration_ms=10, why="paused"), sound(2, 3)):
        text.take(each)
    assert [type(each).__name__ for each in text.since(0)] == ["Sound", "Gap", "Sound"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_grows_is_what_is_made_at_the_end(tmp_path, name):
    path = tmp_path / "live"
    sink = FileSink(path, new(name))
    for event in EVENTS:
        sink.write(event)
    sink.close()
    assert path.read_bytes() == transcript(EVENTS, new(name))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("vtt", "00:00:05.000 --> 00:00:09.000\n<c.sound>[Music]</c>\n"),
        ("srt", "3\n00:00:05,000 --> 00:00:09,000\n[Music]\n"),
        ("txt", "\n[music]\n"),
        ("html", '<p class="sound"><time datetime="PT5.0S">0:00:05</time> [music]</p>'),
        ("jsonl", '{"type":"sound","label":"music","start_ms":5000,"end_ms":15000,"prob":0.875}'),
        ("json", '"sounds":[{"label":"music","start":5.0,"end":15.0,"probability":0.875}]'),
        ("json-full", '"sounds":[{"label":"music","start":5.0,"end":15.0,"probability":0.875}]'),
    ],
)
def test_how_a_format_shows_a_sound(name, shown):
    assert transcript(EVENTS, new(name)).decode().count(shown) == 1


@pytest.mark.parametrize("name", ["csv", "tsv", "lrc", "ass"])
def test_formats_of_words_alone_have_no_sounds(name):
    words = [each for each in EVENTS if isinstance(each, Final)]
    assert transcript(EVENTS, new(name)) == transcript(words, new(name))


def test_documents_without_sounds_are_as_before():
    assert "sounds" not in json.loads(transcript(EVENTS[:1], new("json")))


def test_players_read_the_subtitles():
    captions = webvtt.from_string(transcript(EVENTS, new("vtt")).decode()).captions
    assert [each.text for each in captions] == ["First.", "Second.", "[Music]", "Third."]


@pytest.mark.parametrize(("form", "n"), [(Text(), 1), (Jsonl(), 2)])
def test_a_stream_tells_a_sound_once_unless_it_is_for_programs(form, n):
    stream = io.StringIO()
    sink = StreamSink(stream, form)
    for event in EVENTS:
        sink.write(event)
    assert stream.getvalue().count("music") == n


@pytest.mark.parametrize(
    ("t_ms", "lines"),
    [
        (500, ["The first half.", "[music]"]),  # during the sentence
        (700, ["The first", "[music]", "half."]),  # in a pause
    ],
)
def test_only_a_sound_during_a_sentence_does_not_end_it(t_ms, lines):
    stream = io.StringIO()
    sink = SentenceSink(StreamSink(stream, Text()))
    second = said.spoken("half.", start_ms=1000, seq=2)
    events = [said.spoken("The first"), sound(t_ms, 900), second]
    for event in events:
        sink.write(event)
    sink.close()
    assert stream.getvalue().splitlines() == lines
    assert transcript(sentences(events), Text()).decode().splitlines() == lines


def test_a_terminal_shows_a_sound_once_between_paragraphs():
    stream = io.StringIO()
    sink = TerminalSink(stream, Look(), size=lambda: (80, 24))
    for event in EVENTS:
        sink.write(event)
    sink.close()
    assert stream.getvalue().count("[music]") == 1
