import contextlib
import json
import os
from itertools import pairwise

import pytest
import srt
import webvtt
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError, StreamdError
from streamd.events import Final, Gap, Partial, TimedWord
from streamd.sinks.cues import LINE_CELLS, MAX_CUE_MS, cues
from streamd.sinks.look import Look
from streamd.sinks.subtitles import FORMATS, FileSink, StreamSink, Text
from streamd.sinks.text import width

GAP = Gap(t_ms=3_723_004, duration_ms=1240, why="overrun")


def final(text, *, start_ms=0, end_ms=None, words=(), seq=1):
    end_ms = start_ms + 300 * len(text.split()) if end_ms is None else end_ms
    return Final(
        seq=seq, seg=seq, start_ms=start_ms, end_ms=end_ms, text=text, language="en", words=words
    )


def spoken(text, *, start_ms=0, word_ms=300, seq=1):
    """A final whose every word takes `word_ms`."""
    words = tuple(
        TimedWord(
            text=word,
            start_ms=start_ms + i * word_ms,
            end_ms=start_ms + (i + 1) * word_ms,
            prob=0.9,
            final=True,
        )
        for i, word in enumerate(text.split())
    )
    return final(
        text, start_ms=start_ms, end_ms=start_ms + len(words) * word_ms, words=words, seq=seq
    )


def written(path, *events):
    sink = FileSink(path)
    for event in events:
        sink.write(event)
    sink.close()
    return path.read_text(encoding="utf-8")


SPEECH = (
    "And so, my fellow Americans, ask not what your country can do for you, "
    "ask what you can do for your country. My fellow citizens of the world: ask not "
    "what America will do for you, but what together we can do for the freedom of man."
)


def test_srt_as_another_parser_reads_it(tmp_path):
    text = written(
        tmp_path / "a.srt", spoken(SPEECH), spoken("Yes & no <b> --> x.", start_ms=3_600_000, seq=2)
    )
    cues = list(srt.parse(text))
    assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
    assert " ".join(" ".join(c.content.splitlines()) for c in cues[:-1]) == SPEECH
    assert cues[-1].content == "Yes & no <b> --> x."
    assert srt.timedelta_to_srt_timestamp(cues[-1].start) == "01:00:00,000"
    assert text.startswith("1\n00:00:00,000 --> 00:00:0")


def test_vtt_as_another_parser_reads_it(tmp_path):
    path = tmp_path / "a.vtt"
    text = written(
        path, spoken(SPEECH), GAP, spoken("Yes & no <b> --> x.", start_ms=3_600_000, seq=2)
    )
    captions = webvtt.read(path).captions
    assert " ".join(caption.text.replace("\n", " ") for caption in captions[:-1]) == SPEECH
    assert "\n01:00:00.000 --> 01:00:01.800\nYes &amp; no &lt;b&gt; --&gt; x.\n\n" in text
    assert "\n\nNOTE 01:02:03.004 [1.2 s of audio lost: overrun]\n\n" in text


def test_cues_of_utterances_that_overlap_do_not(tmp_path):
    finals = final("one", end_ms=2000), final("two", start_ms=1800, end_ms=3000, seq=2)
    first, second = srt.parse(written(tmp_path / "a.srt", *finals))
    assert first.end == second.start
    written(path := tmp_path / "a.vtt", *finals)
    first, second = webvtt.read(path).captions
    assert first.end == second.start == "00:00:02.000"


def test_txt_and_jsonl(tmp_path):
    partial = Partial(seg=1, rev=1, start_ms=0, end_ms=1, text="on", stable=0)
    events = (partial, final("one\ntwo"), GAP, final("", seq=2), final("drei", seq=3))
    assert written(tmp_path / "a.TXT", *events) == (
        "one two\n[1.2 s of audio lost: overrun]\ndrei\n"
    )
    lines = written(tmp_path / "a.jsonl", *events).splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["final", "gap", "final", "final"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_each_final_is_in_the_file_before_write_returns(tmp_path, suffix):
    path = tmp_path / f"live{suffix}"
    sink = FileSink(path)
    sizes = [path.stat().st_size]
    for seq in range(1, 4):
        sink.write(spoken("words said", start_ms=seq * 1000, seq=seq))
        sizes.append(path.stat().st_size)
    assert all(before < after for before, after in pairwise(sizes))
    if suffix == ".vtt":
        assert len(webvtt.read(path).captions) == 3
    if suffix == ".srt":
        assert len(list(srt.parse(path.read_text()))) == 3
    sink.close()
    assert path.stat().st_size == sizes[-1]


def test_a_vtt_file_is_valid_before_the_first_word(tmp_path):
    sink = FileSink(tmp_path / "a.vtt")
    assert webvtt.read(tmp_path / "a.vtt").captions == []
    sink.close()


def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.doc: unknown suffix.*\.txt \.srt \.vtt \.jsonl"):
        FileSink(tmp_path / "a.doc")
    assert not (tmp_path / "a.doc").exists()


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none/a\.srt: cannot be written: No such file"):
        FileSink(tmp_path / "none" / "a.srt")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_reported_once_and_the_file_can_still_be_closed(tmp_path):
    (tmp_path / "a.txt").symlink_to("/dev/full")
    sink = FileSink(tmp_path / "a.txt")
    with pytest.raises(StreamdError, match=r"a\.txt: cannot be written: No space left"):
        sink.write(final("lost"))
    sink.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_standard_output_on_a_full_disk_is_reported():
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    with pytest.raises(StreamdError, match="standard output cannot be written: No space left"):
        StreamSink(stream, Text(Look())).write(final("lost"))
    with contextlib.suppress(OSError):
        stream.close()


def test_cues_end_where_a_reader_would_pause():
    assert [cue.lines for cue in cues(spoken(SPEECH))] == [
        (
            "And so, my fellow Americans,",
            "ask not what your country can do for you,",
        ),
        ("ask what you can do for your country.",),
        (
            "My fellow citizens of the world:",
            "ask not what America will do for you,",
        ),
        ("but what together we can", "do for the freedom of man."),
    ]


def test_a_word_longer_than_a_line_is_cut():
    (cue,) = cues(final("a" * 60, end_ms=2000))
    assert cue.lines == ("a" * 42, "a" * 18)


def test_text_without_word_times_shares_the_time():
    first, second = cues(
        final("one two three four five six seven eight nine ten " * 3, end_ms=9000)
    )
    assert first.start_ms == 0
    assert first.end_ms == second.start_ms
    assert second.end_ms == 9000


def test_chinese_takes_two_cells_a_character():
    shown = list(cues(final("这是一个没有空格的很长的句子" * 6, end_ms=9000)))
    assert all(width(line) <= LINE_CELLS for cue in shown for line in cue.lines)
    assert "".join("".join(cue.lines) for cue in shown) == "这是一个没有空格的很长的句子" * 6


def test_a_short_word_is_shown_for_a_second_if_nothing_follows():
    word = TimedWord(text="Yes.", start_ms=500, end_ms=700, prob=0.9, final=True)
    (cue,) = cues(final("Yes.", end_ms=2000, words=(word,)))
    assert (cue.start_ms, cue.end_ms) == (500, 1500)


timed_words = st.tuples(
    st.text("abcdef", min_size=1, max_size=60).flatmap(
        lambda word: st.sampled_from(["", ",", ".", "?"]).map(lambda end: word + end)
    ),
    st.integers(0, 3000),
    st.integers(0, 12_000),
)


@given(st.lists(st.lists(timed_words, max_size=40), max_size=4), st.booleans())
def test_cues_hold_every_word_in_order_without_overlap(utterances, with_words):
    t_ms, end_ms, shown, said = 0, 0, [], []
    for i, utterance in enumerate(utterances):
        begins, timed = t_ms, []
        for word, pause_ms, word_ms in utterance:
            start_ms = t_ms + pause_ms
            t_ms = start_ms + word_ms
            timed.append(TimedWord(text=word, start_ms=start_ms, end_ms=t_ms, prob=1, final=True))
        said += [word.text for word in timed]
        event = final(
            " ".join(word.text for word in timed),
            start_ms=begins,
            end_ms=t_ms,
            words=tuple(timed) if with_words else (),
            seq=i + 1,
        )
        for cue in cues(event, end_ms):
            end_ms = cue.end_ms
            shown.append(cue)
    text = "".join("".join(cue.lines) for cue in shown).replace(" ", "")
    assert text == "".join(said)
    assert all(0 <= cue.start_ms < cue.end_ms for cue in shown)
    assert all(one.end_ms <= two.start_ms for one, two in pairwise(shown))
    assert all(len(cue.lines) <= 2 for cue in shown)
    assert all(0 < width(line) <= LINE_CELLS for cue in shown for line in cue.lines)
    longest_ms = max([MAX_CUE_MS, *(ms for words in utterances for _, _, ms in words)])
    assert all(cue.end_ms - cue.start_ms <= longest_ms for cue in shown if with_words)


def test_two_files_of_one_format_count_for_themselves():
    first, second = (FORMATS[".srt"]().append(spoken("same words")) for _ in range(2))
    assert first == second
    assert first.startswith("1\n")
