"""What is known of OpenAI's models, and what is assumed of others."""

from pathlib import Path

import pytest

from streamd.engine import ModelDimensions
from streamd.engine.model import Heads, have_heads, usual_heads

DECODERS = {
    "tiny": (4, 6),
    "tiny.en": (4, 6),
    "base": (6, 8),
    "base.en": (6, 8),
    "small": (12, 12),
    "small.en": (12, 12),
    "medium": (24, 16),
    "medium.en": (24, 16),
    "large-v1": (32, 20),
    "large-v2": (32, 20),
    "large-v3": (32, 20),
    "large-v3-turbo": (4, 20),
}
"""Layers and heads; openai/whisper's model card."""


def heads(path: str, n_layer: int, n_head: int) -> Heads:
    return usual_heads(Path(path), dims(n_layer, n_head))


def dims(n_layer: int, n_head: int) -> ModelDimensions:
    return ModelDimensions(80, 1500, 64, 1, 1, 51_865, 448, 64, n_head, n_layer)


@pytest.mark.parametrize("name", DECODERS)
def test_official_models_have_their_own_heads(name, tmp_path):
    own = heads(name, *DECODERS[name])
    assert have_heads(dims(*DECODERS[name]), own)
    assert list(own) == sorted(set(own))
    assert len(own) < DECODERS[name][0] * DECODERS[name][1] / 2
    for file in (f"{name}.pt", f"ggml-{name}.bin", f"ggml-{name}-q5_1.bin"):
        (tmp_path / file).touch()
        assert usual_heads(tmp_path / file, dims(*DECODERS[name])) == own
    assert heads(f"models/whisper-{name}", *DECODERS[name]) == own


def test_some_of_the_lists():
    assert heads("tiny", 4, 6) == ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5))
    assert heads("large", 32, 20) == heads("large-v3", 32, 20)
    assert heads("turbo", 4, 20) == ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))


@pytest.mark.parametrize("name", ["mine", "tiny", "tiny.fr", "large-v3"])
def test_others_have_the_upper_half_of_their_decoder(name):
    assert heads(name, 3, 2) == ((1, 0), (1, 1), (2, 0), (2, 1))
    assert heads(name, 1, 2) == ((0, 0), (0, 1))
