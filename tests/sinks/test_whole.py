"""Documents that are written at the end: docx and eaf."""

from io import BytesIO
from xml.etree import ElementTree

import docx
import pytest
from docx.oxml.ns import qn
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pympi import Eaf

from streamd.errors import ConfigError
from streamd.events import Correction, Eos, SpeakerName, SpeakerTurn, SpeakerTurns
from streamd.sinks import About
from streamd.sinks.text import speaker_name
from streamd.sinks.transcripts import transcript
from streamd.sinks.whole import Document
from streamd.sinks.writing import FileSink
from tests.library.test_shelf import said
from tests.support.said import GAP

ABOUT = About("talk", names={1: "Ana"})


def opened(events, **fields):
    return docx.Document(BytesIO(transcript(events, Document("docx", replaced(**fields)))))


def replaced(**fields):
    return About("talk", names={1: "Ana"}, **fields)


def annotated(tmp_path, events):
    path = tmp_path / "talk.eaf"
    path.write_bytes(transcript(events, Document("eaf", ABOUT)))
    return Eaf(path)


def test_turns_are_paragraphs_with_the_time_once_a_minute():
    events = [
        said("Who is there?", 1),
        said("It is me.", 1, start_ms=1000, seq=2),
        said("Come in, please.", 2, start_ms=59_700, seq=3),
        GAP,
        said("Good bye.", 2, start_ms=125_000, seq=4),
    ]
    title, *turns = [each.text for each in opened(events).paragraphs]
    assert title == "talk"
    assert turns == [
        "Ana: [0:00:00] Who is there? It is me.",
        "Speaker 2: Come [0:01:00] in, please.",
        "[1.2 s of audio lost: paused]",
        "Speaker 2: [0:02:05] Good bye.",
    ]


def test_a_time_does_not_stand_inside_a_word():
    final = said("From 902 -10 on", 1, start_ms=58_800, word_ms=600)
    final = replace(final, text="From 902-10 on")
    assert opened([final]).paragraphs[1].text == "Ana: [0:00:58] From 902-10 [0:01:00] on"


@pytest.mark.parametrize("wanted", [True, False])
def test_lines_are_numbered_if_that_is_wanted(wanted):
    section = opened([said("Hello.")], line_numbers=wanted).sections[0]._sectPr
    children = [child.tag for child in section]
    assert (qn("w:lnNumType") in children) == wanted
    if wanted:
        assert children.index(qn("w:lnNumType")) == children.index(qn("w:pgMar")) + 1


def test_text_from_right_to_left_runs_so_and_languages_are_marked():
    paragraph = opened([said("שלום עולם", 1, language="he")]).paragraphs[1]
    assert paragraph._p.pPr.find(qn("w:bidi")) is not None
    assert paragraph.runs[-1].font.rtl
    marks = paragraph._p.iter(qn("w:lang"))
    assert {mark.get(qn("w:bidi")) for mark in marks} == {"he"}


def test_a_long_text_of_nobody_has_paragraphs():
    events = [said("These are six words of it.", None, start_ms=n * 1800) for n in range(40)]
    events = [replace(each, seq=n) for n, each in enumerate(events, 1)]
    lengths = [len(each.text) for each in opened(events).paragraphs[1:]]
    assert len(lengths) == 4
    assert max(lengths) < 400


@pytest.mark.parametrize("name", ["docx", "eaf"])
def test_what_was_corrected_and_who_it_was_after_all_is_written(tmp_path, name):
    turn = SpeakerTurn(start_ms=0, end_ms=900, speaker=2)
    path = tmp_path / f"talk.{name}"
    file = FileSink(path, Document(name, ABOUT))
    for event in (
        said("Anna Bottin spoke.", 1, seq=1),
        Correction(text="Ana Botín", seq=1, first=0, last=1),
        SpeakerTurns(start_ms=0, end_ms=900, turns=(turn,)),
        SpeakerName(speaker=2, name="Zoë"),
        Eos(seq=1, reason="end"),
    ):
        file.write(event)
    assert not path.exists()
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    if name == "docx":
        text = docx.Document(str(path)).paragraphs[1].text
        assert text == "Zoë: [0:00:00] Ana Botín spoke."
    else:
        ((start_ms, end_ms, text),) = Eaf(path).get_annotation_data_for_tier("Zoë")
        assert (start_ms, end_ms, text) == (0, 900, "Ana Botín spoke.")


@pytest.mark.parametrize(
    ("events", "whole", "left"),
    [
        ([], False, []),
        ([Eos(seq=0, reason="end")], False, ["talk.docx"]),
        ([said("Hello."), Eos(seq=1, reason="stop")], False, ["talk.docx"]),
        ([said("Hello."), Eos(seq=1, reason="stop")], True, ["talk.partial.docx"]),
    ],
)
def test_what_a_session_leaves_depends_on_its_end(tmp_path, events, whole, left):
    file = FileSink(tmp_path / "talk.docx", Document("docx", ABOUT), whole=whole)
    for event in events:
        file.write(event)
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == left


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("streamd.sinks.whole.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"docx needs a library: .*\[documents\]"):
        Document("docx", ABOUT)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"talk\.docx: cannot be written: No such file"):
        FileSink(tmp_path / "none" / "talk.docx", Document("docx", ABOUT))


def test_speakers_have_tiers_of_sentences_and_words(tmp_path):
    eaf = annotated(tmp_path, [said("Who is there?", 1), GAP, said("Me.", 2, start_ms=900, seq=2)])
    assert [*eaf.tiers] == ["Ana", "Ana words", "Lost audio", "Speaker 2", "Speaker 2 words"]
    assert eaf.get_annotation_data_for_tier("Ana") == [(0, 900, "Who is there?")]
    words = [(0, 300, "Who"), (300, 600, "is"), (600, 900, "there?")]
    assert eaf.get_annotation_data_for_tier("Ana words") == words
    assert eaf.get_parameters_for_tier("Ana words")["PARENT_REF"] == "Ana"


spoken_at = st.tuples(
    st.integers(0, 5_000), st.integers(0, 900), st.integers(1, 5), st.integers(1, 2)
)


@given(st.lists(spoken_at, max_size=8))
def test_annotations_of_a_tier_never_overlap_and_words_are_inside_their_sentence(times):
    events = [
        said(" ".join(["word"] * n), speaker, start_ms=start_ms, word_ms=word_ms, seq=seq)
        for seq, (start_ms, word_ms, n, speaker) in enumerate(times, 1)
    ]
    root = ElementTree.fromstring(transcript(events, Document("eaf", ABOUT)))
    slots = [each.attrib for each in root.iter("TIME_SLOT")]
    at = {each["TIME_SLOT_ID"]: int(each["TIME_VALUE"]) for each in slots}
    assert [*at.values()] == sorted(at.values())
    spans = {
        tier.get("TIER_ID"): [
            (at[each.get("TIME_SLOT_REF1")], at[each.get("TIME_SLOT_REF2")])
            for each in tier.iter("ALIGNABLE_ANNOTATION")
        ]
        for tier in root.iter("TIER")
    }
    for name, found in spans.items():
        edges = [edge for span in found for edge in span]
        assert edges == sorted(edges)
        assert all(start < end for start, end in found)
        for start, end in found if name.endswith(" words") else ():
            parent = spans[name.removesuffix(" words")]
            assert any(first <= start and end <= last for first, last in parent)
    for speaker in (1, 2):
        n_words = sum(n for *_, n, who in times if who == speaker)
        assert len(spans.get(f"{speaker_name(speaker, ABOUT.names)} words", ())) == n_words
