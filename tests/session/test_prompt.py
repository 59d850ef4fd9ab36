"""What the decoder is told of what was said before: only what is worth believing."""

import pytest

from streamd.options import SessionOptions
from streamd.session.prompt import Prompt
from streamd.types import Hypothesis, Suspect, Word
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session

WORDS = [Word(f" w{i}", i, i + 1, 0.9, (i,)) for i in range(5)]
GOOD = Hypothesis()


def told(*hypotheses: Hypothesis, keep: bool = True) -> Prompt:
    prompt = Prompt(64, keep=keep)
    prompt.begin(silence=0)
    for hypothesis in hypotheses:
        prompt.remember(WORDS, hypothesis)
    return prompt


def test_the_newest_tokens_are_told():
    prompt = Prompt(3, keep=False)
    prompt.remember(WORDS, GOOD)
    assert prompt.tokens == (2, 3, 4)
    none = Prompt(0, keep=True)
    none.remember(WORDS, GOOD)
    assert none.tokens == ()


@pytest.mark.parametrize(
    "doubtful", [Hypothesis(suspect=Suspect.LOOP), Hypothesis(temperature=0.6)], ids=["loop", "hot"]
)
def test_a_doubtful_hypothesis_clears_it(doubtful):
    assert told(GOOD, doubtful).tokens == ()
    assert told(GOOD, doubtful, GOOD).tokens == (0, 1, 2, 3, 4)


def test_another_language_clears_what_came_before():
    assert told(GOOD, Hypothesis(language="de")).tokens == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("keep", "silence", "n_kept"), [(True, 150, 5), (True, 151, 0), (False, 10, 0)]
)
def test_a_new_utterance_continues_the_last_only_if_asked_to_and_soon(keep, silence, n_kept):
    prompt = told(GOOD, keep=keep)
    prompt.begin(silence=silence)
    assert len(prompt.tokens) == n_kept


@pytest.mark.parametrize(("quiet", "told"), [(100, True), (300, False)])
def test_the_session_tells_the_last_utterance_if_it_was_not_long_ago(quiet, told):
    session = scripted_session(SessionOptions(keep_context=True))
    recognizer, prompts = ScriptedRecognizer(), []
    utterance = [True] * (5 * WORD)
    for frame in scripted_audio([*utterance, *[False] * quiet, *utterance]):
        session.feed(frame[None])
        while (window := session.next_window()) is not None:
            prompts.append(window.prompt)
            session.accept(window, recognizer.recognize(window))
    assert (len(prompts[-1]) == 5) is told


def test_a_loop_is_not_told_to_the_window_behind_it():
    session = scripted_session(SessionOptions(length=50))
    recognizer, prompts = ScriptedRecognizer(), []
    for frame in scripted_audio([True] * (60 * WORD)):
        session.feed(frame[None])
        if (window := session.next_window()) is not None:
            prompts.append(window.prompt)
            looping = len(prompts) == 20
            hypothesis = (
                Hypothesis(suspect=Suspect.LOOP) if looping else recognizer.recognize(window)
            )
            session.accept(window, hypothesis)
    assert prompts[19] != ()
    assert prompts[20] == ()
    assert prompts[-1] != ()
