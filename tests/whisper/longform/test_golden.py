"""Whole recordings become what ``whisper.transcribe`` makes of them.

longform.json is of models; scripted.json leaves them out: what a window's decode and alignment give
is drawn at random, so the rules between the windows are tested whatever a model writes.
"""

import hashlib
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from streamd.engines.onnx import OnnxEngine, build
from streamd.models import ModelDimensions
from streamd.models.model import parameter_shapes
from streamd.system.disk import asset
from streamd.types import Word
from streamd.whisper.engine import Search
from streamd.whisper.longform import reader
from streamd.whisper.longform.segments import SpokenWord, in_ms
from streamd.whisper.mel import RecordingMel
from streamd.whisper.tokenizer import Tokenizer
from tests.golden import load, longform
from tests.golden.compare import transcribe, within
from tests.golden.scripts import CASES, PUNCTUATION, Script
from tests.support.checkpoints import network
from tests.support.decoders import decoded

DOCUMENT = load.document("longform")


@cache
def engine(name: str) -> OnnxEngine:
    model = load.model(name)
    weights = model.weights
    if name == "random":
        weights = longform.long_weights(parameter_shapes(model.dims))
    return build(network(model.dims, weights, alignment_heads=model.alignment_heads))


@cache
def sound_mel(sound: str, n_mels: int) -> RecordingMel:
    return mel_of(longform.sound(sound), n_mels)


def mel_of(samples: np.ndarray, n_mels: int) -> RecordingMel:
    recording = RecordingMel(n_mels)
    recording.append(samples)
    recording.finish()
    return recording


def tokenizer(name: str, task: str = "transcribe") -> Tokenizer:
    model = load.model(name)
    return Tokenizer(
        model.vocabulary,
        model.dims.n_vocab,
        multilingual=model.language is None,
        language=model.language or "en",
        task=task,
    )


CASES_OF_MODELS = [pytest.param(c, id=f"{c['model']}-{i}") for i, c in enumerate(DOCUMENT["cases"])]


@pytest.mark.parametrize("case", CASES_OF_MODELS)
def test_as_openai_whisper(case):
    check(case)


def check(case: dict[str, Any]) -> None:
    """Transcribe a case, and compare each segment and word."""
    options, name = dict(case["options"]), case["model"]
    mel = sound_mel(case["sound"], load.model(name).dims.n_mels)
    words_of = tokenizer(name, options.pop("task", "transcribe"))
    language, windows = transcribe(engine(name), words_of, mel, options)
    assert language == case["language"]
    found = [segment for window in windows for segment in window.segments]
    expected = within(case["segments"], mel.n_columns * 10)
    # without timestamps openai-whisper leaves them some probability, streamd none
    tolerance = 1e-2 if "without_timestamps" in case["options"] else 1e-4
    assert [list(s.tokens) for s in found] == [s["tokens"] for s in expected]
    for ours, golden in zip(found, expected, strict=True):
        assert ours.seek == golden["seek"]
        slack_ms = 20 if golden["words"] else 0  # then they are times of words
        assert abs(in_ms(ours.start_s) - golden["start_ms"]) <= slack_ms
        assert abs(in_ms(ours.end_s) - golden["end_ms"]) <= slack_ms
        assert ours.decoded.temperature == golden["temperature"]
        assert ours.decoded.avg_logprob == pytest.approx(golden["avg_logprob"], abs=tolerance)
        assert ours.decoded.no_speech_prob == pytest.approx(golden["no_speech_prob"], rel=1e-3)
        assert ours.decoded.compression_ratio == pytest.approx(
            golden["compression_ratio"], rel=1e-4
        )
        assert [word.text for word in ours.words] == [text for text, *_ in golden["words"]]
        for word, (_, start_ms, end_ms, prob) in zip(ours.words, golden["words"], strict=True):
            assert abs(in_ms(word.start_s) - start_ms) <= 20
            assert abs(in_ms(word.end_s) - end_ms) <= 20
            assert word.prob == pytest.approx(prob, abs=1e-3)


def test_the_golden_files_belong_to_the_weights_in_the_box():
    weights = (asset("tiny.en") / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == DOCUMENT["weights_sha256"], (
        "the weights have changed: run tests/golden/make_longform.py"
    )


class ScriptedSearch:
    """Takes the place of `decode` and `align`."""

    def __init__(self, seed: int, tokenizer: Tokenizer) -> None:
        self._script, self._tokenizer = Script(seed), tokenizer
        self.told: list[int] = []

    def decode(self, n_columns, tokenizer, *, options, context, temperature, rng) -> Search:
        yield from ()  # asks for no pass
        self.told.append(zlib.crc32(repr(list(context.prompt)).encode()))
        written = self._script.write(n_columns)
        names = ("tokens", "avg_logprob", "no_speech_prob", "compression_ratio")
        known = {name: getattr(written, name) for name in names}
        return decoded(temperature=temperature, language=context.language, **known)

    def align(self, n_columns, tokenizer, tokens, *, language, n_frames) -> Search:
        yield from ()  # asks for no pass
        assert n_frames == n_columns // 2
        if not tokens:
            return []
        return [
            Word(PUNCTUATION.get(token) or tokenizer.decode([token]), start, end, prob, (token,))
            for token, start, end, prob in self._script.align(list(tokens), n_frames)
        ]


class Engine:
    """Its features, and its decoder, are how many columns of a window hold sound."""

    n_cheap = 4

    def __init__(self, dims: ModelDimensions) -> None:
        self.dims = dims

    def encode(self, mel) -> int:
        return int((mel != 0).any(axis=0).sum())

    def decoder(self, features, n_slots) -> int:
        return features


@pytest.mark.parametrize(
    ("case", "golden"),
    [
        pytest.param(case, golden, id=f"{case[0]}")
        for case, golden in zip(CASES, load.document("scripted")["cases"], strict=True)
    ],
)
def test_as_openai_whisper_whatever_a_model_writes(case, golden, monkeypatch):
    seed, seconds, options = case
    words_of = tokenizer("random")
    search = ScriptedSearch(seed, words_of)
    monkeypatch.setattr(reader, "decode", search.decode)
    monkeypatch.setattr(reader, "align", search.align)
    mel = mel_of(np.zeros(int(seconds * 16_000), np.float32), 80)
    dims = load.model("random").dims
    _, windows = transcribe(Engine(dims), words_of, mel, {"language": "en"} | options)
    found = [
        {
            "seek": s.seek,
            "start_ms": in_ms(s.start_s),
            "end_ms": in_ms(s.end_s),
            "n_tokens": len(s.tokens),
            "temperature": s.decoded.temperature,
            "words": _times(s.words),
        }
        for window in windows
        for s in window.segments
    ]
    names = ("seek", "start_ms", "end_ms", "n_tokens", "temperature", "words")
    expected = [dict(zip(names, segment, strict=True)) for segment in golden["segments"]]
    assert search.told == golden["told"]
    assert found == within(expected, 10 * mel.n_columns)


def _times(words: Sequence[SpokenWord]) -> list[list[Any]]:
    return [[word.text, in_ms(word.start_s), in_ms(word.end_s)] for word in words]
