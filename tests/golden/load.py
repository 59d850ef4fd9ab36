"""Reads the golden files, and the two models that they were made with."""

import json
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from streamd.models import ModelDimensions
from streamd.models.model import Model, openai_vocabulary, parameter_shapes
from streamd.models.store import load_model
from streamd.models.text_tokens import TextTokens
from tests.golden.random_model import ALIGNMENT_HEADS, DIMS, N_TEXT_TOKENS, random_weights

HERE = Path(__file__).parent


@cache
def document(name: str = "golden") -> dict[str, Any]:
    """golden.json, shapes.json, longform.json or scripted.json; see README.md."""
    return json.loads((HERE / f"{name}.json").read_text())


@cache
def arrays() -> dict[str, np.ndarray]:
    """golden.npz: log-mel, encoder output, logits, alignment."""
    with np.load(HERE / "golden.npz") as file:
        return dict(file)


def samples(clip: str, n_ctx: int) -> np.ndarray:
    """A clip, padded with zeros to `n_ctx` frames as openai-whisper's input was."""
    sound, rate = soundfile.read(HERE / f"{clip}.flac", dtype="float32")
    assert rate == 16_000
    return np.pad(sound, (0, n_ctx * 320 - len(sound)))


@cache
def model(name: str) -> Model:
    """`tiny.en` or `random`, as make_golden.py has them."""
    if name == "tiny.en":
        return load_model(name)
    dims = ModelDimensions(**DIMS)
    gpt2 = openai_vocabulary(HERE, 51_864)
    return Model(
        name=name,
        dims=dims,
        weights=random_weights(parameter_shapes(dims)),
        vocabulary=TextTokens(islice(gpt2, N_TEXT_TOKENS)),
        alignment_heads=tuple(ALIGNMENT_HEADS),
        language=None,
    )
