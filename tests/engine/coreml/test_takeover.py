"""Who serves while a model is brought up, who takes over, and what is remembered of it."""

import logging
import multiprocessing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from streamd.engine.coreml.golden import against_golden, golden_vectors
from streamd.engine.coreml.runtime.placement import Placement, candidates, forms_here, gpu
from streamd.engine.coreml.runtime.takeover import Site, Takeover
from streamd.engine.coreml.runtime.verdict import (
    Trial,
    Verdict,
    forget,
    new_place,
    recall,
    remember,
)
from streamd.engine.relay import Relay
from tests.support import coreml_stand_in
from tests.support.coreml_runs import PATIENT, faulty, on_cpu

pytestmark = pytest.mark.timeout(400)

GPU = Placement("gpu", "gpu", "state")
MIXED = Placement("ane", "gpu", "state")
ANE = Placement("ane", "ane", "mix")


@pytest.fixture
def faults(tmp_path):
    with faulty(tmp_path / "faults") as faults:
        yield faults


@pytest.fixture
def site(built, tmp_path):
    place = tmp_path / "compiled"
    place.mkdir()
    return Site(built, place, coreml_stand_in.__name__, PATIENT)


class Seen(Relay):
    """A relay that remembers who came."""

    def __init__(self) -> None:
        super().__init__(on_cpu())
        self.placements: list[Placement] = []

    def relieve(self, engine):
        self.placements.append(engine.placement)
        super().relieve(engine)


def bring_up(site: Site, wanted: str = "auto", *, encodes: bool = False, **times: float) -> Seen:
    """With these times for a window, in ms: on the `cpu`, `gpu`, `mixed` and `ane`.

    `encodes`: in the trial of times, windows are really encoded, at least.
    """
    relay = Seen()
    by_placement = {GPU: "gpu", MIXED: "mixed", ANE: "ane"}

    def window_ms(engine) -> float:
        if encodes:
            engine.encode(np.zeros((80, 20), np.float32), 10)
        return times[by_placement.get(getattr(engine, "placement", None), "cpu")]

    Takeover(relay, site, wanted, window_ms=window_ms).run()
    return relay


def loaded(faults) -> set[str]:
    return {unit for what, unit, _ in faults.done() if what == "load"}


def n_workers() -> int:
    return sum("coreml" in child.name for child in multiprocessing.active_children())


def assert_right(engine, site) -> None:
    numerics = against_golden(engine, golden_vectors(site.built))
    assert max(numerics.logits, numerics.alignment) < 1e-5


def test_the_fastest_takes_over_and_is_the_first_thought_of_next_time(site, faults, caplog):
    caplog.set_level(logging.INFO)
    relay = bring_up(site, cpu=100, gpu=50, mixed=20, ane=30)
    assert relay.placements == [GPU, MIXED]
    assert_right(relay, site)
    assert recall(site.place) == Verdict(
        best=MIXED,
        trials=(
            Trial(placement=None, window_ms=100),
            Trial(placement=GPU, window_ms=50),
            Trial(placement=MIXED, window_ms=20),
            Trial(placement=ANE, window_ms=30),
        ),
    )
    assert "not encoder on the Neural Engine, decoder on the Neural Engine: 30 ms" in caplog.text
    del relay
    assert n_workers() == 0
    n_calls = len(faults.done())
    again = bring_up(site)  # without a trial of times
    assert again.placements == [GPU, MIXED]
    functions = [function for what, _, function in faults.done()[n_calls:] if what == "load"]
    assert "step1_t128" not in functions, "the other way to use the Neural Engine is not loaded"
    assert "compile" not in {what for what, *_ in faults.done()[n_calls:]}


def test_who_is_wrong_or_dies_on_trial_is_not_engaged(site, faults, caplog):
    faults.add("lie", unit="CPU_AND_NE", function="ctx")
    faults.add("kill", at="load", unit="CPU_AND_NE", function="step8")
    relay = bring_up(site, cpu=100, gpu=50, mixed=20, ane=20)
    assert relay.placements == [GPU]
    verdict = recall(site.place)
    assert verdict.best == GPU
    wrong = {trial.placement: trial.wrong for trial in verdict.trials}
    assert "off" in wrong[MIXED]
    assert "ended by SIGKILL" in wrong[ANE]
    assert [record.levelno for record in caplog.records if "not encoder" in record.message] == [
        logging.WARNING,
        logging.WARNING,
    ]
    assert n_workers() == 1


def test_who_dies_in_the_trial_of_times_is_not_engaged_either(site, faults):
    faults.add("kill", unit="CPU_AND_NE", function="ctx", after=2, once=False)
    relay = bring_up(site, encodes=True, cpu=100, gpu=50, mixed=20, ane=20)
    assert relay.placements == [GPU]
    wrong = {trial.placement: trial.wrong for trial in recall(site.place).trials}
    assert wrong == {None: "", GPU: "", MIXED: "ended by SIGKILL", ANE: "ended by SIGKILL"}


def test_the_cpu_goes_on_where_it_is_the_fastest(site, faults):
    relay = bring_up(site, cpu=10, gpu=50, mixed=20, ane=20)
    assert relay.placements == []
    verdict = recall(site.place)
    assert verdict.best is None
    assert [trial.placement for trial in verdict.trials] == [None, GPU, MIXED, ANE]
    assert n_workers() == 0
    n_calls = len(faults.done())
    assert bring_up(site).placements == []
    assert len(faults.done()) == n_calls


def test_what_is_asked_for_is_used_though_it_is_slow(site, faults):
    assert bring_up(site, "gpu", cpu=1, gpu=50).placements == [GPU]
    assert loaded(faults) == {"CPU_AND_GPU"}
    slow = bring_up(site, "ane", cpu=1, gpu=2, mixed=50, ane=60)
    assert slow.placements == [GPU, MIXED]
    assert recall(site.place) is None, "what was asked for says nothing about what is best"


def test_nothing_is_found_out_by_workers_that_end_with_the_program(site, faults, caplog):
    remember(site.place, Verdict(best=MIXED, trials=()))
    takeover = Takeover(Seen(), site, "auto")
    takeover.stop()
    faults.add("kill", at="load")
    takeover.run()
    assert recall(site.place).best == MIXED
    assert "not encoder" not in caplog.text
    forget(site.place)
    takeover.run()
    assert recall(site.place) is None


def test_a_verdict_that_does_not_hold_is_found_out_again(site, faults):
    bring_up(site, cpu=100, gpu=50, mixed=60, ane=20)
    faults.add("fail", at="load", unit="CPU_AND_NE")
    relay = bring_up(site)
    assert relay.placements == [GPU]
    assert_right(relay, site)
    assert recall(site.place) is None


def test_a_window_is_decoded_to_its_end_by_the_engine_that_encoded_it():
    def engine(name: str):
        return SimpleNamespace(
            dims=None,
            encode=lambda mel, n_ctx: name,
            decoder=lambda features, n_slots: (name, features),
        )

    relay = Relay(engine("first"))
    window = relay.encode(None, 1)
    relay.relieve(engine("second"))
    assert relay.decoder(window, 1) == ("first", "first")
    assert relay.decoder(relay.encode(None, 1), 1) == ("second", "second")


def test_placements_depend_on_the_system(monkeypatch):
    for release, forms in (("14.6", ("io",)), ("15.0", ("state", "mix")), ("", ("state", "mix"))):
        monkeypatch.setattr("platform.mac_ver", lambda release=release: (release, (), ""))
        assert forms_here(("state", "mix", "io")) == forms
    assert (gpu(("state", "mix")), gpu(("io",)).form) == (GPU, "io")
    assert candidates(("state", "mix")) == (MIXED, ANE)
    assert {placement.form for placement in candidates(("io",))} == {"io"}


def test_compiled_models_of_an_earlier_system_are_taken_away(built, tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.symlink_to(built.folder)

    here = replace(built, folder=folder)
    old = new_place(here)
    (old / "encoder.mlmodelc").mkdir()
    assert new_place(here) == old
    assert (old / "encoder.mlmodelc").exists()
    monkeypatch.setattr(
        "streamd.engine.coreml.runtime.verdict.machine", lambda: ("Apple M9", "99A1")
    )
    new = new_place(here)
    assert new != old
    assert [path.name for path in tmp_path.glob("compiled-*")] == [new.name]
