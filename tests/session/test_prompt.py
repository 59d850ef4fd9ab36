"""The prompt is the text before a window, as far as it can be believed."""

import pytest

from streamd.events import Final
from streamd.options import EndpointOptions, SessionOptions
from streamd.prompt import Prompt
from streamd.types import Hypothesis, Suspect
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    fed,
    scripted_audio,
    scripted_session,
)

TOKENS = (0, 1, 2, 3, 4)
GOOD = {"language": "en", "temperature": 0.0}


def prompt_after(*windows: dict) -> tuple[int, ...]:
    prompt = Prompt(64)
    for window in windows:
        prompt.remember(TOKENS, **(GOOD | window))
    return prompt.tokens


def test_the_newest_tokens_are_kept():
    for longest, kept in ((3, (2, 3, 4)), (0, ())):
        prompt = Prompt(longest)
        prompt.remember(TOKENS, **GOOD)
        assert prompt.tokens == kept


def test_an_initial_prompt_is_there_from_the_beginning():
    prompt = Prompt(7, initial=(8, 9))
    assert prompt.tokens == (8, 9)
    prompt.remember(TOKENS, **GOOD)
    prompt.remember((5,), **GOOD)
    assert prompt.tokens == (9, 0, 1, 2, 3, 4, 5)
    prompt.forget()
    assert prompt.tokens == ()


@pytest.mark.parametrize("window", [{"doubtful": True}, {"temperature": 0.6}])
def test_a_doubtful_text_clears_it(window):
    assert prompt_after({}, window) == ()
    assert prompt_after({}, window, {}) == TOKENS


def test_another_language_clears_what_came_before():
    assert prompt_after({}, {"language": "de"}) == TOKENS


def test_an_utterance_after_a_pause_has_no_prompt():
    utterance, windows = [True] * (5 * WORD), []
    audio = scripted_audio([*utterance, *[False] * 140, *utterance])
    fed(scripted_session(), ScriptedRecognizer(), audio, windows)
    assert windows[-1].prompt == ()


@pytest.mark.parametrize("most", [18, 21])
def test_the_prompt_completes_the_committed_tokens_inside_the_window(most):
    session = scripted_session(SessionOptions(length=150, context_tokens=most))
    fed(session, ScriptedRecognizer(), scripted_audio([True] * (60 * WORD)), windows := [])
    prompted = [window for window in windows if window.prompt]
    assert all(len(window.prompt) + len(window.prefix) == most for window in prompted)
    assert len({len(window.prefix) for window in prompted}) > 2
    # the newest before the window
    assert all(window.prompt[-1] == window.prefix[0] - 1 for window in prompted if window.prefix)
    full = [window for window in windows if not window.prompt and window.start > 0]
    assert all(len(window.prefix) >= most for window in full)


def test_a_loop_is_not_the_prompt_of_the_next_window():
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


def test_other_options_apply_to_the_next_window_and_to_the_next_utterance():
    session = scripted_session(SessionOptions(prompt="Bees."))
    changed = scripted_session(SessionOptions(prompt="Wasps."), EndpointOptions(plain=45))
    recognizer, windows, finals = ScriptedRecognizer(), [], []
    speech = [True] * (8 * WORD) + [False] * 40 + [True] * (4 * WORD) + [False] * 60
    for n, frame in enumerate(scripted_audio(speech)):
        if n == 3 * WORD:
            session.adopt(changed)
        events = session.feed(frame[None])
        while (window := session.next_window()) is not None:
            windows.append((n, window))
            events += session.accept(window, recognizer.recognize(window))
        finals += [n for event in events if isinstance(event, Final)]
    assert {window.options.initial_prompt for n, window in windows if n < 3 * WORD} == {"Bees."}
    assert {window.options.initial_prompt for n, window in windows if n >= 3 * WORD} == {"Wasps."}
    ends = [8 * WORD, 12 * WORD + 40]
    assert [n - end + 1 for n, end in zip(finals, ends, strict=True)] == [30, 45]
