"""Of real speech, the MLX engine gives the tokens, words and times that the ONNX engine gives.

Both in float32. On a GPU sums have another order, so a word may differ where two are as probable.
"""

from functools import cache, partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from lab.eventlog import Began, Said
from lab.replay import replay
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.recording import FileTranscriber
from streamd.engines.mlx.arithmetic import Arithmetic
from streamd.engines.mlx.mlx_engine import MlxEngine
from streamd.engines.prepared import open_in_memory
from streamd.events import Final, Partial
from streamd.models.model import Model
from streamd.models.store import load_model
from streamd.types import SAMPLE_RATE, TextOptions, Window
from streamd.whisper.engine import Engine
from tests.golden.load import samples
from tests.support import recorded
from tests.support.checkpoints import network

pytestmark = pytest.mark.mlx


@cache
def opened(kind: str) -> tuple[Model, Engine[Any]]:
    model = load_model("tiny.en")
    if kind == "onnx":
        return model, open_in_memory(model, threads=1, precision="float32").engine
    heads, arithmetic = model.alignment_heads, Arithmetic("float32", pads=kind == "padded")
    silence = model.silence
    return model, MlxEngine(
        network(model.dims, model.weights, alignment_heads=heads, silence=silence),
        arithmetic=arithmetic,
    )


def about(events) -> list[tuple]:
    """Each event's kind, text, and words with their times; on a GPU only the words of finals."""
    said = [
        (type(each), each.text, [(word.text, word.start_ms, word.end_ms) for word in each.words])
        for each in events
        if isinstance(each, Partial | Final)
    ]
    if mx.default_device().type == mx.cpu:
        return said
    return [recorded.words(text) for kind, text, _ in said if kind is Final]


def spoken_live(kind: str, sound: np.ndarray) -> list[tuple]:
    config = load({"model": "tiny.en"}, {})
    recognizer = build.recognizer(config, *opened(kind))
    n_ms = len(sound) * 1000 // SAMPLE_RATE
    began = Began(name="speech", model="tiny.en", clock="free", step_ms=500, audio_ms=n_ms)
    new_session = partial(build.new_session, config)
    (log,) = replay([recognizer], new_session, [recorded.frames(sound)], began=began)
    return about(each.event for each in log if isinstance(each, Said))


def test_live_captions_are_the_same():
    """Windows that resume others, drafts, guesses, and a pause."""
    sound = recorded.three_sentences()[: 8 * SAMPLE_RATE]
    found = spoken_live("padded", sound)
    assert found == spoken_live("onnx", sound)
    assert len(found) > (10 if mx.default_device().type == mx.cpu else 0)


@pytest.mark.parametrize(
    "given",
    [
        {"beam-size": "5"},
        {"set": ["search.temperatures=0.6"]},
        {"hotwords": "Fosdick, cards"},
    ],
)
def test_beams_samples_and_phrases_are_the_same(given):
    """Trees of slots, which are used again, and passes of several hypotheses."""
    config = load({"model": "tiny.en"} | given, {})
    sound = samples("cards", 300)
    found = []
    for kind in ("plain", "onnx"):
        recognizer = build.recognizer(config, *opened(kind))
        window = Window(0, 300, sound, last=True, options=TextOptions(language="en"), asks=())
        hypothesis = recognizer.recognize(window)
        assert hypothesis.words
        times = [(word.text, word.start, word.end) for word in hypothesis.words]
        found.append((hypothesis.tokens, hypothesis.temperature, times))
    assert found[0] == found[1]


def test_a_recording_whose_windows_are_decoded_together_is_the_same():
    sound = np.tile(recorded.three_sentences(), 2)
    found = []
    for kind in ("plain", "onnx"):
        model, engine = opened(kind)
        writer = FileTranscriber(load({"model": "tiny.en"}, {}), model, engine)
        recording = writer.new_file(pytest.fail)
        recording.take(recorded.frames(sound))
        finals = [final for window in writer.transcribe(recording) for final in window.finals]
        found.append(about(finals))
    assert found[0] == found[1]
    assert len(found[0]) >= 6
