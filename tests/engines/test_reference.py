"""The numpy reference is openai-whisper: same encoder output, same logits, same attention."""

import hashlib
import math
import re

import numpy as np
import pytest

from streamd.engines import reference
from streamd.engines.reference import ReferenceEngine
from streamd.system.disk import asset
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.golden.random_model import thinned
from tests.support.checkpoints import network
from tests.support.decoders import run_pass

TOLERANCE = 1e-5
"""Relative error (rms). float32 rounding makes up to 3e-6; a dropped bias makes 5e-2, swapped
heads 6e-3, a tanh GELU 2e-4, a layer norm without its epsilon 3e-5 or more
(`test_tolerance_would_notice`)."""

CASES = [(name, n_ctx) for name in ("tiny.en", "random") for n_ctx in (384, 1500)]


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def run(name: str, n_ctx: int) -> dict[str, np.ndarray]:
    """Everything that golden.npz has of a model and a context, thinned out in the same way."""
    model = load.model(name)
    engine = ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads)
    )
    features = engine.encode(
        log_mel(load.samples("lamp", n_ctx), model.dims.n_mels), audio_ctx=n_ctx
    )
    tokens = load.arrays()[f"{name}_tokens"]
    k = len(tokens)
    decoder = engine.decoder(features, n_slots=k)
    order = np.arange(k)
    logits, alignment = run_pass(decoder, tokens, order, order, np.tri(k, dtype=np.bool_), order)
    return thinned(features.states[-1], logits, alignment)


def errors(name: str, n_ctx: int) -> dict[str, float]:
    golden = load.arrays()
    found = run(name, n_ctx)
    return {key: relative_error(found[key], golden[f"{name}_{n_ctx}_{key}"]) for key in found}


def test_golden_files_belong_to_the_weights_in_the_box():
    weights = (asset("tiny.en") / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == load.document()["weights_sha256"], (
        "the weights have changed: run tests/golden/make_golden.py"
    )


@pytest.mark.parametrize(("name", "n_ctx"), CASES)
def test_equals_openai_whisper(name, n_ctx):
    for key, error in errors(name, n_ctx).items():
        assert error < TOLERANCE, key


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def layer_norm_without_epsilon(x, weights, name):
    normal = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
    return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


@pytest.mark.parametrize(
    ("name", "slip"), [("gelu", tanh_gelu), ("layer_norm", layer_norm_without_epsilon)]
)
def test_tolerance_would_notice(monkeypatch, name, slip):
    monkeypatch.setattr(reference, name, slip)
    assert max(errors("random", 384).values()) > TOLERANCE


def test_erf():
    x = np.linspace(-5, 5, 1001, dtype=np.float32)
    np.testing.assert_allclose(reference.erf(x), [math.erf(v) for v in x], atol=1.5e-7)


@pytest.mark.parametrize("shape", [(80, 42), (128, 0), (128, 3001)])
def test_encoder_refuses_the_wrong_shape(shape):
    model = load.model("random")
    engine = ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads)
    )
    with pytest.raises(ValueError, match=f"log-mel of shape {re.escape(str(shape))}"):
        engine.encode(np.zeros(shape, np.float32))
