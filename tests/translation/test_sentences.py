from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.events import Eos, Event
from streamd.translation.sentences import MOST_WAITING, Sentences, SentenceSoFar
from tests.support.translating import final, partial


def told(events: list[Event], language: str = "en") -> list[tuple[str, bool]]:
    sentences = Sentences(language)
    return [
        (each.said.text, each.is_complete) for event in events for each in sentences.take(event)
    ]


def complete(events: list[Event]) -> list[SentenceSoFar]:
    sentences = Sentences("en")
    every = [each for event in events for each in sentences.take(event)]
    return [each for each in every if each.is_complete]


def test_a_final_that_ends_a_sentence_is_complete_at_once():
    assert told([final("Turn on the light.")]) == [("Turn on the light.", True)]


def test_a_final_that_does_not_is_shown_and_joined_with_the_next():
    events = [
        final("When it rains", seq=1),
        final("we stay at home.", seg=2, seq=2, start_ms=1_500),
    ]
    assert told(events) == [
        ("When it rains", False),
        ("When it rains we stay at home.", True),
    ]
    (whole,) = complete(events)
    assert (whole.said.seq, whole.last, whole.said.seg) == (1, 2, 1)


def test_after_a_long_pause_a_sentence_is_over_without_a_full_stop():
    events = [final("the end", seq=1), final("Next.", seg=2, seq=2, start_ms=9_000)]
    assert told(events) == [("the end", False), ("the end", True), ("Next.", True)]


def test_the_end_of_the_session_ends_a_sentence():
    events = [final("the end", seq=1), Eos(seq=1, reason="end")]
    assert told(events) == [("the end", False), ("the end", True)]


def test_what_is_committed_of_a_sentence_comes_at_the_end_of_a_clause():
    events = [
        partial("When it rains", 2),
        partial("When it rains, we", 3),  # the comma may still go
        partial("When it rains, we stay", 4),
    ]
    assert told(events[:2]) == []
    assert told(events) == [("When it rains,", False)]


def test_and_without_marks_after_some_words():
    text = " ".join(f"w{n}" for n in range(20))
    given = [told([partial(text, n) for n in range(most + 1)]) for most in range(20)]
    assert [len(each) for each in given] == [n // MOST_WAITING for n in range(20)]


def test_the_clauses_of_a_sentence_are_joined_with_its_finals():
    events = [
        final("When it rains", seq=1),
        partial("we stay here, or go", 4, seg=2, start_ms=1_500),
        final("we stay here, or go.", seg=2, seq=2, start_ms=1_500),
    ]
    assert told(events) == [
        ("When it rains", False),
        ("When it rains we stay here,", False),
        ("When it rains we stay here, or go.", True),
    ]


def test_nothing_is_said_of_a_partial_whose_language_is_not_known():
    events = [partial("one two three four five six seven", 7), final("One two.")]
    assert told(events, language="") == [("One two.", True)]


def test_captions_that_whisper_translates_are_written_in_another_language_than_is_spoken():
    sentences = Sentences("de", written="en")
    events = [partial("when it rains, we", 4), final("When it rains, we stay.", language="de")]
    said = [each.said.language for event in events for each in sentences.take(event)]
    assert said == ["en", "en"]


def test_channels_do_not_mix():
    events = [
        final("Left begins", seg=1, seq=1, channel=1),
        final("Right begins", seg=1, seq=2, channel=2, start_ms=300),
        final("and ends.", seg=2, seq=3, channel=1, start_ms=900),
        final("and ends.", seg=2, seq=4, channel=2, start_ms=1_200),
    ]
    whole = complete(events)
    assert [each.said.text for each in whole] == ["Left begins and ends.", "Right begins and ends."]
    assert [(each.said.seq, each.last) for each in whole] == [(1, 3), (2, 4)]


TEXTS = st.lists(st.sampled_from(["so", "yes,", "right.", "a b", "c?", "one, two"]), min_size=1)
PAUSES = st.lists(st.integers(0, 4_000), min_size=40, max_size=40)


@given(TEXTS, PAUSES)
def test_every_final_is_in_exactly_one_complete_sentence_in_order(texts, pauses):
    events: list[Event] = []
    at_ms = 0
    for seq, (text, pause) in enumerate(zip(texts, pauses, strict=False), 1):
        event = final(text, seg=seq, seq=seq, start_ms=at_ms)
        n_words = len(text.split())
        committed = (partial(text, n, seg=seq, start_ms=at_ms) for n in range(n_words + 1))
        events += [*committed, event]
        at_ms = event.end_ms + pause
    n_finals = sum(1 for _ in zip(texts, pauses, strict=False))
    whole = complete([*events, Eos(seq=n_finals, reason="end")])
    assert [seq for each in whole for seq in range(each.said.seq, each.last + 1)] == [
        *range(1, n_finals + 1)
    ]
    said = " ".join(text for text, _ in zip(texts, pauses, strict=False))
    assert " ".join(each.said.text for each in whole) == said


@given(TEXTS)
def test_a_sentence_only_grows_until_it_is_complete(texts):
    """Each revision begins with the words of the one before: a reader's line is only continued."""
    sentences, before = Sentences("en"), ""
    for seq, text in enumerate(texts, 1):
        begin = 400 * seq
        spoken = [partial(text, n, seg=seq, start_ms=begin) for n in range(len(text.split()) + 1)]
        for event in (*spoken, replace(final(text, seg=seq, seq=seq, start_ms=begin))):
            for each in sentences.take(event):
                assert each.said.text.startswith(before)
                before = "" if each.is_complete else each.said.text
