"""A transcript without names and numbers."""

import csv
import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.events import aligned
from streamd.library.additions import Addition
from streamd.library.anonymous import anonymised, as_csv
from streamd.library.files import replaced_list, transcript_file
from streamd.library.tables import opened
from streamd.options import JournalOptions
from tests.library.test_shelf import fill, give_name, said
from tests.support.said import GAP


def plain(text, names=None, phrases=(), **fields):
    (final,), _, _ = anonymised([said(text, 1, **fields)], names or {}, phrases)
    return final.text


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Then we met Anna Botín, Anna's boss.", "en", "Then we met Name 1, Name 1's boss."),
        ("Bob, this is Faye.", "en", "Name 1, this is Name 2."),
        ("The end. Thanks, I'm OK on Monday.", "en", "The end. Thanks, I'm OK on Monday."),
        ("Yeah. Hello? Where's Sparky?", "en", "Yeah. Hello? Where's Name 1?"),
        ("It was Mr. Brown. Brown said so.", "en", "It was Mr. Name 1. Name 1 said so."),
        ("He owes 5,000 or 5,000 by 3pm.", "en", "He owes Number 1 or Number 1 by Number 2."),
        ("Hola. Ayer vi a Pedro.", "es", "Hola. Ayer vi a Name 1."),
        ("Der Hund von Frau Müller schläft.", "de", "Der Hund von Frau Name 1 schläft."),
        ('He said, "Come in, Joe."', "en", 'He said, "Come in, Name 1."'),
    ],
)
def test_names_and_numbers_have_labels(text, language, expected):
    assert plain(text, language=language) == expected


def test_speakers_and_phrases_have_the_same_label_everywhere():
    text = [said("Ana, meet Zed from acme.", 2), GAP, said("Ana Ruiz here, of ACME.", 1, seq=2)]
    (first, gap, second), names, listed = anonymised(text, {1: "Ana Ruiz"}, ["ACME"])
    assert (first.text, gap) == ("Person 1, meet Name 2 from acme.", GAP)
    assert second.text == "Person 1 here, of Name 1."
    assert names == {1: "Person 1"}
    rows = [*csv.reader(StringIO(as_csv(listed)))]
    assert rows == [
        ["label", "was", "times"],
        ["Name 1", "ACME", "1"],
        ["Name 2", "Zed", "1"],
        ["Person 1", "Ana", "1"],
        ["Person 1", "Ana Ruiz", "1"],
    ]


def test_a_name_is_no_formula_in_the_list():
    _, _, listed = anonymised([said("Yes.", 1)], {1: "=1+1", 2: "Ana"})
    rows = [*csv.reader(StringIO(as_csv(listed)))]
    assert [row[1] for row in rows[1:]] == [" =1+1", "Ana"]


def test_names_are_found_without_blanks_between_words():
    assert plain("今日は田中さんと話した。", {1: "田中"}, language="ja") == (
        "今日はPerson 1さんと話した。"
    )


def test_words_that_are_not_in_the_text_do_not_tell_names():
    final = replace(said("It was Anna.", 1), text="It was, Anna.")
    (without,), _, _ = anonymised([final], {})
    assert (without.text, without.words) == ("It was, Name 1.", ())


@given(
    st.lists(
        st.sampled_from(["Anna", "Botín's", "Joe-3", "12", "3/Anna", "the", "went.", '"Bob,', "—"]),
        min_size=1,
    )
)
def test_no_name_is_left_and_words_stay_in_their_text(parts):
    final = said(" ".join(parts), 1, start_ms=1000)
    names = {1: "Anna Botín", 2: "Joe", 3: "Bob"}
    (without,), _, _ = anonymised([final], names)
    assert not re.search("Anna|Botín|Joe|Bob", without.text)
    assert len([*aligned(without.text, without.words)]) == len(without.words)
    assert "".join(word.text for word in without.words) == without.text.replace(" ", "")
    times = [t_ms for word in without.words for t_ms in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (final.start_ms, final.end_ms)


@pytest.mark.parametrize("has_audio", [True, False])
def test_names_of_the_live_session_are_known_in_its_better_text(tmp_path, has_audio):
    """German writes all nouns with capitals, so that only names that are known are found."""
    shelf = fill(tmp_path, {"talk": [("Da kam Jonas herein.", 2, "de")]})
    give_name(shelf, 1, 2, "Jonas")
    (sound,) = shelf.sounds(1)
    with opened(tmp_path) as library:
        better = Addition(library, JournalOptions(), str(shelf.sound(sound.file)))
        better.hub.publish(said("Dann kam Jonas herein.", 7, language="de"))
        better.end("end")
    if not has_audio:
        shelf.sound(sound.file).unlink()  # as --keep-gb does

    def write(said, form, names, title):
        return "\n".join(each.text for each in said).encode()

    file = transcript_file(shelf, write, 2, "txt", anonymous=True)
    assert file.body == b"Dann kam Name 1 herein."
    assert b"Name 1,Jonas,1\n" in replaced_list(shelf, 2).body
