"""What somebody waits for is told once, however captions are cut."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError
from streamd.events import Event, Final, Notice, Partial, Sound, SpeakerName, TimedWord
from streamd.notices import Notices, letters, parse
from tests.support.said import final as final_of

VOCABULARY = ["new", "York", "Zoë", "and", "ann", "Anna's", "doors", "open", "10"]


def word(text: str, at_ms: int, *, final: bool = True, speaker: int | None = None) -> TimedWord:
    who = {} if speaker is None else {"speaker": speaker}
    return TimedWord(text=text, start_ms=at_ms, end_ms=at_ms + 200, prob=1.0, final=final, **who)


def words_of(texts: Sequence[str]) -> list[TimedWord]:
    return [word(text, 400 * i) for i, text in enumerate(texts)]


def partial(words: Sequence[TimedWord], n_final: int, seg: int) -> Partial:
    marked = [word(w.text, w.start_ms, final=i < n_final) for i, w in enumerate(words)]
    text = " ".join(w.text for w in words)
    stable = len(" ".join(w.text for w in words[:n_final]))
    end_ms = words[-1].end_ms if words else 0
    return Partial(
        seg=seg, rev=0, start_ms=0, end_ms=end_ms, text=text, stable=stable, words=tuple(marked)
    )


def final(words: Sequence[TimedWord], seg: int, *, continues: bool = False) -> Final:
    text = " ".join(w.text for w in words)
    times = {"start_ms": words[0].start_ms, "end_ms": words[-1].end_ms}
    return final_of(text, seq=0, seg=seg, words=tuple(words), continues=continues, **times)


@st.composite
def captions(draw: st.DrawFn) -> tuple[list[TimedWord], list[Event]]:
    """Words, and captions of them: any partials, and sentences that end anywhere."""
    words = words_of(draw(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=14)))
    ends = sorted({*draw(st.lists(st.integers(1, len(words)), max_size=3)), len(words)})
    events: list[Event] = []
    begin = n_committed = 0
    for seg, end in enumerate(ends):
        for _ in range(draw(st.integers(0, 4))):
            n_committed = draw(st.integers(max(n_committed, begin), len(words)))
            shown = draw(st.integers(n_committed, len(words)))
            if shown > begin:
                events.append(partial(words[begin:shown], n_committed - begin, seg))
        n_committed = max(n_committed, end)
        events.append(final(words[begin:end], seg, continues=end < len(words)))
        begin = end
    return words, events


def told(events: Sequence[Event], *wanted: str) -> Iterator[Notice]:
    notices = Notices(wanted)
    return (notice for event in events for notice in notices.take(event))


@given(captions())
def test_any_cut_into_captions_tells_each_occurrence_once(made):
    words, events = made
    texts = [letters(each.text) for each in words]
    found = [(notice.wanted, notice.start_ms) for notice in told(events, "New York", "zoe", "Ann")]
    pairs = [w.start_ms for i, w in enumerate(words) if texts[i : i + 2] == ["new", "york"]]
    zoes = [w.start_ms for i, w in enumerate(words) if texts[i] == "zoe"]
    anns = [w.start_ms for i, w in enumerate(words) if texts[i] == "ann"]
    assert sorted(found) == sorted(
        [("New York", at) for at in pairs]
        + [("zoe", at) for at in zoes]
        + [("Ann", at) for at in anns]
    )


def test_a_word_is_told_as_soon_as_it_is_committed_and_not_before():
    words = words_of(["the", "doors", "open"])
    notices = Notices(["doors"])
    assert notices.take(partial(words, 1, 0)) == []
    (notice,) = notices.take(partial(words, 2, 0))
    assert (notice.text, notice.start_ms, notice.end_ms) == ("doors", 400, 600)
    assert notices.take(final(words, 0)) == []


def test_marks_around_a_word_and_its_genitive_are_no_other_word():
    events = [final(words_of(["(Anna's", "“Anna,”", "ANNA", "Annalena"]), 0)]
    assert [notice.text for notice in told(events, "anna")] == ["Anna's", "Anna", "ANNA"]


def test_digits_that_become_one_number_hide_no_later_word():
    said = words_of(["1", "0", "1", "go"])
    number = [word("101", 0), word("go", 1200)]
    events = [partial(said, 3, 0), final(number, 0), partial(words_of(["go"]), 1, 1)]
    assert [notice.start_ms for notice in told(events, "go", "101")] == [0, 1200, 0]


def test_a_phrase_does_not_go_on_after_a_long_pause():
    events = [final([word("new", 0)], 0), final([word("York", 2300)], 1)]
    assert [*told(events, "new york")] == []
    events = [final([word("new", 0)], 0), final([word("York", 2100)], 1)]
    assert len([*told(events, "new york")]) == 1


def test_a_final_without_words_is_searched_by_its_text():
    sent = Final(seg=0, start_ms=100, end_ms=900, text="The doors open.", language="en")
    (notice,) = told([sent], "doors open")
    assert (notice.text, notice.start_ms) == ("doors open", 100)


def test_channels_do_not_complete_each_others_phrases():
    one = final([word("new", 0)], 0)
    other = final([word("York", 300)], 1)
    with_channel = [
        Final(**{**{f: getattr(each, f) for f in each.__struct_fields__}, "channel": number})
        for number, each in enumerate((one, other), 1)
    ]
    assert [*told(with_channel, "new york")] == []


def test_a_named_speaker_is_told_where_they_begin_to_talk():
    said = [word("hello", 0, speaker=2), word("yes", 400, speaker=1), word("so", 800, speaker=1)]
    notices = Notices(["@zoe", "@Bob"])
    notices.take(SpeakerName(speaker=1, name="Zoë"))
    (notice,) = notices.take(final(said, 0))
    assert (notice.wanted, notice.text, notice.start_ms) == ("@zoe", "Zoë", 400)
    assert notices.take(final([word("more", 1200, speaker=1)], 1)) == []
    notices.take(SpeakerName(speaker=2, name="Bob"))
    assert [n.wanted for n in notices.take(final([word("no", 1600, speaker=2)], 2))] == ["@Bob"]


def test_a_sound_is_told_when_it_begins():
    begun = Sound(label="alarm", start_ms=500, end_ms=1000, prob=0.9)
    over = Sound(label="alarm", start_ms=500, end_ms=9000, prob=0.9)
    other = Sound(label="music", start_ms=500, end_ms=1000, prob=0.9)
    again = Sound(label="alarm", start_ms=20_000, end_ms=21_000, prob=0.9)
    found = [*told([begun, other, over, again], "sound:alarm")]
    assert [notice.start_ms for notice in found] == [500, 20_000]


@pytest.mark.parametrize("text", ["", "@", "...", "sound:", "sound:thunder"])
def test_what_cannot_be_heard_is_refused(text):
    with pytest.raises(ConfigError):
        parse(text)


def test_vowel_signs_are_letters_and_accents_are_not():
    assert letters("कु") != letters("क")
    assert letters("Ångström") == letters("angstrom")
