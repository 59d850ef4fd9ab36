import html
import io
import re
from itertools import pairwise

import pylrc
import srt
import webvtt
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.options import CueLayout
from streamd.sinks.formats import _ARROW
from streamd.sinks.text import clean
from tests.support.said import GAP, SPEECH, final, spoken, written


def vtt(text):
    return webvtt.from_buffer(io.StringIO(text)).captions


def test_srt_as_another_parser_reads_it():
    text = written("srt", spoken(SPEECH), spoken("Yes & no <b> --> x.", start_ms=3_600_000, seq=2))
    cues = list(srt.parse(text))
    assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
    assert " ".join(" ".join(c.content.splitlines()) for c in cues[:-1]) == SPEECH
    assert cues[-1].content == "Yes & no <\u2060b> -> x."
    assert srt.timedelta_to_srt_timestamp(cues[-1].start) == "01:00:00,000"
    assert text.startswith("1\n00:00:00,000 --> 00:00:0")


def test_vtt_as_another_parser_reads_it():
    text = written(
        "vtt", spoken(SPEECH), GAP, spoken("Yes & no <b> --> x.", start_ms=3_600_000, seq=2)
    )
    captions = vtt(text)
    assert " ".join(caption.text.replace("\n", " ") for caption in captions[:-1]) == SPEECH
    assert "\n01:00:00.000 --> 01:00:01.800\nYes &amp; no &lt;b&gt; --&gt; x.\n\n" in text
    assert "\n\nNOTE 01:02:03.004 [1.2 s of audio lost: paused]\n\n" in text


def test_cues_of_utterances_that_overlap_do_not():
    finals = final("one", end_ms=2000), final("two", start_ms=1800, end_ms=3000, seq=2)
    first, second = srt.parse(written("srt", *finals))
    assert first.end == second.start
    first, second = vtt(written("vtt", *finals))
    assert first.end == second.start == "00:00:02.000"


def test_a_vtt_file_is_valid_before_the_first_word():
    assert vtt(written("vtt")) == []


def test_two_files_of_one_format_count_for_themselves():
    first, second = (written("srt", spoken("same words")) for _ in range(2))
    assert first == second
    assert first.startswith("1\n")


def test_lrc_as_another_parser_reads_it():
    later = spoken("[00:05.00]Yes [Music] <00:06.00> no.", start_ms=3_599_990, seq=2)
    lyrics = pylrc.parse(written("lrc", spoken("Over there, you see."), GAP, later))
    assert [(line.time, line.text) for line in lyrics] == [
        (0.0, "Over there, you see."),
        (3599.99, "(00:05.00]Yes [Music] (00:06.00> no."),
    ]
    (last,) = written("lrc", spoken("late", start_ms=6_000_000)).splitlines()[1:]
    assert last == "[100:00.00]late"


HIGHLIGHT = CueLayout(highlight_words=True)


def test_the_word_that_is_spoken_is_underlined():
    said = spoken("One two", start_ms=500, word_ms=500)
    first, second = srt.parse(written("srt", said, layout=HIGHLIGHT))
    assert first.content == "<u>One</u> two"
    assert second.content == "One <u>two</u>"
    assert first.end == second.start == srt.srt_timestamp_to_timedelta("00:00:01,000")
    first, second = vtt(written("vtt", said, layout=HIGHLIGHT))
    assert first.raw_text == "<u>One</u> two"
    assert second.text == "One two"


def test_doubtful_words_have_classes_in_vtt():
    layout = CueLayout(confidence=True)
    sure, doubtful = spoken("Sure", prob=0.99), spoken("or not?", prob=0.6, start_ms=1100, seq=2)
    text = written("vtt", sure, doubtful, layout=layout)
    assert "::cue(.p1) { color: rgb(232, 96, 28) }" in text
    page = webvtt.from_buffer(io.StringIO(text))
    assert [caption.raw_text for caption in page.captions] == [
        "Sure",
        "<c.p1>or</c> <c.p1>not?</c>",
    ]
    assert [caption.text for caption in page.captions] == ["Sure", "or not?"]
    assert len(page.styles) == 1
    assert "STYLE" not in written("vtt", doubtful)


ROUND = str.maketrans("[<{}", "((()")
hostile = st.text(min_size=1, max_size=10) | st.sampled_from(
    ["-->", "--", ">", "<b>", "</u>", "<", "{\\an8}", "&lt;", "&", "\r\n\r\n", "NOTE", "STYLE", "1"]
)


@example([["<", "0"]], CueLayout(line_cells=8, max_words=1), 0.9)
@given(
    st.lists(st.lists(hostile, min_size=1, max_size=8), max_size=4),
    st.builds(
        CueLayout,
        line_cells=st.integers(8, 60),
        max_lines=st.integers(1, 4),
        max_words=st.integers(0, 4),
        highlight_words=st.booleans(),
        confidence=st.booleans(),
    ),
    st.sampled_from([0.1, 0.9]),
)
def test_any_text_comes_back_from_subtitles(said, layout, prob):
    events, t_ms = [], 0
    for seq, words in enumerate(said, 1):
        joined = " ".join(" ".join(words).split())
        events.append(spoken(joined, start_ms=t_ms, seq=seq, prob=prob))
        t_ms = events[-1].end_ms
    text = [clean(event.text) for event in events if event.text]
    cues = list(srt.parse(written("srt", GAP, *events, layout=layout), ignore_errors=False))
    assert all(cue.start < cue.end for cue in cues)
    assert all(one.end <= two.start for one, two in pairwise(cues))
    captions = vtt(written("vtt", GAP, *events, layout=layout))
    assert len(captions) == len(cues)
    lyrics = pylrc.parse(written("lrc", GAP, *events, layout=layout))
    if layout.highlight_words:
        return
    whole = "".join(text).replace(" ", "")
    shown = _letters("".join(cue.content for cue in cues))
    assert _ARROW.sub("->", _letters(whole).translate(ROUND)) == _ARROW.sub(
        "->", shown.translate(ROUND)
    )
    assert not set("{}") & set(shown)
    assert not any("-->" in cue.content for cue in cues)
    assert _letters(whole) == _letters(html.unescape("".join(caption.text for caption in captions)))
    shown = _letters("".join(line.text for line in lyrics))
    assert _letters(whole).translate(ROUND) == shown.translate(ROUND)
    assert not any(re.search(r"[\[<]\s*\d", line.text) for line in lyrics)


def _letters(text):
    return "".join(char for char in text if not char.isspace() and char != "\u2060")
