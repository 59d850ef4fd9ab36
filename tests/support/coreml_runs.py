"""Engines on the stand-in for Core ML, for the tests that need one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streamd.engines.coreml.package import (
    SILENCE,
    BuiltModel,
    Form,
    Function,
    FunctionKind,
    open_built,
)
from streamd.engines.coreml.package_builder import write
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLEngine, WorkerLimits
from streamd.engines.coreml.runtime.programs import Placement
from streamd.engines.coreml.runtime.worker import Job
from streamd.engines.onnx import OnnxEngine, build
from streamd.models import ModelDimensions
from streamd.models.model import Model, openai_vocabulary, parameter_shapes
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.text_tokens import TextTokens
from streamd.options import BuildOptions
from tests.golden.shapes import Shape, shaped_weights
from tests.support import coreml_stand_in

PLACEMENTS: dict[Form, Placement] = {
    "state": Placement("gpu", "gpu", "state"),
    "mix": Placement("ane", "ane", "mix"),
}


DIMS = ModelDimensions(
    n_mels=80,
    n_audio_ctx=1500,
    n_audio_state=64,
    n_audio_head=4,
    n_audio_layer=3,
    n_vocab=2608,
    n_text_ctx=448,
    n_text_state=64,
    n_text_head=4,
    n_text_layer=3,
)


class _Unbuildable(pytest.Module):
    """A file of tests on a machine for which coremltools has no wheel."""

    def collect(self):
        pytest.skip("needs coremltools to build packages", allow_module_level=True)


def skipped_without_coremltools(module_path, parent):
    """For ``pytest_pycollect_makemodule``: a file that is skipped, or None where coremltools is."""
    if find_spec("coremltools") is None:
        return _Unbuildable.from_parent(parent, path=module_path)
    return None


@cache
def model() -> Model:
    """A small model with random weights that writes words, doubts some of them and may end.

    Its weights are numbers that float16 holds exactly, as packages store them. What is tested here
    does not depend on the weights, and all of it runs in the slow stand-in.
    """
    shape = Shape(astuple(DIMS), eot_bias=1.7)
    gpt2 = openai_vocabulary(Path("gpt2"), 51_864)
    return Model(
        name="writes",
        dims=DIMS,
        weights={
            name: values.astype(np.float16).astype(np.float32)
            for name, values in shaped_weights(shape, parameter_shapes(DIMS)).items()
        },
        vocabulary=TextTokens(islice(gpt2, shape.n_text_tokens)),
        alignment_heads=((1, 1), (2, 0), (2, 1)),
        language="en",
        silence=SilenceStates(
            np.random.default_rng(3).standard_normal(silence_shape(DIMS)).astype(np.float16)
        ),
    )


def build_small(folder: Path, *contexts: int) -> BuiltModel:
    """That model, built in an empty folder with these contexts besides the full one."""
    write(folder, model(), BuildOptions(audio_contexts=contexts))
    return open_built(folder)


def find(
    built: BuiltModel, kind: FunctionKind, form: Form, *, n_ctx: int = 0, k: int = 0
) -> Function:
    """The first function of a form for this purpose."""
    wanted = (kind, n_ctx, k)
    return next(f for f in built.functions if (f.kind, f.n_ctx, f.k) == wanted and form in f.forms)


PATIENT = WorkerLimits(start_s=300.0, answer_s=100.0)
"""A busy machine is no fault."""


@contextmanager
def core_ml(
    built: BuiltModel,
    folder: Path,
    form: Form = "state",
    limits: WorkerLimits | None = None,
) -> Iterator[CoreMLEngine]:
    """An engine with a worker of its own; `folder` is for what Core ML compiles.

    The worker is started with other limits than it runs with, as `take_over` does it.
    """
    folder.mkdir(exist_ok=True)
    limits = limits or PATIENT
    job = Job(built, folder, PLACEMENTS[form], coreml_stand_in.__name__)
    engine = CoreMLEngine(job, replace(limits, answer_s=PATIENT.answer_s))
    try:
        engine.with_worker(lambda worker: None)
        engine.limits = limits
        yield engine
    finally:
        engine.close()


def on_cpu() -> OnnxEngine:
    """The model as the CPU runs it, in float32."""
    heads = model().alignment_heads
    return build(
        model().dims, model().weights, alignment_heads=heads, silence=model().silence, threads=1
    )


@contextmanager
def arithmetic(*modes: str) -> Iterator[None]:
    """Let the workers that are started meanwhile round as `coreml_stand_in.ARITHMETIC` says."""
    os.environ[coreml_stand_in.ARITHMETIC] = ",".join(modes)
    try:
        yield
    finally:
        del os.environ[coreml_stand_in.ARITHMETIC]


@contextmanager
def faulty(folder: Path) -> Iterator[coreml_stand_in.Faults]:
    """Let the workers that are started meanwhile do wrong what the faults say."""
    folder.mkdir(exist_ok=True)
    os.environ[coreml_stand_in.FOLDER] = str(folder)
    try:
        yield coreml_stand_in.Faults(folder)
    finally:
        del os.environ[coreml_stand_in.FOLDER]


def silence_of(built: BuiltModel) -> SilenceStates | None:
    """The states of silence that the packages hold."""
    return (
        SilenceStates(np.load(built.folder / SILENCE, mmap_mode="r"))
        if built.meta.silence
        else None
    )
