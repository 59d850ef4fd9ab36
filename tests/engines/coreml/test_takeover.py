"""Which engine serves while Core ML is tried, which takes over, and what the next start knows."""

import logging
import multiprocessing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from streamd.engines.coreml.golden import against_golden, golden_vectors
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLEngine
from streamd.engines.coreml.runtime.programs import (
    ON_GPU,
    ON_NEURAL_ENGINE,
    Placement,
    at_first,
)
from streamd.engines.coreml.runtime.takeover import (
    OUTCOME,
    Outcome,
    SwitchingEngine,
    Takeover,
    Trial,
    load_outcome,
    make_compiled_folder,
    save_outcome,
)
from streamd.engines.coreml.runtime.worker import Job
from tests.support import coreml_stand_in
from tests.support.coreml_runs import PATIENT, faulty, on_cpu

pytestmark = pytest.mark.timeout(400)

GPU, STATELESS = ON_GPU
MIXED, ANE = ON_NEURAL_ENGINE


@pytest.fixture
def faults(tmp_path):
    with faulty(tmp_path / "faults") as faults:
        yield faults


@pytest.fixture
def job(built, tmp_path):
    compiled = tmp_path / "compiled"
    compiled.mkdir()
    return Job(built, compiled, GPU, coreml_stand_in.__name__)


class Recorded(SwitchingEngine):
    """Remembers the placements that it was switched to."""

    def __init__(self) -> None:
        super().__init__(on_cpu())
        self.placements: list[Placement] = []

        self.at_first: list[Placement] = []

    def switch_to(self, engine, *, fits=None):
        if isinstance(engine, CoreMLEngine):
            (self.at_first if fits else self.placements).append(engine.placement)
        super().switch_to(engine, fits=fits)


def bring_up(job: Job, wanted: str = "auto", *, encodes: bool = False, **times: float) -> Recorded:
    """With these times for a window, in ms: on the `cpu`, `gpu`, `mixed` and `ane`.

    `encodes`: in the trial of times, windows are really encoded, at least.
    """
    switching = Recorded()
    by_placement = {GPU: "gpu", STATELESS: "stateless", MIXED: "mixed", ANE: "ane"}

    def timer(engine):
        def window_ms() -> float:
            if encodes:
                engine.encode(np.zeros((80, 20), np.float32), audio_ctx=10)
            return times[by_placement.get(getattr(engine, "placement", None), "cpu")]

        return window_ms

    Takeover(switching, job, wanted, limits=PATIENT, timer=timer).run()
    return switching


def loaded(faults) -> set[str]:
    return {unit for what, unit, _ in faults.done() if what == "load"}


def n_workers() -> int:
    return sum("coreml" in child.name for child in multiprocessing.active_children())


def assert_right(engine, job) -> None:
    numerics = against_golden(engine, golden_vectors(job.built))
    assert max(numerics.logits, numerics.alignment) < 1e-5


def test_the_fastest_placement_takes_over_and_comes_first_next_time(job, faults, caplog):
    caplog.set_level(logging.INFO)
    switching = bring_up(job, cpu=100, gpu=50, mixed=20, ane=30)
    assert switching.placements == [GPU, MIXED]
    assert_right(switching, job)
    assert load_outcome(job.compiled) == Outcome(
        best=MIXED,
        trials=(
            Trial(placement=None, window_ms=100),
            Trial(placement=GPU, window_ms=50),
            Trial(placement=MIXED, window_ms=20),
            Trial(placement=ANE, window_ms=30),
        ),
    )
    assert "not encoder on the Neural Engine, decoder on the Neural Engine: 30 ms" in caplog.text
    del switching
    assert n_workers() == 0
    n_calls = len(faults.done())
    again = bring_up(job)  # without a trial of times
    assert again.placements == again.at_first == [GPU, MIXED]
    functions = [function for what, _, function in faults.done()[n_calls:] if what == "load"]
    assert "step1_t128" not in functions, "the other way to use the Neural Engine is not loaded"
    assert "compile" not in {what for what, *_ in faults.done()[n_calls:]}


def test_a_placement_that_is_wrong_or_dies_in_its_trial_is_rejected(job, faults, caplog):
    faults.add("lie", unit="CPU_AND_NE", function="ctx")
    faults.add("kill", at="load", unit="CPU_AND_NE", function="step8")
    switching = bring_up(job, cpu=100, gpu=50, mixed=20, ane=20)
    assert switching.placements == [GPU, GPU], "it went back"
    outcome = load_outcome(job.compiled)
    assert outcome.best == GPU
    wrong = {trial.placement: trial.wrong for trial in outcome.trials}
    assert "off" in wrong[MIXED]
    assert "ended by SIGKILL" in wrong[ANE]
    assert switching.at_first == [GPU, ANE], "the lie was seen at once, the death later"
    assert [record.levelno for record in caplog.records if "not encoder" in record.message] == [
        logging.WARNING,
        logging.WARNING,
    ]
    assert n_workers() == 1


@pytest.mark.coreml
def test_a_placement_that_dies_while_it_is_timed_is_rejected(job, faults):
    faults.add("kill", unit="CPU_AND_NE", function="ctx", after=2, once=False)
    switching = bring_up(job, encodes=True, cpu=100, gpu=50, mixed=20, ane=20)
    assert switching.placements == [GPU]
    wrong = {trial.placement: trial.wrong for trial in load_outcome(job.compiled).trials}
    assert wrong == {None: "", GPU: "", MIXED: "ended by SIGKILL", ANE: "ended by SIGKILL"}


@pytest.mark.coreml
def test_the_cpu_stays_where_it_is_the_fastest(job, faults):
    switching = bring_up(job, cpu=10, gpu=50, mixed=20, ane=20)
    assert switching.placements == []
    outcome = load_outcome(job.compiled)
    assert outcome.best is None
    assert [trial.placement for trial in outcome.trials] == [None, GPU, MIXED, ANE]
    assert n_workers() == 0
    n_calls = len(faults.done())
    assert bring_up(job).placements == []
    assert len(faults.done()) == n_calls


@pytest.mark.coreml
def test_the_placement_that_the_user_wants_is_used_however_slow(job, faults):
    assert bring_up(job, "gpu", cpu=1, gpu=50).placements == [GPU]
    assert loaded(faults) == {"CPU_AND_GPU"}
    slow = bring_up(job, "ane", cpu=1, gpu=2, mixed=50, ane=60)
    assert slow.placements == [GPU, MIXED]
    assert load_outcome(job.compiled) is None, "what was asked for says nothing about what is best"


def test_workers_that_end_with_the_program_are_no_outcome(job, faults, caplog):
    save_outcome(job.compiled, Outcome(best=MIXED, trials=()))
    takeover = Takeover(Recorded(), job, "auto", limits=PATIENT)
    takeover.stop()
    faults.add("kill", at="load")
    takeover.run()
    assert load_outcome(job.compiled).best == MIXED
    assert "not encoder" not in caplog.text
    (job.compiled / OUTCOME).unlink()
    takeover.run()
    assert load_outcome(job.compiled) is None


@pytest.mark.coreml
def test_an_outcome_that_no_longer_holds_is_deleted(job, faults):
    bring_up(job, cpu=100, gpu=50, mixed=60, ane=20)
    faults.add("fail", at="load", unit="CPU_AND_NE")
    switching = bring_up(job)
    assert switching.placements == [GPU]
    assert_right(switching, job)
    assert load_outcome(job.compiled) is None


def test_a_window_is_decoded_to_its_end_by_the_engine_that_encoded_it():
    def engine(name: str):
        return SimpleNamespace(
            dims=None,
            encode=lambda mel, known, **_: (name, known),
            decoder=lambda features, n_slots: (name, features),
        )

    switching = SwitchingEngine(engine("first"))
    window = switching.encode(None)
    longer = switching.encode(None, known=window, n_known=9)
    switching.switch_to(engine("second"))
    assert switching.decoder(window, 1) == ("first", ("first", None))
    assert switching.decoder(longer, 1) == ("first", ("first", ("first", None)))
    on_second = switching.encode(None, known=longer, n_known=9)
    assert switching.decoder(on_second, 1) == ("second", ("second", None)), "it knows its own alone"


def test_compiled_models_of_an_earlier_system_are_deleted(built, tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.symlink_to(built.folder)

    here = replace(built, folder=folder)
    old = make_compiled_folder(here)
    (old / "encoder.mlmodelc").mkdir()
    assert make_compiled_folder(here) == old
    assert (old / "encoder.mlmodelc").exists()
    monkeypatch.setattr(
        "streamd.engines.coreml.runtime.takeover.machine", lambda: ("Apple M9", "99A1")
    )
    new = make_compiled_folder(here)
    assert new != old
    assert [path.name for path in tmp_path.glob("compiled-*")] == [new.name]


@pytest.mark.coreml
def test_the_gpu_is_tried_without_states_if_states_are_refused(job, faults):
    faults.add("odd", at="load", unit="CPU_AND_GPU", function="load", once=False)
    switching = bring_up(job, "gpu", cpu=1, stateless=50)
    assert switching.placements == [STATELESS]
    assert_right(switching, job)


def test_what_takes_too_long_is_no_verdict(job, monkeypatch):
    """The next start goes on where this one stopped."""
    monkeypatch.setattr(
        "streamd.engines.coreml.runtime.takeover.TRIAL_LIMITS",
        replace(PATIENT, start_s=0.0, deaths=1),
    )
    assert bring_up(job, cpu=100).placements == []
    assert load_outcome(job.compiled) is None


@pytest.mark.coreml
def test_functions_are_compiled_one_at_a_time_and_short_windows_move_first(job, faults):
    """Of the Neural Engine: what is in memory while it compiles is one function."""
    switching = bring_up(job, "ane", cpu=1, gpu=2, mixed=50, ane=60)
    assert switching.at_first == switching.placements == [GPU, MIXED]
    calls = [(what, name) for what, unit, name in faults.done() if unit == "CPU_AND_NE"]
    n_loaded = most = 0
    for what, _ in calls[: calls.index(("predict", "ctx384"))]:
        n_loaded += {"load": 1, "free": -1}.get(what, 0)
        most = max(most, n_loaded)
    assert most == 1, "the encoder was compiled, given back, and loaded to serve"
    encoders = [name for what, name in calls if what == "load"]
    n = 6  # of the first way to use the Neural Engine
    assert encoders[:n] == ["ctx384", "ctx384", "ctx640", "ctx1500", "ctx640", "ctx1500"]


def test_a_long_window_stays_where_it_was_until_all_is_loaded(job):
    engine = CoreMLEngine(replace(job, functions=at_first(job.built, "state")), PATIENT)
    short, long = (np.zeros((80, 2 * n), np.float32) for n in (200, 1200))
    assert engine.fits(short, 0)
    assert not engine.fits(long, 0)
    assert not engine.fits(short, 1400)
    switching = Recorded()
    before = switching.current
    switching.switch_to(engine, fits=engine.fits)
    assert switching.encode(long)[0] is before
    engine.close()


@pytest.mark.coreml
def test_any_exception_of_core_ml_is_a_refusal_with_its_message(job, faults):
    faults.add("odd", at="load", once=False)
    assert bring_up(job, cpu=100).placements == []
    why = {trial.wrong for trial in load_outcome(job.compiled).trials}
    assert why == {"Exception: Unable to load any compiled models"}
