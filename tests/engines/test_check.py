"""The check of a model sees what is wrong, and only that."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from streamd.engines.check import (
    MAX_DISTANCE,
    MAX_KL,
    Numerics,
    average,
    clips,
    compare,
    mel_of,
    numerics,
    read_by_whisper,
    sounds,
)
from streamd.engines.prepared import open_in_memory
from streamd.engines.reference import ReferenceEngine
from streamd.models.store import load_model
from streamd.options import DecodingOptions
from streamd.system.disk import asset
from streamd.whisper.decode import Context, decode, slots_needed
from streamd.whisper.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny.en")


def tokenizer(model) -> Tokenizer:
    return Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=False)


def reference(model, **changed) -> ReferenceEngine:
    weights = {**model.weights, **changed}
    heads = model.alignment_heads
    return ReferenceEngine(model.dims, weights, alignment_heads=heads, bank=model.bank)


def onnx(model, precision, **changed):
    changed_model = replace(model, weights={**model.weights, **changed})
    return open_in_memory(changed_model, threads=1, precision=precision).engine


def compared(model, engine):
    (row,), peaks = compare(model, engine, tokenizer(model), [(clips()[0], False)])
    return row, peaks


def test_an_engine_that_is_the_reference_does_not_differ(tiny):
    row, peaks = compared(tiny, reference(tiny))
    assert row.numerics == Numerics(logits=0.0, alignment=0.0, agreed=1.0, kl=0.0)
    assert row.expected == row.found != ""
    blocks = [
        f"{part}.blocks.{layer}{inside}"
        for part, n in (("encoder", tiny.dims.n_audio_layer), ("decoder", tiny.dims.n_text_layer))
        for layer in range(n)
        for inside in (".mlp", "")
    ]
    assert list(peaks) == blocks
    assert min(peaks.values()) > 0


@pytest.mark.parametrize("name", ["encoder.conv1.bias", "decoder.ln.bias"])
def test_a_wrong_parameter_is_seen(tiny, name):
    row, _ = compared(tiny, reference(tiny, **{name: tiny.weights[name] + np.float32(0.5)}))
    assert not row.numerics.acceptable("float32")


def test_the_largest_value_is_found_where_it_is(tiny):
    name = "encoder.blocks.2.mlp.0.bias"
    bias = tiny.weights[name].copy()
    bias[7] = 1e6
    _, values = compared(replace(tiny, weights={**tiny.weights, name: bias}), reference(tiny))
    assert values["encoder.blocks.2.mlp"] == pytest.approx(1e6, rel=1e-3)
    assert values["encoder.blocks.1.mlp"] < 1e4


def test_float32_and_int8_are_acceptable_as_they_are(tiny):
    exact, _ = compared(tiny, onnx(tiny, "float32"))
    rounded, _ = compared(tiny, onnx(tiny, "int8"))
    assert exact.numerics.acceptable("float32")
    assert rounded.numerics.acceptable("int8")
    assert not rounded.numerics.acceptable("float32")
    assert rounded.found == "Would you please turn on the living room lamp?"


def _scaled(weights):
    name = "encoder.blocks.2.mlp.0.weight"
    return {name: 2 * weights[name]}


def _random_rows(weights):
    name = "decoder.token_embedding.weight"
    rows = weights[name].copy()
    rng = np.random.default_rng(0)
    some = rng.choice(len(rows), len(rows) // 10, replace=False)
    rows[some] = rng.standard_normal((len(some), rows.shape[1])) * rows.std()
    return {name: rows.astype(np.float32)}


@pytest.mark.parametrize("broken", [_scaled, _random_rows])
def test_a_broken_quantisation_is_refused(tiny, broken):
    row, _ = compared(tiny, onnx(tiny, "int8", **broken(tiny.weights)))
    assert not row.numerics.acceptable("int8")
    assert row.found != row.expected


def test_the_divergence_is_that_of_the_distributions():
    alignment = np.ones((2, 1, 4), np.float32)
    wanted = np.log(np.array([[0.5, 0.5], [0.5, 0.5]], np.float32))
    found = np.log(np.array([[0.9, 0.1], [0.5, 0.5]], np.float32)) + np.float32(3)
    kl = (0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)) / 2
    assert numerics((wanted, alignment), (found, alignment)).kl == pytest.approx(kl, rel=1e-5)


def test_what_is_not_a_number_is_not_acceptable():
    row = Numerics(logits=math.nan, alignment=0.0, agreed=1.0, kl=math.nan)
    assert not row.acceptable("int8")
    assert not row.acceptable("float32")
    just = Numerics(logits=MAX_DISTANCE, alignment=0.0, agreed=0.5, kl=MAX_KL)
    assert just.acceptable("int8")
    assert just.acceptable("float32")
    assert average([just, replace(just, kl=3 * MAX_KL)]).kl == pytest.approx(2 * MAX_KL)


def test_clips_are_compared_as_in_a_stream_and_the_longest_as_a_whole():
    def names(n_audio_ctx):
        return [(clip.name, whole) for clip, whole in sounds(n_audio_ctx)]

    full = ("digits", True)
    assert names(1500) == [("lamp", False), ("cards", False), ("digits", False), full]
    assert names(128) == [full]  # no clip fits: only the beginning of one is heard


def test_openai_whisper_reads_the_same_with_the_bundled_weights(tiny):
    engine, words = onnx(tiny, "float32"), tokenizer(tiny)
    options, context = DecodingOptions(), Context(max_tokens=100)
    n_slots = slots_needed(context, options=options, n_text_ctx=tiny.dims.n_text_ctx)
    read = {}
    for clip in clips():
        features = engine.encode(mel_of(tiny, clip.samples, 1500))
        decoder = engine.decoder(features, n_slots)
        found = decode(decoder, words, options=options, context=context)
        read[clip.name] = words.decode(found.tokens).strip()
    assert read == read_by_whisper(asset("tiny.en") / "model.safetensors")
    assert set(read) == set(json.loads((asset("golden") / "clips.json").read_text()))


def test_of_other_weights_nobody_knows_what_openai_whisper_reads(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert read_by_whisper(tmp_path / "model.safetensors") == {}


def test_the_clips_are_speech_of_a_few_seconds():
    assert [clip.name for clip in clips()] == ["lamp", "cards", "digits"]
    for clip in clips():
        assert 1 < len(clip.samples) / 16_000 < 15
        assert clip.text
        assert np.abs(clip.samples).max() > 0.05
