"""Small checkpoints of the shapes that Whisper models come in, and the formats to write them."""

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from streamd.engines.onnx import build
from streamd.errors import ModelError
from streamd.models import ModelDimensions, Weights
from streamd.models.model import Model, only_language, openai_vocabulary, parameter_shapes
from streamd.models.silence import SilenceStates
from streamd.models.store.layouts import layout_of, opened
from streamd.models.text_tokens import TextTokens
from streamd.options import DecodingOptions
from streamd.types import Hypothesis, Window
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer
from tests.golden.load import samples
from tests.golden.random_model import random_weights
from tests.support import ggml_file as ggml
from tests.support import huggingface_folder as huggingface
from tests.support import torch_file

__all__ = ["ggml", "huggingface"]
"""Writers that tests import from here, too."""

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


def dimensions(shape: str) -> ModelDimensions:
    return ModelDimensions(**_LIKE | SHAPES.get(shape, {"n_vocab": N_FEW_TOKENS + 1608}))


@cache
def checkpoint(shape: str) -> Model:
    """Random weights, rounded to float16 as those in files are, of one of the `SHAPES` or "few".

    "few" has the vocabulary of no model, and is small enough to be damaged many times.
    """
    dims = dimensions(shape)
    vocabulary = openai_vocabulary(Path(shape), 51_864 if shape == "few" else dims.n_vocab)
    if shape == "few":
        vocabulary = TextTokens(islice(vocabulary, N_FEW_TOKENS))
    return Model(
        name=shape,
        dims=dims,
        weights={
            name: values.astype(np.float16).astype(np.float32)
            for name, values in random_weights(parameter_shapes(dims)).items()
        },
        vocabulary=vocabulary,
        alignment_heads=tuple((dims.n_text_layer - 1, head) for head in range(dims.n_text_head)),
        language=only_language(dims),
    )


def network(
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Iterable[tuple[int, int]],
    silence: SilenceStates | None = None,
) -> Model:
    """What an engine needs of a model."""
    heads = tuple(alignment_heads)
    return Model("", dims, weights, TextTokens(()), heads, None, silence)


@cache
def openai_tokenizer(n_vocab: int = 51_864) -> Tokenizer:
    """The tokenizer of OpenAI's models of that many tokens: 51,865 know many languages."""
    vocabulary = openai_vocabulary(Path("openai"), n_vocab)
    return Tokenizer(vocabulary, n_vocab, multilingual=n_vocab != 51_864)


def write_openai(model: Model, out: Path) -> Path:
    """openai-whisper's file."""
    half = {name: values.astype(np.float16) for name, values in model.weights.items()}
    return torch_file.write(out / "model.pt", asdict(model.dims), half)


def transcribe(model: Model) -> Hypothesis:
    """What the model makes of a second of speech."""
    heads = model.alignment_heads
    engine = build(network(model.dims, model.weights, alignment_heads=heads), threads=1)
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=model.language is None)
    # random weights find nothing probable
    options = DecodingOptions(temperatures=(0.0,), least_evidence=-100.0)
    n_frames = min(120, model.dims.n_audio_ctx)
    sound = samples("digits", 1500)[: n_frames * 320]
    window = Window(start=0, end=n_frames, samples=sound, prompt=(), prefix=(), draft=(), last=True)
    return Recognizer(engine, tokenizer, options).recognize(window)


@contextmanager
def reading(name: str) -> Iterator[Model]:
    """A folder or file in any layout that can be imported."""
    path = Path(name)
    with opened(path, path.stem if path.is_file() else path.name, layout_of(path)) as model:
        yield model


def read_model(name: str) -> Model:
    """The same, with all its weights."""
    with reading(name) as model:
        return replace(model, weights=dict(model.weights))


def refusal(path: Path) -> str:
    """The one line with which the model is refused."""
    with pytest.raises(ModelError) as caught:
        read_model(str(path))
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


def assert_only_read(name: str, path: Path) -> None:
    """What is read of the file for a weight stays neither mapped nor in memory."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    with reading(name) as model:
        for weight in model.weights:
            values = model.weights[weight]
            assert str(path) not in maps.read_text(), weight
            assert values.flags.writeable, weight


def assert_same(found: Model, expected: Model) -> None:
    """Dimensions, every weight, vocabulary, language."""
    assert found.dims == expected.dims
    assert found.weights.keys() == expected.weights.keys()
    for name, values in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], values, err_msg=name)
        assert found.weights[name].dtype == np.float32
    assert found.vocabulary == expected.vocabulary
    assert found.language == expected.language


def damaged_copy(data: st.DataObject, whole: bytes, interesting: st.SearchStrategy[int]) -> bytes:
    """A file with one to three bytes changed, often at `interesting` places, perhaps cut off."""
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1) | interesting)
        damaged[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(whole)))]
    return bytes(damaged)


def load_damaged(folder: Path, path: Path, damaged: bytes) -> Model | None:
    """Load the folder's model while its file `path` is damaged; None if the model is refused."""
    whole = path.read_bytes()
    try:
        path.write_bytes(damaged)
        return read_model(str(folder))
    except ModelError:
        return None
    finally:
        path.write_bytes(whole)
