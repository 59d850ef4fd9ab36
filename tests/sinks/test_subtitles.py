import io

import srt
import webvtt
from sinks.said import GAP, SPEECH, final, spoken, written


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
    assert "\n\nNOTE 01:02:03.004 [1.2 s of audio lost: overrun]\n\n" in text


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
