"""Which engine serves while Core ML loads, and which takes over."""

import logging
import multiprocessing
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from streamd.engines.coreml.golden import against_golden, golden_vectors
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLEngine
from streamd.engines.coreml.runtime.programs import PLACEMENTS
from streamd.engines.coreml.runtime.switchover import (
    SwitchingEngine,
    make_compiled_folder,
    take_over,
)
from streamd.engines.coreml.runtime.worker import Job
from tests.support import coreml_stand_in
from tests.support.coreml_runs import PATIENT, faulty, on_cpu

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(400)]

GPU, STATELESS, SINGLE = PLACEMENTS["gpu"]
MIXED, ANE, MIXED_SINGLE = PLACEMENTS["ane"]


@pytest.fixture
def faults(tmp_path):
    with faulty(tmp_path / "faults") as faults:
        yield faults


@pytest.fixture
def job(built, tmp_path):
    compiled = tmp_path / "compiled"
    compiled.mkdir()
    return Job(built, compiled, GPU, coreml_stand_in.__name__)


def bring_up(job: Job, unit: str = "gpu", **options) -> SwitchingEngine:
    switching = SwitchingEngine(on_cpu())
    take_over(switching, job, unit, limits=PATIENT, **options)
    return switching


def placement(switching):
    """Where Core ML serves; None: on the CPU."""
    return getattr(switching.current, "placement", None)


def n_workers() -> int:
    return sum("coreml" in child.name for child in multiprocessing.active_children())


def warnings(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def assert_right(engine, job) -> None:
    numerics = against_golden(engine, golden_vectors(job.built))
    assert max(numerics.logits, numerics.alignment) < 3e-5  # in one function 1.4e-5


@pytest.mark.parametrize(("unit", "expected"), [("gpu", GPU), ("ane", MIXED)])
def test_what_is_right_takes_over(job, faults, caplog, unit, expected):
    caplog.set_level(logging.INFO)
    switching = bring_up(job, unit)
    assert placement(switching) == expected
    assert switching.current.limits == PATIENT
    assert re.fullmatch(rf"Core ML: {expected}, \d+ MB", caplog.messages[-1])
    assert_right(switching, job)
    assert n_workers() == 1
    n_calls = len(faults.done())
    again = bring_up(job, unit)
    assert placement(again) == expected
    assert "compile" not in {what for what, *_ in faults.done()[n_calls:]}
    del switching, again
    assert n_workers() == 0


def test_the_cpu_serves_where_core_ml_is_wrong(job, faults, caplog):
    caplog.set_level(logging.INFO)
    faults.add("lie", unit="CPU_AND_GPU", function="ctx", once=False)
    switching = bring_up(job)
    assert not isinstance(switching.current, CoreMLEngine)
    assert caplog.messages[-1] == "Core ML: no way to use it works here; captions stay on the CPU"
    for warning, tried in zip(warnings(caplog), PLACEMENTS["gpu"], strict=True):
        assert warning.startswith(f"Core ML: not {tried}: logits ")
    assert_right(switching, job)
    assert n_workers() == 0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"what": "odd", "at": "load"}, "Exception: Unable to load any compiled models"),
        ({"what": "ignored"}, r"logits 0\.\d+ off, alignment .*"),
        ({"what": "kill", "at": "load"}, "ended by SIGKILL"),
        ({"what": "kill"}, "ended by SIGKILL"),
        ({"what": "fail"}, "Unable to compute the prediction using a neural network model."),
        ({"what": "hang"}, "did not answer within 20 s"),
        ({"what": "nan"}, "step16 returned logits0 with infinity or NaN"),
        ({"what": "fail", "at": "make"}, "a state cannot be written, .*"),
        ({"what": "fail", "at": "make", "after": 1}, "Unable to compute .*"),
        ({"what": "odd", "at": "write"}, "Exception: Unable to load any compiled models"),
        ({"what": "fail", "at": "write", "after": 1}, "Unable to compute .*"),
    ],
)
def test_the_gpu_is_used_without_states_if_states_are_refused(
    job, faults, caplog, monkeypatch, fault, why
):
    if fault["what"] == "hang":
        impatient = replace(PATIENT, answer_s=20.0, deaths=1)
        monkeypatch.setattr(f"{take_over.__module__}.LOADING", impatient)
    faults.add(**fault, package="decoder_state", once=False)
    switching = bring_up(job)
    assert placement(switching) == STATELESS
    (told,) = warnings(caplog)
    assert re.fullmatch(f"Core ML: not {GPU}: {why}", told)
    assert_right(switching, job)


@pytest.mark.parametrize(("unit", "expected"), [("gpu", STATELESS), ("ane", ANE)])
def test_no_state_is_shared_if_core_ml_refuses_that(job, faults, caplog, unit, expected):
    faults.add("foreign", once=False)
    switching = bring_up(job, unit)
    assert placement(switching) == expected
    (told,) = warnings(caplog)
    assert "the state is one of step16, not step2" in told
    assert_right(switching, job)


@pytest.mark.parametrize(("unit", "expected"), [("gpu", SINGLE), ("ane", MIXED_SINGLE)])
def test_one_function_is_used_if_others_cannot_be_loaded(job, faults, caplog, unit, expected):
    faults.add("odd", at="load", function="step16", once=False)
    faults.add("foreign", once=False)
    switching = bring_up(job, unit)
    assert placement(switching) == expected
    assert len(warnings(caplog)) == 2
    assert_right(switching, job)
    n_before = len(faults.done())
    assert_right(switching, job)
    ran = {name for what, _, name in faults.done()[n_before:] if what == "predict"}
    assert ran == {"ctx384", "ctx640", "ctx1500", "resume192", "step32"}


@pytest.mark.parametrize("unit", ["gpu", "ane"])
def test_the_cpu_serves_at_once_where_no_state_can_be_written(job, faults, caplog, unit):
    """Nothing is loaded, or compiled for the Neural Engine, that could not be used."""
    faults.add("fail", at="write", once=False)
    assert placement(bring_up(job, unit)) is None
    assert len(warnings(caplog)) == 3
    assert all("a state cannot be written, which every way" in told for told in warnings(caplog))
    loaded = [name for what, _, name in faults.done() if what == "load"]
    assert loaded == ["step2", "step2", "step32"]


def test_the_decoder_moves_to_the_neural_engine_if_the_gpu_refuses_it(job, faults, caplog):
    faults.add("fail", at="load", unit="CPU_AND_GPU", once=False)
    switching = bring_up(job, "ane")
    assert placement(switching) == ANE
    assert len(warnings(caplog)) == 1
    assert_right(switching, job)


def test_what_takes_half_of_the_memory_is_refused(job, monkeypatch, caplog):
    monkeypatch.setattr(
        "streamd.engines.coreml.runtime.switchover.memory_bytes", lambda: 2 * 1_000_000
    )
    assert placement(bring_up(job)) is None
    assert len(warnings(caplog)) == 3
    assert all(" MB, too much for this machine" in told for told in warnings(caplog))
    assert n_workers() == 0


def test_what_takes_too_much_while_it_loads_is_given_up_then(job, faults, monkeypatch, caplog):
    """The machine would swap until all of it was there."""
    with_a_worker = 600_000_000
    monkeypatch.setattr(f"{take_over.__module__}.memory_bytes", lambda: 2 * with_a_worker)
    faults.add("swell", at="load", package="decoder_state", once=False)
    assert placement(bring_up(job)) == STATELESS
    (told,) = warnings(caplog)
    assert re.fullmatch(f"Core ML: not {GPU}: takes \\d+ MB, too much for this machine", told)
    calls = [(what, name) for what, _, name in faults.done()]
    second = calls.index(("load", "step2"), calls.index(("load", "step2")) + 1)
    assert "predict" not in {what for what, _ in calls[:second]}


def test_workers_that_end_with_the_program_are_no_failure(job, faults, caplog):
    faults.add("kill", at="load", once=False)
    switching = bring_up(job, is_stopped=lambda: True)
    assert placement(switching) is None
    assert warnings(caplog) == []
    assert len({name for what, _, name in faults.done() if what == "load"}) <= 1


def test_what_takes_too_long_is_given_up(job, monkeypatch, caplog):
    monkeypatch.setattr(
        "streamd.engines.coreml.runtime.switchover.LOADING", replace(PATIENT, start_s=0.0, deaths=1)
    )
    assert placement(bring_up(job)) is None
    assert ["was not ready within 0 s" in told for told in warnings(caplog)] == [True] * 3


def test_functions_are_compiled_for_the_neural_engine_one_at_a_time(job, faults):
    """What is in memory while it compiles is one function."""
    assert placement(bring_up(job, "ane")) == MIXED
    calls = [(what, name) for what, unit, name in faults.done() if unit == "CPU_AND_NE"]
    loaded = [name for what, name in calls if what == "load"]
    assert loaded == 4 * ["ctx384", "ctx640", "ctx1500", "resume192"], "encoder and cross, twice"
    second = [i for i, call in enumerate(calls) if call == ("load", "ctx384")][2]
    n_loaded = most = 0
    for what, _ in calls[:second]:
        n_loaded += {"load": 1, "free": -1}.get(what, 0)
        most = max(most, n_loaded)
    assert (n_loaded, most) == (0, 1), "compiled and given back before it is loaded to serve"


def test_a_window_is_decoded_to_its_end_by_the_engine_that_encoded_it():
    def engine(name: str):
        return SimpleNamespace(
            dims=None,
            encode=lambda mel, previous, **_: (name, previous),
            decoder=lambda features, n_slots: (name, features),
        )

    switching = SwitchingEngine(engine("first"))
    window = switching.encode(None)
    longer = switching.encode(None, previous=window, n_reused=9)
    switching.current = engine("second")
    assert switching.decoder(window, 1) == ("first", ("first", None))
    assert switching.decoder(longer, 1) == ("first", ("first", ("first", None)))
    on_second = switching.encode(None, previous=longer, n_reused=9)
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
        "streamd.engines.coreml.runtime.switchover.machine", lambda: ("Apple M9", "99A1")
    )
    new = make_compiled_folder(here)
    assert new != old
    assert [path.name for path in tmp_path.glob("compiled-*")] == [new.name]
