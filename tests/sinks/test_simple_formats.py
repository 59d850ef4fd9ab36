import csv
import io
import json
import re

import html5lib
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET

from streamd.events import Details, Gap, GapReason, Partial, TimedWord
from streamd.options import CueLayout
from streamd.sinks.formats import FORMATS
from streamd.sinks.text import clean
from streamd.sinks.writing import StreamSink
from tests.support.said import GAP, final, spoken, written


def rows(name, text):
    quoting = csv.QUOTE_NONE if name == "tsv" else csv.QUOTE_MINIMAL
    delimiter = "\t" if name == "tsv" else ","
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter, quoting=quoting))


def test_txt_and_jsonl():
    partial = Partial(seg=1, rev=1, start_ms=0, end_ms=1, text="on", stable=0)
    events = (partial, final("one\ntwo"), GAP, final("", seq=2), final("drei", seq=3))
    assert written("txt", *events) == "one\ntwo\n[1.2 s of audio lost: paused]\ndrei\n"
    lines = written("jsonl", *events).splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["final", "gap", "final", "final"]


@pytest.mark.parametrize(
    ("form", "speaker", "expected"),
    [
        ("txt", UNSET, "Dear Ann,\nthanks.\n\nBye.\nAda\n"),
        ("txt", 1, "Speaker 1: Dear Ann,\nthanks.\n\nBye.\nAda\n"),
        ("md", UNSET, "Dear Ann,\\\nthanks.\n\nBye.\n\nAda\n"),
        ("md", 1, "**Speaker 1:** Dear Ann,\\\nthanks.\n\nBye.\\\nAda\n"),
    ],
)
def test_a_new_line_that_was_said_begins_one(form, speaker, expected):
    texts = ("\nDear Ann,\nthanks.\n", "\nBye.", "\n", "Ada\n\n")
    said = [spoken(text, seq=seq, speaker=speaker) for seq, text in enumerate(texts, 1)]
    assert written(form, *said) == expected


@pytest.mark.parametrize(("form", "between"), [("txt", "\n"), ("md", "\n\n")])
def test_a_pipe_has_no_empty_line_where_only_a_new_line_was_said(form, between):
    sink = StreamSink(stream := io.StringIO(), FORMATS[form](CueLayout()), at_once=True)
    for seq, text in enumerate(("\n", "One.", "\n", "", "Two.\n"), 1):
        sink.write(final(text, seq=seq))
    assert stream.getvalue() == f"One.{between}Two.{between}"


@pytest.mark.parametrize("why", GapReason)
def test_people_read_sentences_and_programs_codes(why):
    gap = Gap(t_ms=0, duration_ms=1240, why=why)
    assert json.loads(written("jsonl", gap))["why"] == why
    assert re.fullmatch("[a-z]+", why)
    assert re.search("of audio lost: (paused|the .*)]", written("txt", gap))


def test_jsonl_is_the_wire_form_whatever_is_known_of_the_tokens():
    details = Details(seek_ms=0, tokens=(), temperature=0.0, compression_ratio=1.0)
    assert written("jsonl", final("one", details=details)) == written("jsonl", final("one"))


def test_csv_and_tsv_as_the_programs_write_them_that_they_come_from():
    said = final('Say "a, b"\tand c.', start_ms=80, end_ms=2000)
    assert written("csv", said) == 'start,end,text\n80,2000,"Say ""a, b"" and c."\n'
    assert written("tsv", said) == 'start\tend\ttext\n80\t2000\tSay "a, b" and c.\n'


@pytest.mark.parametrize("name", ["csv", "tsv"])
@given(texts=st.lists(st.text(min_size=1), max_size=5))
def test_any_text_comes_back_from_a_table(name, texts):
    events = [final(text, end_ms=1000, seq=i) for i, text in enumerate(texts, 1)]
    found = rows(name, written(name, GAP, *events))
    assert [row["text"].strip() for row in found] == [clean(text).strip() for text in texts]
    assert all((row["start"], row["end"]) == ("0", "1000") for row in found)
    assert not any(row["text"].startswith(("=", "+", "-", "@")) for row in found)


NAMESPACE = "{http://www.w3.org/1999/xhtml}"


def elements(page):
    """The page as a strict parser reads it: elements by name, without what stands in the head."""
    root = html5lib.HTMLParser(strict=True).parse(page)
    return list(root.find(f"{NAMESPACE}body").iter())


def texts(page):
    return ["".join(bdi.itertext()) for bdi in elements(page) if bdi.tag == f"{NAMESPACE}bdi"]


def test_words_are_coloured_by_their_probability():
    page = written("html", spoken("sure it is", prob=0.99), spoken("or not", prob=0.6, seq=2), GAP)
    assert '<span class="p6" title="99%">sure</span>' in page
    assert '<span class="p1" title="60%">or</span>' in page
    assert ".p1 { background: #e8601c; background: rgb(232 96 28 / 45%) }" in page
    assert texts(page) == ["sure it is", "or not"]
    assert '<p class="gap">[1.2 s of audio lost: paused]</p>' in page


def test_a_speakers_name_does_not_decide_the_direction_of_the_text():
    said = TimedWord(text="שלום", start_ms=0, end_ms=9, prob=0.99, final=True, speaker=2)
    page = written("html", final("שלום", end_ms=9, words=(said,)))
    assert texts(page) == ["Speaker 2: שלום"]
    (bdi,) = (each for each in elements(page) if each.tag == f"{NAMESPACE}bdi")
    # A browser that looks for the direction skips elements that have a `dir` of their own.
    assert (bdi[0].text, bdi.get("dir"), bdi[0].get("dir")) == ("Speaker 2", "auto", "auto")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.text())
@example(["\ufdd0", "\U0003ffff"], "\ufffe")
def test_no_text_becomes_markup(said, why):
    words = tuple(TimedWord(text=word, start_ms=0, end_ms=0, prob=0.5, final=True) for word in said)
    event = final(" ".join(said), end_ms=1000, words=words)
    page = written("html", event, Gap(t_ms=0, duration_ms=20, why=why))
    assert texts(page) == [clean(event.text)]
    assert {str(element.tag) for element in elements(page)} <= {
        f"{NAMESPACE}{name}" for name in ("body", "p", "time", "bdi", "span")
    }
    assert all(
        set(element.attrib) <= {"class", "title", "datetime", "lang", "dir"}
        for element in elements(page)
    )
