"""Sentences that somebody edits, and who says them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.errors import ConfigError
from streamd.events import Attribution, Correction, Sound
from streamd.library import edits
from streamd.library.edits import EditedSentence, EditedText, Edits, Naming, Speaking
from streamd.sinks.transcripts import Revised, attributed
from tests.support.said import final, timed


def heard(text, *, seq=1, blank=" ", speaker=1):
    """A final whose words last 300 ms each, with 100 ms between them."""
    words = timed(text.split() if blank else text, every_ms=400, speaker=speaker)
    return final(text, seq=seq, end_ms=400 * len(words), words=words)


def as_it_stands(*events):
    return list(Revised(events).since(0))


def says(text, seq=1):
    """Edits after which a final has a text."""
    return Edits(revision=0, sentences=(EditedSentence(seq=seq, text=text),))


def edited(final, text):
    notes, undo = EditedText([final]).edit(says(text))
    (now,) = as_it_stands(final, *notes)
    return now, notes, undo


SAID = "We met Anna Bottin, in the old house."


@pytest.mark.parametrize(
    ("meant", "corrections"),
    [
        ("We met Ana Botín, in the old house.", [(2, 3, "Ana Botín,")]),
        ("We met Anna Bottin in the old house.", [(3, 3, "Bottin")]),
        ("We met Anna Bottin, in the very old house.", [(5, 5, "the very")]),
        ("Then we met Anna Bottin, in the old house.", [(0, 0, "Then we")]),
        ("Yes: We met Anna Bottin, in the old house.", [(0, 0, "Yes: We")]),
        ("We met Anna Bottin, in the house.", [(6, 6, "")]),
        ("met Anna Bottin, in the old house.", [(0, 0, "")]),
        ("We met Anna Bottin, in the old", [(7, 7, "")]),
        ("We met Anna Bottin, in the old house. Really!", [(7, 7, "house. Really!")]),
        ("We met  Anna Bottin,\nin the old house.", []),
        ("", [(0, 7, "")]),
    ],
)
def test_only_words_that_differ_are_corrected(meant, corrections):
    now, notes, _ = edited(heard(SAID), meant)
    assert [(each.first, each.last, each.text) for each in notes] == corrections
    assert now.text == " ".join(meant.split())
    assert [word.text for word in now.words] == meant.split()


def test_words_that_were_kept_keep_their_times_and_others_share_what_is_left():
    now, *_ = edited(heard(SAID), "We met my friend Ana, in the house.")
    times = {word.text: (word.start_ms, word.end_ms) for word in now.words}
    assert times["We"] == (0, 300)
    assert times["in"] == (1600, 1900)
    assert times["house."] == (2800, 3100)
    spread = [(word.start_ms, word.end_ms) for word in now.words[2:5]]
    assert spread[0][0] == 800
    assert spread[-1][1] == 1500
    assert all(before[1] == after[0] for before, after in pairwise(spread))


def test_words_that_change_on_both_sides_of_a_turn_stay_with_who_said_them():
    final = heard("Why do you think that? Because she was there.")
    words = [replace(each, speaker=1 + (i > 4)) for i, each in enumerate(final.words)]
    whose = {}
    for meant in ("so? As", "so? As if", "it? She said", "so?"):
        text = f"Why do you think {meant} she was there."
        now, *_ = edited(replace(final, words=tuple(words)), text)
        assert now.text == text
        whose[meant] = [each.speaker for each in now.words[4:-3]]
    assert whose == {
        "so? As": [1, 2],
        "so? As if": [1, 1, 2],
        "it? She said": [1, 1, 2],
        "so?": [1],
    }


def test_an_inserted_word_takes_the_pause_or_shares_the_time_of_its_neighbour():
    now, *_ = edited(heard(SAID), "We met Anna Bottin, in the very old house.")
    assert [(w.start_ms, w.end_ms) for w in now.words if w.text in ("the", "very", "old")] == [
        (2000, 2128),
        (2128, 2300),
        (2400, 2700),
    ]
    final = heard(SAID)
    later = [replace(w, start_ms=w.start_ms + 500, end_ms=w.end_ms + 500) for w in final.words[6:]]
    paused = replace(final, words=(*final.words[:6], *later))
    now, *_ = edited(paused, "We met Anna Bottin, in the very old house.")
    assert [(w.start_ms, w.end_ms) for w in now.words if w.text in ("the", "very", "old")] == [
        (2000, 2128),
        (2128, 2300),
        (2900, 3200),
    ]


def test_a_sentence_in_a_script_without_blanks_is_edited_by_its_letters():
    final = heard("你好世界。", blank="")
    now, notes, _ = edited(final, "你好新世界。")
    assert [(each.first, each.last, each.text) for each in notes] == [(1, 1, "好新")]
    assert now.text == "你好新世界。"


def test_what_was_edited_before_is_edited_again_and_undone():
    final = heard(SAID)
    session = EditedText([final])
    first, undo_first = session.edit(says("We met Ana Botín, in the old house."))
    second, undo_second = session.edit(says("They met Anna Botín, in the old house."))
    notes = [*first, *second]
    assert as_it_stands(final, *notes)[0].text == "They met Anna Botín, in the old house."
    notes += session.edit(undo_second)[0]
    assert as_it_stands(final, *notes)[0].text == "We met Ana Botín, in the old house."
    notes += session.edit(undo_first)[0]
    assert as_it_stands(final, *notes)[0] == final
    assert session.edits.revision == len(notes)


def test_speakers_are_merged_and_split_at_a_word_and_that_is_undone():
    finals = [heard(SAID, seq=1), heard(SAID, seq=2, speaker=2), heard(SAID, seq=3, speaker=3)]
    session = EditedText(finals)
    merged, undo_merge = session.edit(
        Edits(revision=0, speakers=(Speaking(speaker=1, seq=1, was=2),))
    )
    split, undo_split = session.edit(
        Edits(revision=0, speakers=(Speaking(speaker=4, seq=1, first=5, to_seq=2, last=1),))
    )
    now = as_it_stands(*finals, *merged, *split)
    said = ["".join(str(word.speaker) for word in final.words) for final in now]
    assert said == ["11111444", "44111111", "33333333"]
    late = heard(SAID, seq=4, speaker=2)
    assert {word.speaker for word in as_it_stands(late, *merged)[0].words} == {1}
    back = [*session.edit(undo_split)[0], *session.edit(undo_merge)[0]]
    assert as_it_stands(*finals, *merged, *split, *back) == finals


def test_speakers_are_named_and_that_is_undone():
    text = EditedText([heard(SAID)])
    names = tuple(Naming(speaker=1, name=name) for name in ("Bob", " Ana  Botín "))
    notes, undo = text.edit(Edits(revision=0, names=names))
    assert (text.edits.names, text.edits.revision) == ({1: "Ana Botín"}, 2)
    assert [note.name for note in notes] == ["Bob", "Ana Botín"]
    text.edit(undo)
    assert text.edits.names == {}


def test_a_word_may_have_no_speaker_and_a_correction_keeps_the_one_it_has():
    final = heard(SAID)
    notes = [Attribution(speaker=0, seq=1, first=1, to_seq=1, last=1)]
    notes += [
        Attribution(speaker=2, seq=1, first=2, to_seq=1, last=3),
        Correction(text="Ana Botín", seq=1, first=2, last=3),
    ]
    (now,) = as_it_stands(final, *notes)
    assert [word.speaker or 0 for word in now.words] == [1, 0, 2, 2, 1, 1, 1, 1]


def test_what_is_heard_besides_is_no_edit():
    sound = Sound(label="music", start_ms=0, end_ms=900, prob=0.9)
    text = EditedText([heard(SAID), sound, Correction(text="Ana", seq=1, first=2, last=2)])
    assert text.edits.revision == 1


@pytest.mark.parametrize(
    "wanted",
    [
        says("x", seq=2),
        Edits(revision=0, speakers=(Speaking(speaker=1, seq=2),)),
        Edits(revision=0, speakers=(Speaking(speaker=1, seq=1, first=8),)),
        Edits(revision=0, speakers=(Speaking(speaker=1, seq=1, first=3, to_seq=1, last=2),)),
        Edits(revision=0, speakers=(Speaking(speaker=1, seq=1, to_seq=7),)),
    ],
)
def test_what_a_session_does_not_have_cannot_be_edited(wanted):
    with pytest.raises(ConfigError, match=r"no such words|no final"):
        EditedText([heard(SAID)]).edit(wanted)


def test_words_that_were_misheard_are_learned_but_not_marks_and_sentences():
    final = heard(SAID)
    for meant, learned in (
        ("We met Ana Botín, in the old house.", ["Ana Botín"]),
        ("We met Anna Bottin in the old house!", []),
        ("We met Anna Bottin, in the very old house.", ["very"]),
        ("We met Anna Bottin, in the house.", []),
        ("Nothing of this is what anybody said then.", []),
    ):
        session = EditedText([final])
        notes, _ = session.edit(says(meant))
        assert list(session.learned(notes)) == learned


WORDS = st.lists(st.sampled_from(["a", "b,", "cé", "(d", "e.", "b", "好", "我们"]), max_size=9)


@given(WORDS.filter(bool), st.lists(WORDS, max_size=4))
def test_any_text_becomes_any_other_and_is_undone(said, meant):
    final = heard(" ".join(said))
    by_two = [replace(each, speaker=1 + (i % 3 > 1)) for i, each in enumerate(final.words)]
    final = replace(final, words=tuple(by_two))
    session, notes, undos = EditedText([final]), [], []
    for words in meant:
        text = " ".join(words)
        new, undo = session.edit(says(text))
        notes += new
        undos.append(undo)
        (now,) = as_it_stands(final, *notes)
        assert now.text.split() == text.split()
        assert "".join(word.text for word in now.words) == "".join(words)
        times = [(word.start_ms, word.end_ms) for word in now.words]
        assert times == sorted(times)
    for undo in reversed(undos):
        notes += session.edit(undo)[0]
    assert as_it_stands(final, *notes)[0] == final


def test_a_change_of_speakers_costs_what_it_names_whatever_else_there_is(monkeypatch):
    looked_at = []

    def counted(final, attributions):
        looked_at.append(final.seq)
        return attributed(final, attributions)

    monkeypatch.setattr(edits, "attributed", counted)
    text = EditedText(heard("Yes.", seq=seq) for seq in range(1, 1_001))
    stretches = (Speaking(speaker=2, seq=seq, to_seq=seq + 1) for seq in range(500, 504))
    _, undo = text.edit(Edits(revision=0, speakers=tuple(stretches)))
    assert len(looked_at) <= 4 * 2 * 2
    assert {each.seq for each in undo.speakers} == set(range(500, 505))
