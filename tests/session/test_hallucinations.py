"""Phrases from the ends of films are believed only where somebody spoke."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from streamd.events import Final
from streamd.language import FAMOUS, is_famous
from streamd.session.rules import Reason, TextFacts, not_famous
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


def believable(hypothesis: Hypothesis, voiced_share: Callable[[int, int], float]) -> Hypothesis:
    """The hypothesis after the rule about what Whisper writes for sounds without speech."""
    window = Window(0, 1000, np.zeros(0, np.float32))
    found = not_famous(hypothesis, TextFacts(window, 0, 0, None, None, False, voiced_share))
    return found.without_text(hypothesis) if isinstance(found, Reason) else found


@pytest.mark.parametrize("phrase", sorted(FAMOUS))
def test_every_phrase_is_recognised_where_nobody_spoke(phrase):
    written = saying(f"{phrase.capitalize()}!", 0, 200)
    assert believable(written, lambda start, end: 0.1).words == ()
    assert believable(written, lambda start, end: 0.1).suspect is Suspect.HALLUCINATION
    assert believable(written, lambda start, end: 0.2) is written


@pytest.mark.parametrize(
    ("text", "famous"),
    [
        (" you", True),
        (" Thank you. Thank you.", True),
        (" Thank you so much,", True),
        (" ¡Gracias!", True),
        (" Merci d'avoir regardé cette vidéo.", True),
        ("ご視聴ありがとうございました。", True),
        (" Thank you for asking.", False),
        (" Your Majesty", False),
        ("", False),
        (" ...", False),
    ],
)
def test_a_phrase_is_one_however_it_is_written(text, famous):
    assert is_famous(text) is famous


def test_a_phrase_needs_more_than_voices_where_the_model_doubts_that_there_is_speech():
    """Music, for instance, may be voiced."""
    thanks = saying("Thank you.", 0, 50)
    assert believable(thanks, lambda start, end: 1.0) is thanks
    doubted = replace(thanks, no_speech_prob=0.4)
    assert believable(doubted, lambda start, end: 1.0).words == ()
    asked = replace(saying("Who are you?", 0, 50), no_speech_prob=0.4)
    assert believable(asked, lambda start, end: 1.0) is asked


def test_words_of_single_characters_make_a_phrase():
    characters = saying(" ".join("ご視聴ありがとうございました"), 0, 140)
    words = tuple(replace(word, text=word.text.strip()) for word in characters.words)
    written = replace(characters, words=words)
    assert believable(written, lambda start, end: 0.1).words == ()


def test_other_words_and_no_words_are_left_alone():
    for hypothesis in (saying("thank her", 0, 50), Hypothesis()):
        assert believable(hypothesis, lambda start, end: 0.0) is hypothesis


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
