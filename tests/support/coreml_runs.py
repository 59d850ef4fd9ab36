"""Encoders on the stand-in for Core ML, for the tests that need one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streamd.engines.coreml.package import BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.coreml.rounding import HeldWeights, epsilon
from streamd.engines.coreml.runtime.encoder import CoreMLEncoder, make_compiled_folder
from streamd.engines.coreml.runtime.hybrid import HybridEngine
from streamd.engines.onnx import OnnxEngine, build
from streamd.engines.reference import Notice, ReferenceEngine, layer_norm
from streamd.engines.supervised.worker import Job, Worker
from streamd.models import ModelDimensions
from streamd.models.model import Model, openai_vocabulary, parameter_shapes
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.text_tokens import TextTokens
from tests.golden.shapes import Shape, shaped_weights
from tests.support import coreml_stand_in
from tests.support.checkpoints import network

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


def pytest_pycollect_makemodule(module_path, parent):
    """For a ``conftest.py``: without coremltools, tests that build packages are skipped."""
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


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> BuiltModel:
    """That model, built once for all tests of a process."""
    folder = tmp_path_factory.mktemp("built")
    write(folder, model())
    return open_built(folder)


@pytest.fixture
def here(built, tmp_path) -> BuiltModel:
    """The same where its compiled form has its own place."""
    shutil.copytree(built.folder, tmp_path / "code", copy_function=os.link)
    return replace(built, folder=tmp_path / "code")


@contextmanager
def core_ml(built: BuiltModel, decoding=None) -> Iterator[HybridEngine]:
    """An engine with an encoder in a worker."""
    given = built, make_compiled_folder(built), coreml_stand_in.__name__
    worker = Worker(Job(partial(CoreMLEncoder, *given), "the stand-in"))
    worker.wait(100.0)  # a machine may be busy
    worker.call("load")
    engine = HybridEngine(built, worker, decoding or on_cpu())
    try:
        yield engine
    finally:
        engine.close()


def on_cpu() -> OnnxEngine:
    """The model as the CPU runs it, in float32."""
    heads = model().alignment_heads
    return build(
        network(model().dims, model().weights, alignment_heads=heads, silence=model().silence),
        threads=1,
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


def held_reference(
    built: BuiltModel, model: Model, *, notice: Notice = lambda where, values: None
) -> ReferenceEngine:
    """The reference with the weights and epsilons that the packages hold.

    So packages are judged without the error of rounding or compressing weights.
    """
    meta, weights = built.meta, HeldWeights(model.dims, model.weights, built.meta.bits)
    engine = ReferenceEngine(
        network(meta.dims, weights, alignment_heads=(), silence=model.silence), notice=notice
    )

    def held(x, weights, name):
        scale = meta.norms[name]
        return layer_norm(x, weights, name, epsilon=float(epsilon(scale)) / scale**2)

    engine.norm = held
    return engine
