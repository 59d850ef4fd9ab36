"""Small checkpoints of the shapes that Whisper models come in, and the formats to write them."""

import base64
import json
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import torch_file
from golden.load import samples
from golden.random_model import random_weights
from safetensors.numpy import save_file

from streamd.engine import ModelDimensions
from streamd.engine.model import Model
from streamd.engine.onnx import prepare
from streamd.engine.recognizer import Recognizer
from streamd.engine.store import load_model
from streamd.engine.weights import parameter_shapes
from streamd.errors import ModelError
from streamd.search.options import DecodingOptions
from streamd.search.tokenizer import Tokenizer
from streamd.types import Hypothesis, Window

sys.path.append(str(Path(__file__).parents[2] / "models" / "export"))
ggml, huggingface, vocabulary = map(import_module, ("ggml", "huggingface", "vocabulary"))

SHAPES = {
    "tiny": {"n_vocab": 51_865},
    "tiny.en": {"n_vocab": 51_864},
    "large-v3": {"n_vocab": 51_866, "n_mels": 128, "n_audio_layer": 3, "n_text_layer": 3},
    "distil": {"n_vocab": 51_865, "n_audio_layer": 4, "n_text_layer": 1},
}
"""Like OpenAI's and distil-whisper's, but for their widths."""
N_FEW_TOKENS = 300
_LIKE = {
    "n_mels": 80,
    "n_audio_ctx": 128,
    "n_audio_state": 32,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_text_ctx": 64,
    "n_text_state": 32,
    "n_text_head": 2,
    "n_text_layer": 2,
}


@cache
def checkpoint(shape: str) -> Any:
    """Random weights, rounded to float16 as those in files are; "demo" is the demo model.

    "few" has the vocabulary of no model, and is small enough to be damaged many times.
    """
    if shape == "demo":
        return vocabulary.complete(load_model("demo"))
    few = {"n_vocab": N_FEW_TOKENS + 1608}
    dims = ModelDimensions(**_LIKE | SHAPES.get(shape, few))
    weights = {
        name: values.astype(np.float16).astype(np.float32)
        for name, values in random_weights(parameter_shapes(dims)).items()
    }
    if shape == "few":
        tokens = list(load_model("demo").vocabulary)[:N_FEW_TOKENS]
    else:
        tokens = vocabulary.openai_tokens(multilingual=dims.n_vocab > 51_864)
    heads = [(dims.n_text_layer - 1, head) for head in range(dims.n_text_head)]
    return vocabulary.Whole(dims, weights, tokens, tuple(heads))


def write_own(whole: Any, out: Path) -> Path:
    """streamd's own folder."""
    folder = out / "own"
    folder.mkdir()
    config = {
        "dims": asdict(whole.dims),
        "alignment_heads": whole.alignment_heads,
        "language": None if whole.multilingual else "en",
        "min_audio_ctx": min(384, whole.dims.n_audio_ctx),
    }
    (folder / "config.json").write_text(json.dumps(config))
    lines = [f"{base64.b64encode(t).decode() or '='} {i}\n" for i, t in enumerate(whole.tokens)]
    (folder / "vocab.tiktoken").write_text("".join(lines))
    half = {name: vocabulary.half(values) for name, values in whole.weights.items()}
    save_file(half, folder / "model.safetensors")
    return folder


def write_openai(whole: Any, out: Path) -> Path:
    """openai-whisper's file."""
    half = {name: vocabulary.half(values) for name, values in whole.weights.items()}
    return torch_file.write(out / "model.pt", asdict(whole.dims), half)


def transcribe(model: Model) -> Hypothesis:
    """What the model makes of a second of speech."""
    heads = model.alignment_heads
    engine = prepare.build(model.dims, model.weights, alignment_heads=heads, threads=1)
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=model.language is None)
    options = DecodingOptions(temperatures=(0.0,), audio_ctx=min(192, model.dims.n_audio_ctx))
    n_frames = min(120, model.dims.n_audio_ctx)
    sound = samples("digits", 1500)[: n_frames * 320]
    window = Window(start=0, end=n_frames, samples=sound, prompt=(), prefix=(), draft=(), last=True)
    return Recognizer(engine, tokenizer, options).recognize(window)


def refusal(path: Path) -> str:
    """The one line with which the model is refused."""
    with pytest.raises(ModelError) as caught:
        load_model(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@contextmanager
def little_memory() -> Iterator[None]:
    """What is done here allocates less than 50 MB at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def assert_same(found: Model, expected: Model) -> None:
    """Dimensions, every weight, vocabulary, language."""
    assert found.dims == expected.dims
    assert found.weights.keys() == expected.weights.keys()
    for name, values in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], values, err_msg=name)
        assert found.weights[name].dtype == np.float32
    assert found.vocabulary == expected.vocabulary
    assert found.language == expected.language
    assert found.min_audio_ctx == expected.min_audio_ctx
