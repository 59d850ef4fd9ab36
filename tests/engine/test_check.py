"""The check of a model sees what is wrong, and only that."""

from dataclasses import replace

import numpy as np
import pytest

from streamd.assets import asset
from streamd.engine.check import as_golden, clips, compare, golden_cases
from streamd.engine.reference import ReferenceEngine
from streamd.engine.store import load_model
from streamd.search.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny.en")


def tokenizer(model) -> Tokenizer:
    return Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=False)


def reference(model, **changed) -> ReferenceEngine:
    weights = {**model.weights, **changed}
    return ReferenceEngine(model.dims, weights, alignment_heads=model.alignment_heads)


def test_an_engine_that_is_the_reference_does_not_differ(tiny):
    numerics, peaks = compare(tiny, reference(tiny), tokenizer(tiny))
    assert (numerics.logits, numerics.alignment, numerics.agreed) == (0.0, 0.0, 1.0)
    blocks = [
        f"{part}.blocks.{layer}{inside}"
        for part, n in (("encoder", tiny.dims.n_audio_layer), ("decoder", tiny.dims.n_text_layer))
        for layer in range(n)
        for inside in (".mlp", "")
    ]
    assert [peak.where for peak in peaks] == blocks
    assert all(peak.value > 0 for peak in peaks)


@pytest.mark.parametrize("name", ["encoder.conv1.bias", "decoder.ln.bias"])
def test_a_wrong_parameter_is_seen(tiny, name):
    wrong = reference(tiny, **{name: tiny.weights[name] + np.float32(0.5)})
    numerics, _ = compare(tiny, wrong, tokenizer(tiny))
    assert numerics.logits > 0.01


def test_the_largest_value_is_found_where_it_is(tiny):
    name = "encoder.blocks.2.mlp.0.bias"
    bias = tiny.weights[name].copy()
    bias[7] = 1e6
    _, peaks = compare(
        replace(tiny, weights={**tiny.weights, name: bias}), reference(tiny), tokenizer(tiny)
    )
    values = {peak.where: peak.value for peak in peaks}
    assert values["encoder.blocks.2.mlp"] == pytest.approx(1e6, rel=1e-3)
    assert values["encoder.blocks.1.mlp"] < 1e4


def test_golden_decodes_are_reproduced_and_missed_by_other_weights(tiny):
    cases = golden_cases(asset("tiny.en") / "model.safetensors")
    assert {case.clip for case in cases} == {clip.name for clip in clips()}
    first = cases[:1]  # search/test_golden.py has all of them
    assert as_golden(reference(tiny), tokenizer(tiny), first) == [True]
    silent = reference(tiny, **{"encoder.ln_post.weight": np.zeros(384, np.float32)})
    assert as_golden(silent, tokenizer(tiny), first) == [False]


def test_other_weights_have_no_golden_decodes(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert golden_cases(tmp_path / "model.safetensors") == []


def test_the_clips_are_speech_of_a_few_seconds():
    assert [clip.name for clip in clips()] == ["lamp", "cards", "digits"]
    for clip in clips():
        assert 1 < len(clip.samples) / 16_000 < 15
        assert clip.text
        assert np.abs(clip.samples).max() > 0.05
