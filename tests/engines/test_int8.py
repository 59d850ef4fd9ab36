"""Int8: near float32, and lossless for drafts: a token's logits do not depend on its company."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.onnx import build, open_folder, save
from streamd.engines.onnx.builder import quantised
from streamd.engines.onnx.onnx_engine import _MOST_LOGITS
from streamd.engines.reference import ReferenceEngine
from streamd.models.model import OUTPUT
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.support.checkpoints import network
from tests.support.decoders import run_pass

N_CTX = 64
both_precisions = pytest.mark.parametrize("precision", ["float32", "int8"])
tokens_of = st.lists(st.integers(0, 1907), min_size=1, max_size=30)


@cache
def prepared(name: str, precision: str, threads: int = 1):
    """An engine, and the features of one clip."""
    model = load.model(name)
    engine = build(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads),
        threads=threads,
        precision=precision,
    )
    mel = log_mel(load.samples("lamp", 192), model.dims.n_mels)[:, : 2 * N_CTX]
    return engine, engine.encode(mel, audio_ctx=N_CTX)


def in_passes(decoder, tokens, ends) -> tuple[np.ndarray, np.ndarray]:
    """Logits and alignment of all tokens, run in passes that end at `ends`."""
    results = []
    for start, end in pairwise(ends):
        order = np.arange(start, end)
        visible = np.arange(decoder.n_slots) <= order[:, None]
        run = np.array(tokens[start:end])
        results.append(run_pass(decoder, run, order, order, visible, np.arange(end - start)))
    return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@both_precisions
@pytest.mark.parametrize("threads", [1, 2])
@given(
    tokens=st.lists(st.integers(0, 1907), min_size=1, max_size=2 * _MOST_LOGITS + 9),
    cuts=st.lists(st.integers(1, 2 * _MOST_LOGITS)),
)
def test_a_token_gets_the_same_logits_in_any_company(precision, threads, tokens, cuts):
    """To the last bit: so a draft that is verified in one pass is kept exactly as far as decoding
    step by step would have written it."""
    engine, features = prepared("random", precision, threads)
    n = len(tokens)
    ends = sorted({0, *(cut for cut in cuts if cut < n), n})
    together = in_passes(engine.decoder(features, n), tokens, [0, n])
    apart = in_passes(engine.decoder(features, n), tokens, ends)
    for found, expected in zip(apart, together, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n", [_MOST_LOGITS + 1, 2 * _MOST_LOGITS, 3 * _MOST_LOGITS])
def test_many_logits_are_computed_in_parts_in_the_order_that_is_asked_for(n):
    engine, features = prepared("random", "int8")
    tokens, order = np.arange(n), np.arange(n)
    expected, alignment = in_passes(engine.decoder(features, n), tokens, range(n + 1))
    want = np.array([n - 3, *range(2, n - 3), 0])
    visible = np.tri(n, dtype=np.bool_)
    found = run_pass(engine.decoder(features, n), tokens, order, order, visible, want)
    np.testing.assert_array_equal(found[0], expected[want])
    np.testing.assert_array_equal(found[1], alignment)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("reference", "float32"),
        *((kind, each) for kind in ("in memory", "in a folder") for each in ("float32", "int8")),
    ],
)
def test_the_logits_of_some_tokens_are_theirs_among_all(tmp_path, precision, tied, kind):
    model = load.model("random")
    weights, heads, n = model.weights, model.alignment_heads, 2 * _MOST_LOGITS
    if not tied:  # the output layer is not the embeddings
        rows = np.random.default_rng(3).normal(size=weights["decoder.token_embedding.weight"].shape)
        weights = weights | {OUTPUT: rows.astype(np.float32)}
    if kind == "reference":
        engine = ReferenceEngine(network(model.dims, weights, alignment_heads=heads))
    elif kind == "in memory":
        engine = build(network(model.dims, weights, alignment_heads=heads), precision=precision)
    else:
        save(tmp_path, network(model.dims, weights, alignment_heads=heads), precision)
        engine = open_folder(tmp_path, model.dims, threads=1)
    mel = log_mel(load.samples("lamp", 192), model.dims.n_mels)[:, : 2 * N_CTX]
    order, want, among = np.arange(n), np.arange(3, n), np.array([7, 1500, 2, 7])
    visible = np.tri(n, dtype=np.bool_)
    features = engine.encode(mel, audio_ctx=N_CTX)
    every, alignment = run_pass(engine.decoder(features, n), order, order, order, visible, want)
    some = run_pass(engine.decoder(features, n), order, order, order, visible, want, among)
    assert some[0].dtype == np.float32
    assert relative(some[0], every[:, among]) < (1e-5 if precision == "float32" else 0.02)
    np.testing.assert_array_equal(some[1], alignment)


@both_precisions
@given(kept=tokens_of, rejected=tokens_of, tail=tokens_of)
def test_a_rejected_draft_leaves_no_trace(precision, kept, rejected, tail):
    engine, features = prepared("random", precision)
    decoder = engine.decoder(features, 96)
    n_kept, n = len(kept), len(kept) + len(tail)
    in_passes(decoder, kept + rejected, [0, len(kept) + len(rejected)])
    found = in_passes(decoder, kept + tail, range(n_kept, n + 1))
    expected = in_passes(engine.decoder(features, 96), kept + tail, [0, n])
    np.testing.assert_array_equal(found[0], expected[0][n_kept:])


@pytest.mark.parametrize("name", ["random", "tiny.en"])
def test_is_near_float32(name):
    """Measured: encoder 0.025 and 0.048 (random, tiny.en), logits 0.038 and 0.060."""
    tokens = list(np.random.default_rng(2).integers(0, load.model(name).dims.n_vocab, 40))
    if name == "tiny.en":  # on text that fits the sound; nonsense moves its logits by 0.10
        tokens = load.arrays()["tiny.en_tokens"].tolist()
    keys, logits = [], []
    for precision in ("float32", "int8"):
        engine, features = prepared(name, precision)
        cross = [rows for name, rows in features.views.items() if name.startswith("cross_")]
        keys.append(np.concatenate([rows.ravel() for rows in cross]))
        logits.append(in_passes(engine.decoder(features, 40), tokens, [0, len(tokens)])[0])
    assert relative(keys[1], keys[0]) < 0.08
    assert relative(logits[1], logits[0]) < 0.1
    assert relative(logits[1], logits[0]) > 1e-4, "this is not int8"


def test_weights_are_rounded_to_the_nearest_step():
    weight = np.random.default_rng(7).standard_normal((5, 48), dtype=np.float32)
    weight[2] = 0  # an output without a scale of its own
    integers, scales = quantised(weight)
    assert integers.shape == (48, 5)
    assert np.abs(integers).max() == 127
    assert (np.abs(integers.T * scales[:, None] - weight) <= scales[:, None] * 0.501).all()


def test_a_row_of_zeros_is_no_accident():
    """Not a number would spread; a weight of zeros makes such rows behind a layer norm."""
    model = load.model("random")
    weights = dict(model.weights)
    for part in ("weight", "bias"):
        weights[f"decoder.blocks.0.attn_ln.{part}"] = np.zeros(48, np.float32)
    heads = model.alignment_heads
    engine = build(network(model.dims, weights, alignment_heads=heads), precision="int8")
    features = engine.encode(np.zeros((128, 2 * N_CTX), np.float32), audio_ctx=N_CTX)
    logits, _ = in_passes(engine.decoder(features, 3), [1, 2, 3], [0, 3])
    assert np.isfinite(logits).all()
