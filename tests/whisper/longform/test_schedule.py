"""Readings at once: what is computed when, and that it does not depend on how long it takes."""

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import EngineError
from streamd.system.calls import in_thread
from streamd.whisper.engine import Pass
from streamd.whisper.longform.schedule import EncoderPass, Reading, TranscribedWindow, read_in_order

N_MOST = 4


class Features:
    """Of a window, its number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Together:
    """Notes the windows of each pass; without delays, `begin` computes when it is waited for."""

    def __init__(self, delays_s: Sequence[float] | None = None) -> None:
        self.passes: list[list[int]] = []
        self.begun: list[int] = []
        self.here: list[int] = []
        self._delays_s, self._other, self._never = delays_s, threading.Lock(), threading.Event()

    def run(self, passes: Sequence[Pass]) -> list[int]:
        self.passes.append([each.decoder.number for each in passes])
        return [each.decoder.number for each in passes]

    def encode_alone(self, mel: int) -> Features:
        self.here.append(mel)
        return Features(mel)

    def begin(self, mel: Callable[[], int]) -> Callable[[], Features]:
        number = mel()
        self.begun.append(number)
        if self._delays_s is None:
            return lambda: Features(number)
        delay_s = self._delays_s[number % len(self._delays_s)]

        def encode() -> Features:
            with self._other:
                self._never.wait(delay_s)
                return Features(number)

        return in_thread(encode).result


def reading(number: int, windows: Sequence[tuple[int, int]]) -> Reading:
    """Windows of so many columns and passes; each is encoded, decoded, and told."""
    for at, (n_columns, n_passes) in enumerate(windows):
        yield (asked := EncoderPass(lambda at=at: 10 * number + at, n_columns))
        features = asked.take()
        for _ in range(n_passes):
            answer = yield Pass(features, *[None] * 5)
            assert answer == features.number
        yield TranscribedWindow(((number, at),), 1000 * number + at)


WINDOWS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 9)), max_size=3)


@given(
    st.lists(WINDOWS, max_size=12), st.lists(st.sampled_from([0.0, 0.001]), min_size=1, max_size=5)
)
def test_what_runs_together_does_not_depend_on_how_long_an_encoding_takes(clips, delays_s):
    at_once, late = Together(), Together(delays_s)
    for together in (at_once, late):
        readings = (reading(i, clip) for i, clip in enumerate(clips))
        windows = list(read_in_order(readings, together, N_MOST))
        told = [number for window in windows for number in window.segments]
        assert told == [(i, at) for i, clip in enumerate(clips) for at in range(len(clip))]
        reached = [window.reached_ms for window in windows]
        assert reached == sorted(reached)
    assert late.passes == at_once.passes
    assert (late.begun, late.here) == (at_once.begun, at_once.here)


@pytest.mark.parametrize("n_clips", [1, 3, 40])
def test_windows_are_few_at_a_time_and_most_are_encoded_beside_the_passes(n_clips):
    together, n_running = Together(), []

    def counted(number: int) -> Reading:
        n_running.append(number)
        yield from reading(number, [(1900, 20)])
        n_running.remove(number)

    for _ in read_in_order((counted(i) for i in range(n_clips)), together, N_MOST):
        assert len(n_running) <= N_MOST
    sizes = [len(each) for each in together.passes]
    assert max(sizes) == min(n_clips, N_MOST)
    assert sorted([*together.begun, *together.here]) == [10 * i for i in range(n_clips)]
    if n_clips == 40:
        assert len(together.begun) > 3 * len(together.here)
        assert sum(sizes) / len(sizes) > N_MOST / 2


def test_an_error_of_the_other_thread_is_raised_by_the_window_that_needs_it():
    class Failing(Together):
        def begin(self, mel):
            def fail() -> Features:
                raise EngineError("no memory")

            return in_thread(fail).result

    readings = (reading(i, [(1900, 3)]) for i in range(3))
    with pytest.raises(EngineError, match="no memory"):
        list(read_in_order(readings, Failing(), N_MOST))
