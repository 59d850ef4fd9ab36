"""Whole recordings become what ``whisper.transcribe`` makes of them."""

import hashlib
import json
from functools import cache
from typing import Any

import pytest

from streamd.assets import asset
from streamd.engine.longform import TranscribedWindow, Transcriber, clips_at
from streamd.engine.onnx import OnnxEngine, build
from streamd.engine.weights import parameter_shapes
from streamd.mel.windows import RecordingMel
from streamd.options import DecodingOptions, LongformOptions
from streamd.search.tokenizer import Tokenizer
from tests.golden import load, longform

DOCUMENT = json.loads((load.HERE / "longform.json").read_text())


@cache
def engine(name: str) -> OnnxEngine:
    model = load.model(name)
    weights = model.weights
    if name == "random":
        weights = longform.long_weights(parameter_shapes(model.dims))
    return build(model.dims, weights, alignment_heads=model.alignment_heads)


@cache
def mel(sound: str, n_mels: int) -> RecordingMel:
    recording = RecordingMel(n_mels)
    recording.append(longform.sound(sound))
    recording.finish()
    return recording


def transcribe(
    name: str, sound: str, options: dict[str, Any]
) -> tuple[str, list[TranscribedWindow]]:
    """With openai-whisper's options."""
    o = dict(options)
    model = load.model(name)
    tokenizer = Tokenizer(
        model.vocabulary,
        model.dims.n_vocab,
        multilingual=model.language is None,
        language=model.language or "en",
        task=o.pop("task", "transcribe"),
    )
    clips = o.pop("clip_timestamps", [])
    if isinstance(clips, str):
        clips = map(float, clips.split(","))
    temperature = o.pop("temperature", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    silence = o.pop("hallucination_silence_threshold", None)
    names = (
        *("condition_on_previous_text", "initial_prompt", "carry_initial_prompt"),
        *("prepend_punctuations", "append_punctuations"),
    )
    longform_options = LongformOptions(
        word_timestamps=o.pop("word_timestamps", False),
        hallucination_silence_ms=round(1000 * (silence or 0)),
        **{name: o.pop(name) for name in names if name in o},
    )
    decoding = DecodingOptions(
        timestamps=not o.pop("without_timestamps", False),
        temperatures=(temperature,) if isinstance(temperature, float) else tuple(temperature),
        best_of=o.pop("best_of", 1),  # openai-whisper's default outside its command line
        loops=None,
        audio_ctx=1500,
        **o,
    )
    recording = mel(sound, model.dims.n_mels)
    transcriber = Transcriber(engine(name), tokenizer, decoding, longform_options)
    language = transcriber.language(recording)
    points = [round(seconds * 1000) for seconds in clips]
    heard = transcriber.transcribe(
        recording, clips_at(points, recording.n_columns), language=language
    )
    return language, list(heard)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=f"{c['model']}-{i}") for i, c in enumerate(DOCUMENT["cases"])],
)
def test_as_openai_whisper(case):
    language, heard = transcribe(case["model"], case["sound"], case["options"])
    assert language == case["language"]
    found = [segment for window in heard for segment in window.segments]
    end_ms = mel(case["sound"], 80).n_columns * 10
    # openai-whisper also tells what the model places into the padding behind the recording
    expected = [segment for segment in case["segments"] if segment["start_ms"] < end_ms]
    # without timestamps openai-whisper leaves them some probability, streamd none
    tolerance = 1e-2 if "without_timestamps" in case["options"] else 1e-4
    assert [list(s.tokens) for s in found] == [s["tokens"] for s in expected]
    for ours, golden in zip(found, expected, strict=True):
        assert ours.seek == golden["seek"]
        slack_ms = 20 if golden["words"] else 0  # then they are times of words
        assert abs(ours.start_ms - golden["start_ms"]) <= slack_ms
        assert abs(ours.end_ms - min(golden["end_ms"], end_ms)) <= slack_ms
        assert ours.temperature == golden["temperature"]
        assert ours.avg_logprob == pytest.approx(golden["avg_logprob"], abs=tolerance)
        assert ours.no_speech_prob == pytest.approx(golden["no_speech_prob"], rel=1e-3)
        assert ours.compression_ratio == pytest.approx(golden["compression_ratio"], rel=1e-4)
        assert [word.text for word in ours.words] == [text for text, *_ in golden["words"]]
        for word, (_, start_ms, word_end_ms, prob) in zip(ours.words, golden["words"], strict=True):
            assert abs(word.start_ms - start_ms) <= 20
            assert abs(word.end_ms - min(word_end_ms, end_ms)) <= 20
            assert word.prob == pytest.approx(prob, abs=1e-3)


def test_the_golden_files_belong_to_the_weights_in_the_box():
    weights = (asset("tiny.en") / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == DOCUMENT["weights_sha256"], (
        "the weights have changed: run tests/golden/make_longform.py"
    )
