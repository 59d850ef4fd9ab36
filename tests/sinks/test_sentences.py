import io
import re
from pathlib import Path

import pytest

from streamd.config import Config
from streamd.daemon.display import open_display, open_files
from streamd.events import Eos
from streamd.options import OutputOptions
from streamd.sinks.formats import FORMATS, SEGMENTED, suffix
from tests.support.said import GAP, final, spoken

SEGMENTS = (
    "we had everything before us, we had nothing before us. We",
    "were all",
    "going direct the other way.",
    "Five.",
)
SENTENCES = [" ".join(SEGMENTS[:3]), "Five."]


def said(*texts, pause_ms=0, make=spoken):
    events, at = [], 0
    for seq, text in enumerate(texts, 1):
        events.append(make(text, start_ms=at, seq=seq))
        at = events[-1].end_ms + pause_ms
    return events


def shown(*events, form="txt", segments=True) -> str:
    stream = io.StringIO()
    config = Config(output=OutputOptions(format=form))
    sink = open_display(config, stream, {}, segments=segments)
    for event in events:
        sink.write(event)
    sink.close()
    return stream.getvalue()


def test_people_get_sentences_and_programs_segments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = said(*SEGMENTS)
    assert shown(*events).splitlines() == SENTENCES
    config = Config(output=OutputOptions(output=tuple(f"a{suffix(name)}" for name in FORMATS)))
    for sink in open_files(config, segments=True):
        for event in (*events, Eos(seq=4, reason="end")):
            sink.write(event)
        sink.close()
    assert Path("a.txt").read_text().splitlines() == SENTENCES
    for name in SEGMENTED:
        rows = Path(f"a{suffix(name)}").read_text().splitlines()
        assert sum("were all" in row and "before us" not in row for row in rows) == 1
    # a cue per line or two, none with a remnant of a sentence
    cues = [block.splitlines()[2:] for block in Path("a.srt").read_text().split("\n\n")[:-1]]
    assert [" ".join(cue) for cue in cues] == [
        "we had everything before us, we had nothing before us.",
        "We were all going direct the other way.",
        "Five.",
    ]
    assert re.search(r">We<.* .*>way\.<", Path("a.html").read_text())


def test_live_finals_stay_as_they_are():
    assert shown(*said(*SEGMENTS), segments=False).splitlines() == [*SEGMENTS]


@pytest.mark.parametrize(
    "events",
    [
        said("no full stop", "here", pause_ms=2000),
        said("without", "words", make=final),
        said(*["word " * 60] * 2),  # more than 30 s
        [*said("lost"), GAP, spoken("audio", start_ms=300, seq=2)],
    ],
)
def test_what_is_not_joined(events):
    assert len(shown(*events).splitlines()) == len(events)


def test_a_sentence_is_written_as_soon_as_it_is_complete():
    stream = io.StringIO()
    sink = open_display(Config(), stream, {}, segments=True)
    seen = []
    for event in said(*SEGMENTS):
        sink.write(event)
        seen.append(len(stream.getvalue().splitlines()))
    assert seen == [0, 0, 1, 2]


@pytest.mark.parametrize("title", ["Mr.", "Mrs.", "Ms.", "Dr.", "St.", "Prof.", "George W."])
def test_a_title_ends_no_sentence(title):
    text = f"There came {title} Moreland."
    assert shown(*said(f"There came {title}", "Moreland.")) == f"{text}\n"
    told = spoken("They all looked up and saw the door open. " + text)
    assert f"came {title}" not in shown(told, form="srt").replace(f"{title} Moreland", "")


def test_the_last_word_may_be_short():
    assert shown(*said("So do I.", "And she.")).splitlines() == ["So do I.", "And she."]


def test_no_blank_comes_between_wide_letters():
    assert shown(*said("今天是", "星期五。")) == "今天是星期五。\n"
