"""Phrases from the ends of films are believed only where somebody spoke."""

from dataclasses import replace

import pytest

from streamd.events import Final
from streamd.session.segment import HALLUCINATIONS, believable
from streamd.types import Hypothesis, Suspect, Window, Word
from tests.support.fakes import WORD, ScriptedRecognizer, drain, scripted_audio, scripted_session


def saying(text: str, start: int, end: int) -> Hypothesis:
    each = text.split()
    step = (end - start) // len(each)
    words = tuple(
        Word(f" {word}", start + i * step, start + (i + 1) * step, 0.9, (i,))
        for i, word in enumerate(each)
    )
    return Hypothesis(words=words, tokens=tuple(range(len(each))))


@pytest.mark.parametrize("phrase", sorted(HALLUCINATIONS))
def test_every_phrase_is_recognised_where_nobody_spoke(phrase):
    written = saying(f"{phrase.capitalize()}!", 0, 200)
    assert believable(written, lambda start, end: 0.1).words == ()
    assert believable(written, lambda start, end: 0.1).suspect is Suspect.HALLUCINATION
    assert believable(written, lambda start, end: 0.2) is written


def test_other_words_and_no_words_are_left_alone():
    for hypothesis in (saying("thank you", 0, 50), Hypothesis()):
        assert believable(hypothesis, lambda start, end: 0.0) is hypothesis


def test_suspected_words_are_dropped_only_where_nobody_spoke():
    invented = replace(saying("ab cd", 0, 50), suspect=Suspect.HALLUCINATION)
    dropped = believable(invented, lambda start, end: 0.1)
    assert (dropped.words, dropped.tokens, dropped.suspect) == ((), (), Suspect.HALLUCINATION)
    believed = believable(invented, lambda start, end: 0.2)
    assert (believed.words, believed.suspect) == (invented.words, None)
    loop = replace(invented, suspect=Suspect.LOOP)
    assert believable(loop, lambda start, end: 0.0) is loop


@pytest.mark.parametrize("spoken", [True, False])
def test_in_a_session(spoken):
    """A click opens the gate; the recognizer invents words in the silence around it."""

    class Hallucinator(ScriptedRecognizer):
        def recognize(self, window: Window) -> Hypothesis:
            return saying("Thank you for watching!", window.start, window.end)

    session = scripted_session()
    speech = [False] * 100 + [True] * (5 * WORD if spoken else 2) + [False] * 150
    events = session.feed(scripted_audio(speech)) + drain(session, Hallucinator(), [])
    events += session.flush() + drain(session, Hallucinator(), [])
    finals = [event.text for event in events if isinstance(event, Final)]
    assert finals == (["Thank you for watching!"] if spoken else [])
