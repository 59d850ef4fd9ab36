"""The encoder context of a stream: longer when the short one failed of late, and shorter again."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.session.context import BUCKETS, CLEAN, FAILURES, WINDOWS, ContextFloor
from streamd.types import Hypothesis, Window
from tests.support.fakes import ScriptedRecognizer, drain, scripted_audio, scripted_session

NOTHING = np.zeros(0, np.float32)
STEP, LENGTH = 25, 250


def window(n: int) -> Window:
    """Window n of somebody who never stops."""
    return Window(n * STEP, n * STEP + LENGTH, NOTHING)


def after(*failed: int) -> ContextFloor:
    floor = ContextFloor()
    for n, positions in enumerate(failed):
        floor.learn(window(n), Hypothesis(failed_ctx=positions))
    return floor


def test_one_failure_changes_nothing():
    assert after(0, 384, *[0] * WINDOWS).positions == 0


def test_failures_far_apart_change_nothing():
    assert after(384, *[0] * (WINDOWS - 1), 384).positions == 0


@pytest.mark.parametrize(
    ("failed", "positions"),
    [(192, 384), (320, 384), (384, 512), (448, 512), (512, 768), (704, 768), (768, 1500)],
)
def test_the_floor_rises_beyond_what_failed(failed, positions):
    assert after(failed, 0, failed).positions == positions
    assert after(128, failed).positions == positions


def test_it_rises_bucket_by_bucket_and_each_needs_evidence_of_its_own():
    assert after(384, 384, 512).positions == 512
    assert after(384, 384, 512, 512).positions == 768
    assert after(384, 384, 512, 512, 768, 768).positions == 1500


def test_it_falls_by_a_bucket_after_a_minute_without_failures():
    floor, told, n_minute = after(384, 384, 512, 512), [], CLEAN // STEP
    for n in range(4, 4 + 5 * n_minute):
        floor.learn(window(n), Hypothesis())
        told.append(floor.positions)
    assert told[: n_minute - 1] == [768] * (n_minute - 1)
    assert told[n_minute - 1 : 2 * n_minute - 1] == [512] * n_minute
    assert told[2 * n_minute - 1 : 3 * n_minute - 1] == [384] * n_minute
    assert set(told[3 * n_minute - 1 :]) == {0}


def test_silence_is_no_evidence():
    """Only what was heard counts: windows an hour apart say no more than windows in a row."""
    floor = after(384, 384)
    for n in range(1, 40):
        at = n * 180_000
        floor.learn(Window(at, at + 50, NOTHING), Hypothesis())
    assert floor.positions == 512


def test_a_failure_begins_the_minute_anew():
    floor = after(384, 384)
    for n in range(2, 2 + 10 * (CLEAN // STEP)):
        failed = 512 if n % (CLEAN // STEP) == 0 else 0  # one a minute: not enough to rise
        floor.learn(window(n), Hypothesis(failed_ctx=failed))
        assert floor.positions == 512


@given(st.lists(st.sampled_from([0, 0, 0, 0, 192, 384, 640, 768]), max_size=400))
def test_it_moves_by_buckets_and_only_for_a_reason(failed):
    floor, recent = ContextFloor(), []
    for n, positions in enumerate(failed):
        before = floor.positions
        floor.learn(window(n), Hypothesis(failed_ctx=positions))
        recent.append(positions)
        assert floor.positions in (0, *BUCKETS)
        if floor.positions > before:
            assert sum(p > 0 for p in recent[-WINDOWS:]) >= FAILURES
            assert floor.positions > max(recent[-WINDOWS:]) or floor.positions == BUCKETS[-1]
        if floor.positions < before:
            assert not any(recent[-((CLEAN - LENGTH) // STEP) :])


class Confused(ScriptedRecognizer):
    """Needs more positions than it is given, like a short context for a voice that it cannot bear.

    `needs`: positions that are enough.
    """

    def __init__(self, needs: int) -> None:
        super().__init__()
        self.needs = needs
        self.given: list[int] = []

    def recognize(self, window: Window) -> Hypothesis:
        positions = max(384, window.min_ctx)
        self.given.append(positions)
        failed = positions if positions < self.needs else 0
        return replace(super().recognize(window), failed_ctx=failed)


def test_a_session_asks_for_what_its_windows_need_and_no_other_session_does():
    session, other = scripted_session(), scripted_session()
    hard, easy = Confused(needs=600), Confused(needs=384)
    for frame in scripted_audio([True] * 1000):
        session.feed(frame[None])
        drain(session, hard, [])
        other.feed(frame[None])
        drain(other, easy, [])
    assert hard.given[:4] == [384, 384, 512, 512]
    assert set(hard.given[4:]) == {768}
    assert set(easy.given) == {384}
