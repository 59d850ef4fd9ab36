"""What a listener may rely on, whatever a session hears and whatever the recognizer answers."""

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec import structs

from streamd.events import Event, Final, Partial, TimedWord, Vad, with_lasting_words
from tests.support.fakes import WORD

runs = st.lists(
    st.tuples(st.integers(1, 40).map(lambda n: n * WORD), st.integers(1, 160)),
    min_size=1,
    max_size=6,
)
"""Stretches of speech (whole words) and the silence behind each, in frames."""


def check_transcript(events: Sequence[Event]) -> None:
    """Committed text and words never change, and each partial ends in a final or is taken back.

    Only their times change, and only if the audio of their final has no room for all words.
    """
    seg, rev, committed, shown, words = 1, 0, "", "", ()
    for event in events:
        if isinstance(event, Partial | Final):
            assert event.seg == seg
            assert event.text.startswith(committed)
        if isinstance(event, Partial):
            assert event.rev == rev + 1
            assert event.words[: len(words)] == words
            assert len(committed) <= event.stable <= len(event.text)
            rev, shown, committed = event.rev, event.text, event.text[: event.stable]
            words = tuple(word for word in event.words if word.final)
            assert event.words[: len(words)] == words
        elif isinstance(event, Final):
            assert event.text
            # the mark after a word joins it
            told, known = without_marks(event.words), without_marks(words)
            placed = structs.replace(event, words=(*known, *told[len(known) :]))
            placed = with_lasting_words(placed)
            assert [word.text for word in told] == [word.text for word in placed.words]
            # A word that is nothing but a mark took room that those without it would share.
            assert len(told) < len(event.words) or told == list(placed.words)
            seg, rev, committed, shown, words = seg + 1, 0, "", "", ()
    check_times([event for event in events if isinstance(event, Final)])
    assert shown == "", "the last partial was neither made final nor taken back"


def check_times(finals: Sequence[Final]) -> None:
    """Each word lasts, lies within its final, and begins when the word before has ended.

    Lines of fixed length, as whisper.cpp's, repeat the end of the line before.
    """
    for final in finals:
        at_ms = final.start_ms
        for word in final.words:
            assert at_ms <= word.start_ms < word.end_ms <= final.end_ms
            at_ms = word.end_ms


def without_marks(words: tuple[TimedWord, ...]) -> list[TimedWord]:
    bare = [structs.replace(word, text=word.text.rstrip(".,?!;:。？")) for word in words]
    return [word for word in bare if word.text]


def check_speaking(events: Sequence[Event]) -> None:
    """Speech starts and stops in turn."""
    speaking = [event.speech for event in events if isinstance(event, Vad)]
    assert speaking == [True, False] * (len(speaking) // 2)
