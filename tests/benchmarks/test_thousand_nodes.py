"""Waiting in the simulated streams of NATS."""

import json

import numpy as np
import pytest

from charts import SCALE
from thousand_nodes import N_NODES, queue, simulated

COSTS = {"line stored": 4e-5, "lines read": 7e-5, "lease stored": 3e-5, "lease read": 1e-4}


def test_whoever_comes_waits_for_those_before_it():
    waits = queue(np.array([0.0, 1.0, 1.5, 9.0]), np.array([2.0, 1.0, 1.0, 1.0]))
    assert waits.tolist() == [0, 1, 1.5, 0]


def test_a_queue_that_is_half_full_waits_as_theory_says():
    rng, n = np.random.default_rng(1), 400_000
    arrivals = np.cumsum(rng.exponential(2.0, n))
    waits = queue(arrivals, rng.exponential(1.0, n))
    assert waits.mean() == pytest.approx(1.0, rel=0.05)  # of M/M/1 at 50 %


def test_a_stream_that_is_too_busy_falls_behind():
    few, *_, many = simulated(COSTS | {"event told": 6e-6}, 0.5)
    assert (few["nodes"], many["nodes"]) == (N_NODES[0], N_NODES[-1])
    assert few["leases p99 ms"] < 1
    slow = simulated(COSTS | {"lease read": 3e-3, "event told": 6e-6}, 0.0)[-1]
    assert slow["leases busy %"] > 100
    assert slow["leases p99 ms"] > 1000


def test_what_was_computed_follows_from_what_was_measured():
    kept = json.loads(SCALE.read_text())
    measured = kept["measured"]
    costs = {kind: each["NATS ms each"] / 1000 for kind, each in measured["ask"].items()}
    again = simulated(costs, measured["hold"]["leases a second of silence"])
    for row, before in zip(again, kept["simulated"], strict=True):
        for name in ("log busy %", "leases busy %", "told busy %"):
            assert row[name] == pytest.approx(before[name], rel=0.05, abs=0.5)
