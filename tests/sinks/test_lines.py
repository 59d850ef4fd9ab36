import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Details, Partial
from streamd.sinks.text import clean
from tests.support.said import GAP, final, written


def rows(name, text):
    quoting = csv.QUOTE_NONE if name == "tsv" else csv.QUOTE_MINIMAL
    delimiter = "\t" if name == "tsv" else ","
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter, quoting=quoting))


def test_txt_and_jsonl():
    partial = Partial(seg=1, rev=1, start_ms=0, end_ms=1, text="on", stable=0)
    events = (partial, final("one\ntwo"), GAP, final("", seq=2), final("drei", seq=3))
    assert written("txt", *events) == "one two\n[1.2 s of audio lost: overrun]\ndrei\n"
    lines = written("jsonl", *events).splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["final", "gap", "final", "final"]


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
