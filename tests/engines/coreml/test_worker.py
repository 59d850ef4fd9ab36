"""A worker may die, hang or fail: what is computed is the same, or the error is reported."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from math import prod
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

import pytest

from streamd.engines.coreml.golden import against_golden, golden_vectors
from streamd.engines.coreml.runtime import worker
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLEngine, WorkerLimits
from streamd.engines.coreml.runtime.worker import Job, WorkerLostError
from streamd.errors import EngineError
from tests.support import coreml_stand_in
from tests.support.coreml_runs import PATIENT, PLACEMENTS, core_ml, faulty, find

EXACT = 1e-5

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(400)]


@pytest.fixture
def faults(tmp_path):
    with faulty(tmp_path / "faults") as faults:
        yield faults


def workers() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if "coreml" in child.name]


def assert_right(engine, built) -> None:
    numerics = against_golden(engine, golden_vectors(built))
    assert max(numerics.logits, numerics.alignment) < EXACT


def assert_warned(caplog, *texts: str) -> None:
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == len(texts)
    for text, expected in zip(warned, texts, strict=True):
        assert expected in text


@pytest.mark.parametrize("form", ["state", "mix"])
def test_a_worker_that_is_killed_in_the_middle_is_replaced(built, faults, form, tmp_path, caplog):
    faults.add("kill", function="step2", after=1)
    with core_ml(built, tmp_path / "compiled", form) as engine:
        assert_right(engine, built)
    assert_warned(caplog, "ended by SIGKILL; starting another")
    loads = [call for call in faults.done() if call[0] == "load" and call[2] == "step2"]
    assert len(loads) == 2
    assert [call[2] for call in faults.done() if call[0] == "compile"].count("encoder") == 1


@pytest.mark.parametrize(
    ("fault", "warning"),
    [
        ({"what": "fail", "function": "step"}, "Unable to compute the prediction"),
        ({"what": "kill", "function": "ctx"}, "ended by SIGKILL"),
        ({"what": "kill", "at": "load", "function": "align"}, "ended by SIGKILL"),
        ({"what": "fail", "at": "load", "function": "align"}, "Unable to compute"),
    ],
)
def test_a_lost_worker_is_reported_and_replaced(built, faults, fault, warning, tmp_path, caplog):
    faults.add(**fault)
    with core_ml(built, tmp_path / "compiled") as engine:
        assert_right(engine, built)
    assert_warned(caplog, warning)


def test_a_worker_that_hangs_is_replaced(built, faults, tmp_path, caplog):
    faults.add("hang", function="step", after=2)
    limits = replace(PATIENT, answer_s=2.0, deaths=9)  # on a busy machine a few are innocent
    with core_ml(built, tmp_path / "compiled", "state", limits) as engine:
        assert_right(engine, built)
    assert "did not answer within 2 s; starting another" in caplog.text
    assert not list(faults.folder.glob("fault-*")), "it did hang"


def test_a_worker_that_does_not_get_ready_is_replaced(built, faults, tmp_path, caplog):
    faults.add("hang", at="load", function="step16")
    limits = replace(PATIENT, start_s=12.0, deaths=9)
    with core_ml(built, tmp_path / "compiled", "state", limits) as engine:
        assert_right(engine, built)
    assert "was not ready within 12 s; starting another" in caplog.text
    assert not list(faults.folder.glob("fault-*")), "it did hang"


def test_too_many_lost_workers_are_an_engine_error(built, faults, tmp_path, caplog):
    faults.add("kill", function="step", once=False)
    with (
        core_ml(built, tmp_path / "compiled") as engine,
        pytest.raises(EngineError, match=r"^Core ML failed, .* SIGKILL; use --compute cpu$"),
    ):
        against_golden(engine, golden_vectors(built))
    assert_warned(caplog, "SIGKILL", "SIGKILL")
    assert workers() == []


def test_workers_lost_many_windows_ago_do_not_count(built, tmp_path):
    job = Job(built, tmp_path, PLACEMENTS["state"], "never imported")
    engine = CoreMLEngine(job, WorkerLimits(deaths=2, windows=10))
    for _ in range(5):
        engine.lost(WorkerLostError("died"))
        engine.n_windows += 10
    engine.lost(WorkerLostError("died"))
    engine.n_windows += 1
    with pytest.raises(EngineError):
        engine.lost(WorkerLostError("died"))


def test_a_package_that_is_gone_is_an_engine_error(built, tmp_path):
    gone = replace(built, folder=tmp_path / "gone")
    job = Job(gone, tmp_path, PLACEMENTS["state"], library=coreml_stand_in.__name__)
    engine = CoreMLEngine(job, WorkerLimits(deaths=1))
    with pytest.raises(EngineError, match="gone"):
        engine.with_worker(lambda worker: None)


def test_signals_for_the_program_leave_the_worker_alone(built, tmp_path):
    with core_ml(built, tmp_path / "compiled") as engine:
        engine.with_worker(lambda worker: None)
        before = workers()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(before[0], number)
        assert_right(engine, built)
        assert workers() == before


class Closed:
    """A connection whose other end asks for nothing."""

    def send(self, reply): ...

    def recv(self):
        raise EOFError


@pytest.mark.parametrize("serve", [True, False])
def test_a_worker_that_somebody_waits_for_is_not_in_the_background(
    built, tmp_path, monkeypatch, serve
):
    lowered = []
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(os, "setpriority", lambda *which: lowered.append(which))
    job = Job(built, tmp_path, PLACEMENTS["mix"], coreml_stand_in.__name__, serve=serve)
    job = replace(job, functions=(find(built, "cross", "mix", n_ctx=384),))
    memory = [RawArray("f", prod(shape)) for shape in worker._shapes(built.meta)]
    with suppress(EOFError):
        worker._serve(job, Closed(), memory)
    assert bool(lowered) != serve


def test_a_worker_ends_with_its_engine(built, tmp_path):
    with core_ml(built, tmp_path / "compiled") as engine:
        engine.with_worker(lambda worker: None)
        assert len(workers()) == 1
    assert workers() == []


ORPHAN = """
import os, sys
from pathlib import Path
from tests.support.coreml_runs import core_ml
from streamd.engines.coreml.package import open_built

if __name__ == "__main__":
    with core_ml(open_built(Path(sys.argv[1])), Path(sys.argv[2])) as engine:
        engine.with_worker(lambda worker: None)
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_when_its_program_is_killed(built, tmp_path, number):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    root = str(Path(__file__).parents[3])
    program = subprocess.Popen(
        [sys.executable, str(script), str(built.folder), str(tmp_path / "compiled")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    with program:
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(number)
        assert program.stdout.read() == b"", "ends when the worker, which has it too, ends"
