"""The precision is chosen by the time of a live window, and the choice is kept."""

from dataclasses import replace

import numpy as np
import pytest

from streamd.engines import precision
from streamd.engines.precision import (
    ChosenPrecision,
    WindowShape,
    choose_precision,
    chosen_by,
    live_cost,
    window_timer,
)
from streamd.models.store import load_model
from tests.support.checkpoints import dimensions


def test_the_measurement_is_kept(folder):
    assert choose_precision(dimensions("few"), threads=1).precision == "float32", (
        "small: not worth it"
    )
    assert not (folder / "precision").exists()
    wide = load_model("tiny.en").dims
    first = choose_precision(wide, threads=1)
    (kept,) = (folder / "precision").iterdir()
    assert min(first.float32_ms, first.int8_ms, first.cpu_ms) > 0
    kept.write_bytes(kept.read_bytes().replace(b'"precision":"', b'"precision":"float32","x":"'))
    assert choose_precision(wide, threads=1).precision == "float32"
    kept.write_bytes(b"{")
    assert choose_precision(wide, threads=1).float32_ms is not None, "measured again"
    assert choose_precision(wide, "float32", threads=1).float32_ms is None


def rounds(int8_share: float, *, seed: int, load: float) -> list[list[tuple[float, float]]]:
    """15 windows of 20 ms in float32 and in int8, elapsed and CPU ms, on a machine with others.

    Without a core a window waits for up to ten times its length, and caches are cold after it.
    """
    random = np.random.default_rng(seed)

    def timed(ms: float) -> tuple[float, float]:
        cpu_ms = ms * (1 + load * random.exponential(0.2))
        return cpu_ms + load * random.choice([0, 1, 10]) * ms * random.random(), cpu_ms

    return [[timed(20), timed(20 * int8_share)] for _ in range(15)]


@pytest.mark.parametrize("load", [0, 0.5, 1])
@pytest.mark.parametrize(("share", "precision"), [(0.6, "int8"), (0.8, "int8"), (1.4, "float32")])
def test_other_programs_do_not_change_the_choice(share, precision, load):
    chosen = [chosen_by(rounds(share, seed=seed, load=load)) for seed in range(200)]
    assert {each.precision for each in chosen} == {precision}


def test_the_least_times_are_kept_with_the_choice():
    kept = chosen_by([[(30.0, 22.0), (40.0, 12.0)], [(25.0, 23.0), (15.0, 14.0)]])
    assert (kept.precision, kept.float32_ms, kept.int8_ms, kept.cpu_ms) == ("int8", 25, 15, 12)
    slow = chosen_by([[(25.0, 20.0), (15.0, 19.0)]] * 15)
    assert (slow.precision, slow.cpu_ms) == ("float32", 20)


def test_the_cost_of_a_stream_is_estimated_from_a_layer_of_the_model(folder):
    dims = load_model("tiny.en").dims
    cpu_ms = choose_precision(dims, threads=1).cpu_ms
    cost = live_cost(dims, threads=1, step_ms=500)
    assert cost.cpu_s == cost.busy_s == pytest.approx(1.5 * 4 * cpu_ms / 500)
    for step_ms, ratio in ((250, 1.53), (1000, 0.735)):  # measured: 1.55 and 0.75
        other = live_cost(dims, threads=1, step_ms=step_ms)
        assert other.cpu_s == pytest.approx(ratio * cost.cpu_s, rel=1e-3)
    deep = replace(dims, n_audio_layer=32)  # as turbo: many layers of the encoder
    assert live_cost(deep, threads=1, step_ms=500).cpu_s == pytest.approx(4.5 * cost.cpu_s)
    assert live_cost(dimensions("few"), threads=1, step_ms=500).busy_s == 0, "not measured"


@pytest.mark.parametrize(
    ("threads", "elapsed_ms", "busy_ms", "cpu_ms"),
    [
        (1, 30, 10, 10),  # other programs took the rest
        (2, 30, 6, 12),
        (4, 5, 5, 16),
        (4, 90, 8, 16),
        (4, 1, 4, 16),  # no thread computes for less than its share
        (8, None, 2 + 8 / 8, 24),  # this machine has four: of 10 ms, 2 are not divided
    ],
)
def test_more_threads_are_measured_or_follow_from_what_two_do_not_share(
    monkeypatch, threads, elapsed_ms, busy_ms, cpu_ms
):
    cpu = {1: 10.0, 2: 12.0, 4: 16.0}

    def measured(dims, *, threads):
        return ChosenPrecision(precision="int8", int8_ms=elapsed_ms or 1.0, cpu_ms=cpu[threads])

    monkeypatch.setattr(precision, "choose_precision", measured)
    monkeypatch.setattr(precision.os, "cpu_count", lambda: 4)
    cost = live_cost(load_model("tiny.en").dims, threads=threads, step_ms=500)
    per_ms = 1.5 * 4 / 500
    assert cost.busy_s == pytest.approx(per_ms * busy_ms)
    assert cost.cpu_s == pytest.approx(per_ms * cpu_ms)
    assert cost.is_measured == (threads <= 4)


class Noted:
    """An engine, and the decoder of its windows, that notes what it is asked to compute."""

    dims = dimensions("tiny")
    n_cheap = 4

    def __init__(self, adopts: bool) -> None:
        self.n_slots, self.adopts = 0, adopts
        self.encoded: list[tuple[int, int]] = []
        self.passes: list[list[int]] = []

    def encode(self, mel, reuse=None):
        self.encoded.append((mel.shape[1] // 2, reuse.n if reuse else 0))
        return self

    def decoder(self, features, n_slots):
        self.n_slots = n_slots
        return self

    def adopt(self, before, n):
        return self.adopts

    def run(self, asked):
        self.passes.append(asked.slots.tolist())


@pytest.mark.parametrize(("adopts", "first"), [(True, [3, 4]), (False, [0, 1, 2, 3, 4])])
def test_a_window_is_timed_with_what_was_kept_of_the_one_before(adopts, first):
    engine = Noted(adopts)
    shape = WindowShape(n_frames=110, n_new=90, n_given=3, n_first=2, passes=(1, 2))
    timed_ms = window_timer(engine, shape)
    assert (engine.encoded, engine.passes) == ([(95, 0)], [[0, 1, 2]])
    for _ in range(2):
        engine.encoded.clear()
        engine.passes.clear()
        assert timed_ms() >= 0
        assert engine.encoded == [(110, 20)]
        assert engine.passes == [first, [5], [6, 7]]
        assert engine.n_slots == 8
