import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.errors import EngineError
from streamd.events import (
    Attribution,
    Correction,
    Eos,
    Event,
    Final,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
)
from streamd.options import CueLayout
from streamd.sinks.formats import FORMATS
from streamd.sinks.writing import FileSink
from streamd.translation.files import TranslatedSink, spread
from streamd.translation.translator import Translator
from tests.support.translating import final, shouting


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_closed = False

    def write(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


def written(events: list[Event]) -> list[Event]:
    kept = Kept()
    sink = TranslatedSink(kept, shouting("en-pt")[0], "pt")
    for event in events:
        sink.write(event)
    sink.close()
    assert kept.is_closed
    return kept.events


def test_whole_sentences_are_written_as_finals_of_the_other_language():
    events = [
        final("When it rains", seq=1),
        final("we stay.", seg=2, seq=2, start_ms=1_500),
        final("the end", seg=3, seq=3, start_ms=9_000),
        Eos(seq=3, reason="end"),
    ]
    *finals, end = written(events)
    assert [each.text for each in finals] == ["pt:WHEN IT RAINS WE STAY.", "pt:THE END"]
    assert [(each.seq, each.language) for each in finals] == [(1, "pt"), (2, "pt")]
    assert isinstance(end, Eos)


def test_what_revises_the_words_of_the_original_is_left_out():
    whose = Attribution(seq=1, first=0, to_seq=1, last=0, speaker=2)
    events = [final("Hi.", seq=1), Correction(text="Ho", seq=1), whose]
    assert [type(each) for each in written(events)] == [Final]


def said(text, speaker, **fields):
    known = final(text, **fields)
    return replace(known, words=tuple(replace(word, speaker=speaker) for word in known.words))


def test_speakers_are_those_of_the_original_and_have_their_names(tmp_path):
    turns = [
        SpeakerTurn(speaker=1, start_ms=0, end_ms=1_400),
        SpeakerTurn(speaker=2, start_ms=1_400, end_ms=9_000),
    ]
    sink = FileSink(tmp_path / "talk.pt.txt", FORMATS["txt"](CueLayout()))
    sink = TranslatedSink(sink, shouting("en-pt")[0], "pt")
    for event in (
        said("It rains.", 1, seq=1),
        said("We stay", 1, seg=2, seq=2, start_ms=1_500),
        SpeakerTurns(start_ms=0, end_ms=9_000, turns=turns),  # while a sentence waits for its end
        SpeakerName(speaker=2, name="Bob"),
        said("here.", 1, seg=3, seq=3, start_ms=2_200),
        Eos(seq=3, reason="end"),
    ):
        sink.write(event)
    sink.close()
    lines = (tmp_path / "talk.pt.txt").read_text().splitlines()
    assert lines == ["Speaker 1: pt:IT RAINS.", "Bob: pt:WE STAY HERE."]


WORDS = st.lists(st.text("abcdé", min_size=1, max_size=12), min_size=1, max_size=20)


@given(WORDS, WORDS, st.lists(st.integers(0, 3_000), min_size=20, max_size=20))
def test_words_are_in_order_and_within_the_sentence(said, translated, pauses):
    known, at_ms = final(" ".join(said)), 0
    timed = []
    for word, pause in zip(known.words, pauses, strict=False):
        moved = at_ms + pause
        timed.append(
            type(word)(text=word.text, start_ms=moved, end_ms=moved + 200, prob=1, final=True)
        )
        at_ms = moved + 200
    source = Final(
        seg=1, start_ms=0, end_ms=at_ms, text=" ".join(said), language="en", words=tuple(timed)
    )
    spread_out = spread(" ".join(translated), source)
    times = [time for word in spread_out for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert times[0] == timed[0].start_ms
    assert times[-1] == timed[-1].end_ms


def test_a_translation_stays_behind_the_pauses_of_who_speaks():
    words = (*final("one two").words, *final("three four", start_ms=5_000).words)
    source = Final(
        seg=1, start_ms=0, end_ms=5_600, text="one two three four", language="en", words=words
    )
    times = [(word.start_ms, word.end_ms) for word in spread("uma dos tries fyra", source)]
    assert times == [(0, 300), (300, 600), (5_000, 5_300), (5_300, 5_600)]


def test_cues_of_a_translation_keep_the_limits_of_cues():
    long = final(" ".join(["word"] * 30) + ".", seq=1)
    (translated,) = written([long])
    form = FORMATS["srt"](CueLayout())
    text = form.append(translated) + form.end(complete=True)
    lines = [line for line in text.splitlines() if line.startswith("pt:") or "WORD" in line]
    assert lines
    assert max(map(len, lines)) <= 42


def test_a_sentence_in_a_language_without_a_model_stays_and_the_others_are_translated(caplog):
    events = [
        final("Guten Tag.", seq=1, language="de"),
        final("Good morning.", seg=2, seq=2, start_ms=3_000),
        final("Ja.", seg=3, seq=3, start_ms=6_000, language="de"),
    ]
    assert [(each.text, each.language) for each in written(events)] == [
        ("Guten Tag.", "de"),
        ("pt:GOOD MORNING.", "pt"),
        ("Ja.", "de"),
    ]
    (record,) = caplog.records
    assert "translate:de-en" in record.getMessage()


def test_a_translator_that_hangs_holds_up_nothing_for_ever():
    may_end = threading.Event()

    def hangs(text):
        may_end.wait()
        return text

    translator = Translator(lambda source, target: hangs, [("en", "pt")])
    sink = TranslatedSink(Kept(), translator, "pt", hangs_s=0.01)
    try:
        with pytest.raises(EngineError, match="takes too long"):
            sink.write(final("Hi.", seq=1))
    finally:
        may_end.set()
