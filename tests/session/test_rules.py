"""What a hypothesis goes through before it counts, and why words were lost."""

from dataclasses import replace

import numpy as np
import pytest

from streamd.session.rules import RULES, TextFacts, apply, notes
from streamd.types import Hypothesis, Suspect, TextOptions, Window, Word, text_of
from tests.support.fakes import ScriptedRecognizer, drain, scripted_audio, scripted_session

WINDOW = Window(100, 300, np.zeros(0, np.float32))
FACTS = TextFacts(
    window=WINDOW,
    final_until=0,
    start=100,
    before=None,
    follows_stop=None,
    was_probable=True,
    voiced_share=lambda start, end: 1.0,
)
LAST = replace(WINDOW, last=True)
ENDED = replace(FACTS, window=LAST, was_probable=False)


def saying(*texts: str, start: int = 150, **known) -> Hypothesis:
    words = (
        Word(text, start + 10 * i, start + 10 * i + 10, 0.9, (i,)) for i, text in enumerate(texts)
    )
    return Hypothesis(words=tuple(words), **known)


@pytest.mark.parametrize(
    ("rule", "hypothesis", "facts", "left", "why"),
    [
        ("not final", saying(" on", " goes"), replace(FACTS, final_until=160), "goes", ""),
        ("not only marks", saying("."), FACTS, "", "no letter and no digit"),
        ("joined numbers", saying(" 1", " 2", " 7"), FACTS, "127", ""),
        (
            "not famous",
            saying(" Thank", " you."),
            replace(FACTS, voiced_share=lambda start, end: 0.1),
            "",
            "Whisper writes this for sounds without speech",
        ),
        (
            "probable",
            saying(" mumble", avg_logprob=-1.2),
            ENDED,
            "",
            "no text of the utterance was probable",
        ),
        (
            "without closing mark",
            saying(",", " and"),
            replace(FACTS, follows_stop=False),
            "and",
            "",
        ),
        ("without closing mark", saying(" and"), replace(FACTS, follows_stop=True), "And", ""),
    ],
)
def test_a_rule_that_changes_the_text_says_so(rule, hypothesis, facts, left, why):
    ruled = apply(hypothesis, facts)
    assert text_of(ruled.hypothesis.words) == left
    assert notes(ruled) == [(rule, text_of(hypothesis.words), left, why)]


def test_a_text_that_breaks_no_rule_stays():
    hypothesis = saying(" all", " is", " well.")
    ruled = apply(hypothesis, FACTS)
    assert ruled.hypothesis == hypothesis
    assert notes(ruled) == []
    assert [step.rule for step in ruled.steps] == list(RULES)


@pytest.mark.parametrize(
    ("hypothesis", "facts"),
    [
        (saying(" clear", avg_logprob=-0.9), ENDED),
        (saying(" was", avg_logprob=-1.2), replace(ENDED, was_probable=True)),
        (
            saying(" translated", avg_logprob=-1.2),
            replace(ENDED, window=replace(LAST, options=TextOptions(task="translate"))),
        ),
        (saying(" partial", avg_logprob=-1.2), replace(FACTS, was_probable=False)),
    ],
)
def test_a_final_needs_one_probable_text(hypothesis, facts):
    assert apply(hypothesis, facts).hypothesis == hypothesis


def test_what_was_never_probable_is_void():
    ruled = apply(saying(" la", " la", avg_logprob=-0.1, suspect=Suspect.LOOP), ENDED)
    assert ruled.hypothesis == Hypothesis(suspect=Suspect.NO_SPEECH)


def test_words_lie_in_the_window_and_in_order():
    words = tuple(Word(f" w{i}", *at, 0.9, (i,)) for i, at in enumerate([(0, 120), (90, 110)]))
    placed = apply(Hypothesis(words=words), FACTS).hypothesis.words
    assert [(word.start, word.end) for word in placed] == [(100, 120), (120, 121)]


def test_a_session_tells_why_words_were_lost():
    class Unsure(ScriptedRecognizer):
        def recognize(self, window: Window) -> Hypothesis:
            return replace(super().recognize(window), avg_logprob=-1.2)

    told: list[str] = []
    session = scripted_session(report=lambda note: told.append(str(note)))
    session.feed(scripted_audio([False] * 100 + [True] * 40))
    drain(session, Unsure(), [])
    assert told == ["1500-2500 ms, not committed: 'w8 ?125' (only a guess)"]
    session.flush()
    drain(session, Unsure(), [])
    why = "no text of the utterance was probable"
    assert told[1:] == [f"1500-2800 ms, probable: 'w8 w9 w10 w11' ({why})"]
