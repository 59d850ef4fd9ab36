import html5lib
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Gap, TimedWord
from streamd.sinks.text import clean
from tests.support.said import GAP, final, spoken, written

NAMESPACE = "{http://www.w3.org/1999/xhtml}"


def read(page):
    """The page as a strict parser reads it: elements by name, without what stands in the head."""
    root = html5lib.HTMLParser(strict=True).parse(page)
    return list(root.find(f"{NAMESPACE}body").iter())


def texts(page):
    return ["".join(bdi.itertext()) for bdi in read(page) if bdi.tag == f"{NAMESPACE}bdi"]


def test_words_are_coloured_by_their_probability():
    page = written("html", spoken("sure it is", prob=0.99), spoken("or not", prob=0.6, seq=2), GAP)
    assert '<span class="p6" title="99%">sure</span>' in page
    assert '<span class="p1" title="60%">or</span>' in page
    assert ".p1 { background: rgb(232 96 28 / 45%) }" in page
    assert texts(page) == ["sure it is", "or not"]
    assert '<p class="gap">[1.2 s of audio lost: overrun]</p>' in page


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.text())
def test_no_text_becomes_markup(said, why):
    words = tuple(TimedWord(text=word, start_ms=0, end_ms=0, prob=0.5, final=True) for word in said)
    event = final(" ".join(said), end_ms=1000, words=words)
    page = written("html", event, Gap(t_ms=0, duration_ms=20, why=why))
    assert texts(page) == [clean(event.text)]
    assert {str(element.tag) for element in read(page)} <= {
        f"{NAMESPACE}{name}" for name in ("body", "p", "time", "bdi", "span")
    }
    assert all(
        set(element.attrib) <= {"class", "title", "datetime", "lang", "dir"}
        for element in read(page)
    )
