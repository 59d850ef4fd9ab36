"""Encoders on the stand-in for Core ML, for the tests that need one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streamd.engines.coreml.package import SILENCE, BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.coreml.rounding import HeldWeights
from streamd.engines.coreml.runtime.hybrid import HybridEngine, load_encoder
from streamd.engines.onnx import OnnxEngine, build
from streamd.engines.reference import Notice, ReferenceEngine, layer_norm
from streamd.models import ModelDimensions
from streamd.models.model import Model, openai_vocabulary, parameter_shapes
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.text_tokens import TextTokens
from tests.golden.shapes import Shape, shaped_weights
from tests.support import coreml_stand_in

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
    write(folder, model(), contexts=contexts)
    return open_built(folder)


@contextmanager
def core_ml(built: BuiltModel, decoding=None) -> Iterator[HybridEngine]:
    """An engine with an encoder in a worker."""
    library = coreml_stand_in.__name__
    worker = load_encoder(built, library=library, answer_s=100.0)  # a machine may be busy
    engine = HybridEngine(built, worker, decoding or on_cpu())
    try:
        yield engine
    finally:
        engine.close()


def copied(built: BuiltModel, folder: Path) -> BuiltModel:
    """The same where its compiled form has its own place."""
    shutil.copytree(built.folder, folder / "code", copy_function=os.link)
    return replace(built, folder=folder / "code")


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
    return SilenceStates(np.load(built.folder / SILENCE)) if built.meta.silence else None


def held_reference(
    built: BuiltModel, model: Model, *, notice: Notice = lambda where, values: None
) -> ReferenceEngine:
    """The reference with the weights and epsilons that the packages hold.

    So packages are judged without the error of rounding or compressing weights.
    """
    meta, silence = built.meta, silence_of(built)
    weights = HeldWeights(meta.dims, model.weights, meta.bits)
    engine = ReferenceEngine(meta.dims, weights, alignment_heads=(), silence=silence, notice=notice)

    def held(x, weights, name):
        norm = meta.norms[name]
        return layer_norm(x, weights, name, epsilon=norm.epsilon / norm.scale**2)

    engine.norm = held
    return engine
