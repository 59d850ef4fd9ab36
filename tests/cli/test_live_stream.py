"""What a live stream costs: every window of a session is timed, and a server's streams counted."""

import json

import numpy as np
import pytest

from streamd.cli.bench import StreamCost, cost_json, cost_table, estimates, measure
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import OpenWhisper, n_streams, with_capacity
from streamd.engines.precision import LiveCost
from streamd.engines.prepared import open_in_memory
from streamd.errors import ConfigError
from streamd.models.store import load_model
from tests.support import recorded


@pytest.fixture(scope="module")
def model():
    return load_model("tiny.en")


class Counting:
    """An engine that counts windows, and those of which something is known."""

    def __init__(self, engine) -> None:
        self.dims, self.n_cheap, self._engine = engine.dims, engine.n_cheap, engine
        self.n_windows = self.n_reused = 0

    def encode(self, mel, reuse=None, **options):
        self.n_windows += 1
        self.n_reused += reuse is not None and reuse.n > 0
        return self._engine.encode(mel, reuse, **options)

    def decoder(self, features, n_slots):
        return self._engine.decoder(features, n_slots)


@pytest.fixture(scope="module")
def onnx(model):
    return open_in_memory(model, threads=1, precision="int8").engine


@pytest.fixture
def engine(onnx):
    return Counting(onnx)


def play(monkeypatch, sound, model, engine, **options) -> StreamCost:
    monkeypatch.setattr("streamd.cli.bench.bundled_speech", lambda: sound)
    within_s = options.pop("within_s", np.inf)
    config = load({"threads": "1"} | options, {})
    return measure(config, OpenWhisper(config, model, engine), within_s=within_s)


def test_all_windows_of_a_live_session_are_timed_with_what_it_keeps(monkeypatch, model, engine):
    sound = recorded.samples()
    cost = play(monkeypatch, sound, model, engine)
    assert cost.model == "tiny.en"
    assert cost.speech_s == len(sound) / 16_000
    assert cost.n_windows == engine.n_windows
    assert cost.n_windows >= cost.speech_s
    assert engine.n_reused > cost.n_windows / 2
    assert 0 < cost.best_ms <= cost.median_ms <= cost.p95_ms
    assert 0 < cost.encode_ms < cost.p95_ms
    assert cost.rtf * cost.speech_s * 1000 > cost.n_windows * cost.best_ms
    assert cost.cpu_s > 0


def test_the_options_of_the_stream_count(monkeypatch, model, engine):
    rare = play(monkeypatch, recorded.samples(), model, engine, step="2000")
    often = play(monkeypatch, recorded.samples(), model, engine)
    assert rare.n_windows < often.n_windows


def test_a_slow_model_is_cut_off_after_its_first_window(monkeypatch, model, engine):
    sound = recorded.samples()
    cost = play(monkeypatch, sound, model, engine, within_s=0.0)
    assert cost.speech_s < len(sound) / 16_000
    assert cost.n_windows == 2  # and what ends the utterance


def test_options_that_find_no_speech_are_an_error(monkeypatch, model, engine):
    with pytest.raises(ConfigError, match=r"find no speech .* change --vad"):
        play(monkeypatch, np.zeros(16_000, np.float32), model, engine)


@pytest.mark.parametrize(
    ("rtf", "cpu_s", "n"),
    [
        (0.095, 0.095, 12),  # RESULTS.md: less than 1 % of the windows are late
        (0.19, 0.19, 6),
        (0.1, 0.19, 6),  # two threads a window
        (0.39, 0.1, 3),  # it waits for another processor
        (0.9, 0.9, 1),
        (1.1, 2.2, 0),
    ],
)
def test_a_server_keeps_up_with_as_many_streams_as_it_has_time_for(monkeypatch, rtf, cpu_s, n):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(build, "usable_threads", lambda: 2)
    assert n_streams(load({}, {}), rtf=rtf, cpu_s=cpu_s) == n


def test_more_processors_carry_more_streams(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for n_fast, n in ((2, 12), (4, 25)):
        monkeypatch.setattr(build, "usable_threads", lambda n_fast=n_fast: n_fast)
        assert n_streams(load({}, {}), rtf=0.095, cpu_s=0.095) == n
    assert n_streams(load({"set": ["decoding.workers=8"]}, {}), rtf=0.095, cpu_s=0.095) == 50


def costing(monkeypatch, busy_s: float, *, cores: int = 2) -> None:
    """As if tiny took so long per second with 1 thread, other sizes in proportion to layers."""

    def live_cost(dims, *, threads, step_ms):
        cost = busy_s * dims.n_audio_layer / 4 * 500 / step_ms / threads
        return LiveCost(busy_s=cost, cpu_s=cost * threads, is_measured=threads <= cores)

    monkeypatch.setattr("streamd.engines.precision.live_cost", live_cost)


@pytest.mark.parametrize(
    ("options", "busy_s", "n"),
    [
        ({"max_streams": "auto"}, 0.3, 4),
        ({"max_streams": "auto"}, 3.0, 1),
        ({"max_streams": "auto"}, 0.0, 8),
        ({"max_streams": "auto", "compute": "gpu"}, 0.3, 8),
        ({"max_streams": "5"}, 0.3, 5),
        ({}, 0.3, 8),
    ],
)
def test_as_many_clients_are_let_in_as_the_model_is_estimated_to_carry(
    monkeypatch, options, busy_s, n
):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(build, "usable_threads", lambda: 2)
    costing(monkeypatch, busy_s)
    config = load({"model": "tiny.en"} | {k.replace("_", "-"): v for k, v in options.items()}, {})
    assert with_capacity(config).limits.max_streams == n


def test_the_figures_are_a_table_or_a_line_of_json(monkeypatch, model, engine):
    cost = play(monkeypatch, recorded.samples(), model, engine, within_s=0.0)
    costing(monkeypatch, 0.5)
    monkeypatch.setattr(build, "usable_threads", lambda: 2)
    monkeypatch.setattr("streamd.cli.bench.fast_cores", lambda: 2)
    sizes = estimates(load({}, {}))
    table = cost_table(cost, sizes)
    assert table.startswith("tiny.en: 2 windows of")
    assert f"median {cost.median_ms:.1f}, best {cost.best_ms:.1f}" in table
    assert f"{cost.cpu_s:.3f} CPU seconds per second" in table
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert rows["tiny"] == ["0.25,", "250", "ms", "0.12*,", "250", "ms"]
    assert rows["small"] == ["0.75,", "1000", "ms", "0.38*,", "500", "ms"]
    assert rows["large-v3"] == ["2.00,", "2000", "ms", "1.00*,", "1000", "ms"]
    assert table.endswith("*: estimated from two threads; this machine has fewer cores")
    figures = json.loads(cost_json(cost, sizes))
    assert figures["sizes"][0]["size"] == "tiny"
    assert figures["stream"]["cpu_s"] == cost.cpu_s
    assert figures["machine"]["cores"] >= 1
