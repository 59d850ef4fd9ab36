"""What is known of OpenAI's models, and what is assumed of others."""

from pathlib import Path

import pytest

from streamd.errors import ConfigError
from streamd.models import ModelDimensions
from streamd.models.catalog import dimensions, heads, usual_heads
from streamd.models.model import Heads

OFFICIAL = {
    "tiny": (4, 4, 6, 51_865, 80),
    "tiny.en": (4, 4, 6, 51_864, 80),
    "base": (6, 6, 8, 51_865, 80),
    "base.en": (6, 6, 8, 51_864, 80),
    "small": (12, 12, 12, 51_865, 80),
    "small.en": (12, 12, 12, 51_864, 80),
    "medium": (24, 24, 16, 51_865, 80),
    "medium.en": (24, 24, 16, 51_864, 80),
    "large-v1": (32, 32, 20, 51_865, 80),
    "large-v2": (32, 32, 20, 51_865, 80),
    "large-v3": (32, 32, 20, 51_866, 128),
    "large-v3-turbo": (32, 4, 20, 51_866, 128),
}
"""Layers of the encoder and the decoder, heads, vocabulary, mel bands: openai/whisper."""


def dims(
    n_audio_layer: int, n_layer: int, n_head: int, n_vocab: int, n_mels: int
) -> ModelDimensions:
    n_state = 64 * n_head
    return ModelDimensions(
        n_mels, 1500, n_state, n_head, n_audio_layer, n_vocab, 448, n_state, n_head, n_layer
    )


def upper_half(n_layer: int, n_head: int) -> Heads:
    layers = range(n_layer // 2, n_layer)
    return tuple((layer, head) for layer in layers for head in range(n_head))


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_models_have_their_own_heads_whatever_they_are_called(name):
    shape = dims(*OFFICIAL[name])
    own = usual_heads(Path(f"{name}.pt"), shape)
    assert all(layer < shape.n_text_layer and head < shape.n_text_head for layer, head in own)
    assert list(own) == sorted(set(own))
    assert len(own) < shape.n_text_layer * shape.n_text_head / 2
    called = ["model.pt", "tiny.pt", "large-v1.pt"] if name not in ("large-v1", "large-v2") else []
    for path in (f"whisper-{name}", f"ggml-{name}-q5_1.bin", f"faster-whisper-{name}", *called):
        assert usual_heads(Path(path), shape) == own


def test_no_two_of_them_are_alike():
    assert len({usual_heads(Path(name), dims(*OFFICIAL[name])) for name in OFFICIAL}) == 12


def test_some_of_the_lists():
    """openai/whisper's _ALIGNMENT_HEADS."""
    tiny = usual_heads(Path("x"), dims(*OFFICIAL["tiny"]))
    assert tiny == ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5))
    turbo = usual_heads(Path("x"), dims(*OFFICIAL["large-v3-turbo"]))
    assert turbo == ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))


@pytest.mark.parametrize("name", ["mine", "large", "large-v20", "large-v3"])
def test_a_large_one_of_no_version_has_the_upper_half(name):
    assert usual_heads(Path(name), dims(*OFFICIAL["large-v2"])) == upper_half(32, 20)


@pytest.mark.parametrize("name", ["mine", "tiny", "large-v3"])
@pytest.mark.parametrize(
    "shape", [(3, 3, 2, 51_865, 80), (32, 2, 20, 51_866, 128), (4, 4, 6, 52_000, 80)]
)
def test_others_have_the_upper_half_of_their_decoder(name, shape):
    assert usual_heads(Path(name), dims(*shape)) == upper_half(shape[1], shape[2])


def test_heads_that_the_files_list():
    shape = dims(*OFFICIAL["tiny"])
    own = usual_heads(Path("x"), shape)
    assert heads([(3, 1), (2, 0), (3, 1)], Path("x"), shape) == ((2, 0), (3, 1))
    for nothing in (None, [], [(4, 0)], [(0, -1)], upper_half(4, 6)):
        assert heads(nothing, Path("x"), shape) == own


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_dimensions_of_openais_models_are_known_by_their_names(name):
    dims = dimensions(name)
    layers = (dims.n_audio_layer, dims.n_text_layer)
    assert (*layers, dims.n_text_head, dims.n_vocab, dims.n_mels) == OFFICIAL[name]
    assert dims.n_audio_state == 64 * dims.n_audio_head


@pytest.mark.parametrize("name", ["huge", "base.de"])
def test_a_model_that_nobody_has_has_no_dimensions(name):
    with pytest.raises(ConfigError, match=name):
        dimensions(name)
