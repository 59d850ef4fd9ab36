"""What a session tells of turns, and how their ends depend on how the speaker sounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.events import Event, Final, Partial, TurnEvent, TurnState
from streamd.options import EndpointOptions, EndpointRule
from streamd.types import Hypothesis, TurnAnswer, TurnQuestion, Window, ms_from_frames
from tests.support.fakes import WORD, ScriptedRecognizer, played, scripted_audio, scripted_session

SPEECH = [True] * (5 * WORD) + [False] * 40 + [True] * (5 * WORD) + [False] * 100


class Judging(ScriptedRecognizer):
    """Tells how probable it is that the speaker is done in the first pause and in the second.

    `asked` are the frames that it heard each time.
    """

    def __init__(self, *probs: float) -> None:
        super().__init__()
        self._probs, self.asked = probs, []

    def recognize(self, window: Window) -> Hypothesis:
        found = super().recognize(window)
        if (question := window.asked(TurnQuestion)) is None:
            return found
        self.asked.append((question.since, window.end))
        return found.answered(TurnAnswer(self._probs[window.end > 6 * WORD]))


def listen(recognizer: ScriptedRecognizer, rule: EndpointRule, delay: int = 0) -> list[Event]:
    """The events, if each window takes so many frames."""
    session = scripted_session(endpoint=EndpointOptions(rule=rule))
    return played(session, recognizer, scripted_audio(SPEECH), [delay])[0]


def turns(events: list[Event]) -> list[tuple[str, int, float]]:
    return [(each.state, each.t_ms, each.prob) for each in events if isinstance(each, TurnEvent)]


def finals(events: list[Event]) -> list[str]:
    return [each.text for each in events if isinstance(each, Final)]


def test_who_does_not_sound_done_may_pause_for_longer():
    recognizer = Judging(0.1, 0.9)
    events = listen(recognizer, "smart")
    first, second = ms_from_frames(5 * WORD), ms_from_frames(10 * WORD + 40)
    tail = EndpointOptions().trailing_silence
    assert turns(events) == [
        (TurnState.PAUSED, first, 0.1),
        (TurnState.RESUMED, first + 800, 0.1),
        (TurnState.PAUSED, second, 0.9),
        (TurnState.ENDED, second + ms_from_frames(tail), 0.9),
    ]
    assert len(finals(events)) == 1
    assert recognizer.asked == [(0, 5 * WORD + tail), (0, 10 * WORD + 40 + tail)]
    paused = next(n for n, each in enumerate(events) if isinstance(each, TurnEvent))
    shown = [each.text for each in events[:paused] if isinstance(each, Partial)]
    assert shown[-1] == "w0 w1 w2 w3 w4", "a listener has all words when it hears of the pause"


def test_who_sounds_done_is_done_after_the_usual_pause():
    events = listen(Judging(0.9, 0.9), "smart")
    assert [state for state, *_ in turns(events)] == [TurnState.PAUSED, TurnState.ENDED] * 2
    assert finals(events) == finals(listen(ScriptedRecognizer(), "silence"))


def test_by_silence_alone_nobody_asks_and_nothing_is_told():
    recognizer = Judging()  # it would fail
    assert turns(listen(recognizer, "silence")) == []
    assert recognizer.asked == []


def test_a_recognizer_that_cannot_tell_changes_nothing():
    events = listen(ScriptedRecognizer(), "smart")
    assert turns(events) == []
    assert finals(events) == finals(listen(ScriptedRecognizer(), "silence"))


@settings(max_examples=20)
@given(st.integers(0, 60), st.floats(0, 1), st.floats(0, 1))
def test_utterances_do_not_depend_on_the_engines_speed(delay, first, second):
    at_once, late = (finals(listen(Judging(first, second), "smart", n)) for n in (0, delay))
    assert late == at_once


@pytest.mark.parametrize("delay", [0, 12, 25, 70])
def test_each_pause_is_resumed_or_ended(delay):
    states = [state for state, *_ in turns(listen(Judging(0.1, 0.9), "smart", delay))]
    assert states.count(TurnState.PAUSED) == len(states) / 2
    assert states[::2] == [TurnState.PAUSED] * (len(states) // 2)
