"""Sound that says nothing costs no more than speech, and speech loses nothing for it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.session.budget import Budget
from streamd.session.session import AGAIN_RATE, PARTIALS_RATE
from streamd.types import N_AUDIO_CTX, Hypothesis, Suspect, Window, Word, Work
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    played,
    scripted_audio,
    scripted_session,
    speech_of,
)

STEP = 25


class Costly(ScriptedRecognizer):
    """Decodes as much of each window, and again as long as it may."""

    def __init__(self, cost: int = 0, again: int = 0) -> None:
        super().__init__()
        self._cost, self._again = cost, again
        self.cost = self.cost_again = 0

    def recognize(self, window: Window) -> Hypothesis:
        again = self._again if window.last and window.retry.budget > 0 else 0
        self.cost += 0 if window.last else self._cost
        self.cost_again += again
        hypothesis = super().recognize(window)
        return replace(hypothesis, work=Work(self._cost + again, again))


@given(
    spent=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 2000)), max_size=20),
    rate=st.sampled_from([0.5, 2.0]),
)
def test_a_budget_is_refilled_by_audio_and_knows_when_it_is_repaid(spent, rate):
    budget, now, in_all = Budget(rate), 0, 0
    for frames, cost in spent:
        now += frames
        before = budget.left(now)
        assert before <= N_AUDIO_CTX
        budget.spend(now, cost)
        in_all += cost
        assert budget.left(now) == before - cost
        assert in_all <= N_AUDIO_CTX + now * rate - budget.left(now)
        assert budget.repaid >= now or budget.left(now) >= 0
        if budget.left(now) < 0:
            assert abs(budget.left(budget.repaid)) < 1e-6


def test_partials_cost_no_more_than_the_audio_warrants():
    frames = scripted_audio(speech_of([(100 * WORD, 60)] * 5))
    recognizer = Costly(cost=1000)
    played(scripted_session(), recognizer, frames, [1])
    assert recognizer.cost <= N_AUDIO_CTX + PARTIALS_RATE * len(frames) + 1000


def test_finals_are_decoded_again_no_more_than_the_audio_warrants():
    frames = scripted_audio(speech_of([(10 * WORD, 60)] * 60))
    recognizer = Costly(again=400)
    played(scripted_session(), recognizer, frames, [1])
    assert N_AUDIO_CTX < recognizer.cost_again <= N_AUDIO_CTX + AGAIN_RATE * len(frames) + 400


@given(
    stretches=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 120)), min_size=1, max_size=4)
)
def test_what_costs_no_more_than_speech_has_every_window(stretches):
    """As much audio as was added, and the little more that a decoder may need."""
    speech = speech_of([(n * WORD, quiet) for n, quiet in stretches])
    runs = []
    for cost in (0, 2 * STEP):
        events, windows = played(scripted_session(), Costly(cost), scripted_audio(speech), [1])
        runs.append((events, [(window.start, window.end) for window in windows]))
    assert runs[0] == runs[1]


@given(
    stretches=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 120)), min_size=1, max_size=4),
    delays=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    cost=st.integers(0, 3000),
)
def test_finals_do_not_depend_on_what_partials_cost(stretches, delays, cost):
    frames = scripted_audio(speech_of([(n * WORD, quiet) for n, quiet in stretches]))

    def finals(recognizer: Costly, delays: list[int]) -> list[tuple[str, int, int]]:
        events, _ = played(scripted_session(), recognizer, frames, delays)
        return [(e.text, e.start_ms, e.end_ms) for e in events if isinstance(e, Final)]

    assert finals(Costly(cost), delays) == finals(Costly(), [1])


@pytest.mark.parametrize("again", [0, 100_000])
def test_an_utterance_is_read_on_only_as_long_as_there_is_a_budget(again):
    """The recognizer stops after the first new word, each time."""

    class Brief(Costly):
        n_last = 0

        def recognize(self, window: Window) -> Hypothesis:
            self.n_last += window.last
            hypothesis = super().recognize(window)
            if not window.last:
                return replace(hypothesis, words=(), tokens=(), suspect=Suspect.NO_SPEECH)
            words: tuple[Word, ...] = hypothesis.words[:3]
            return replace(
                hypothesis, words=words, tokens=tuple(t for w in words for t in w.tokens)
            )

    recognizer = Brief(again=again)
    played(scripted_session(), recognizer, scripted_audio(speech_of([(60 * WORD, 60)])), [1])
    assert recognizer.n_last == 1 if again else recognizer.n_last > 3
