"""Engines on the stand-in for Core ML, for the tests that need one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import coreml_stand_in
from golden import load

from streamd.engine.coreml.built import Built
from streamd.engine.coreml.package import Form
from streamd.engine.coreml.runtime.engine import CoreMLEngine
from streamd.engine.coreml.runtime.messages import Job
from streamd.engine.coreml.runtime.placement import Placement
from streamd.engine.coreml.runtime.supervisor import Patience, Supervisor
from streamd.engine.onnx import OnnxEngine, prepare

PLACEMENTS: dict[Form, Placement] = {
    "state": Placement("gpu", "gpu", "state"),
    "mix": Placement("ane", "ane", "mix"),
    "io": Placement("gpu", "gpu", "io"),
}


PATIENT = Patience(start_s=300.0, answer_s=100.0)
"""A busy machine is no fault."""


@contextmanager
def core_ml(
    built: Built, folder: Path, form: Form = "state", patience: Patience | None = None, *instead
) -> Iterator[CoreMLEngine]:
    """An engine with a worker of its own; `folder` is for what Core ML compiles.

    The worker is started with other patience than it is kept with, as `Takeover` does it.
    """
    folder.mkdir(exist_ok=True)
    patience = patience or PATIENT
    job = Job(built.folder, folder, PLACEMENTS[form], coreml_stand_in.__name__)
    on_trial = Supervisor(built.meta, job, patience=replace(patience, answer_s=PATIENT.answer_s))
    engine = CoreMLEngine(built, on_trial)
    try:
        engine.start()
        engine.rely(patience, *instead)
        yield engine
    finally:
        engine.close()


def on_cpu() -> OnnxEngine:
    """The demo model as the CPU runs it, in float32."""
    model = load.model("demo")
    return prepare.build(
        model.dims, model.weights, alignment_heads=model.alignment_heads, threads=1
    )


@contextmanager
def faulty(folder: Path) -> Iterator[coreml_stand_in.Faults]:
    """Let the workers that are started meanwhile do wrong what the faults say."""
    folder.mkdir(exist_ok=True)
    os.environ[coreml_stand_in.FOLDER] = str(folder)
    try:
        yield coreml_stand_in.Faults(folder)
    finally:
        del os.environ[coreml_stand_in.FOLDER]
