"""Models of true dimensions with random weights: what a size costs, without its files.

Random weights cost what trained ones cost. What they write is noise, so a `Script` says it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engine import Engine, ModelDimensions
from streamd.engine.model import Model, only_language, usual_heads
from streamd.engine.vocabulary import openai_vocabulary
from streamd.engine.weights import parameter_shapes
from streamd.errors import ConfigError

_STATE_HEADS_LAYERS = {
    "tiny": (384, 6, 4),
    "base": (512, 8, 6),
    "small": (768, 12, 12),
    "medium": (1024, 16, 24),
    "large-v3": (1280, 20, 32),
    "large-v3-turbo": (1280, 20, 32),
}
"""OpenAI's sizes (openai/whisper ``model-card.md``); turbo has 4 layers in its decoder."""


def dimensions(name: str) -> ModelDimensions:
    """The dimensions of one of OpenAI's models, such as ``base.en``.

    Raises
    ------
    ConfigError : OpenAI has no such model
    """
    size, _, english = name.partition(".")
    if size not in _STATE_HEADS_LAYERS or english not in ("", "en"):
        known = ", ".join(_STATE_HEADS_LAYERS)
        raise ConfigError(f"no dimensions are known by the name {name}: use {known}, some with .en")
    n_state, n_head, n_layer = _STATE_HEADS_LAYERS[size]
    large = size.startswith("large")
    dims = ModelDimensions(
        n_mels=128 if large else 80,
        n_audio_ctx=1500,
        n_audio_state=n_state,
        n_audio_head=n_head,
        n_audio_layer=n_layer,
        n_vocab=51_866 if large else 51_864 if english else 51_865,
        n_text_ctx=448,
        n_text_state=n_state,
        n_text_head=n_head,
        n_text_layer=n_layer,
    )
    return replace(dims, n_text_layer=4) if size.endswith("turbo") else dims


def random_model(name: str, seed: int = 0) -> Model:
    """A model with the dimensions of OpenAI's of that name; the same weights for the same seed.

    Raises
    ------
    ConfigError : OpenAI has no such model
    """
    dims = dimensions(name)
    rng = np.random.default_rng(seed)
    weights = {}
    for parameter, shape in parameter_shapes(dims).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            values = np.float32(0.02) * values + np.float32(
                parameter.endswith(("ln.weight", "ln_post.weight"))
            )
        else:
            values *= np.float32(np.prod(shape[1:]) ** -0.5)
        weights[parameter] = values
    return Model(
        name=f"{name} (random)",
        dims=dims,
        weights=weights,
        vocabulary=openai_vocabulary(Path(name), dims.n_vocab),
        alignment_heads=usual_heads(Path(name), dims),
        language=only_language(dims),
    )


def opened(config: Config, dims: str = "") -> tuple[Model, Engine[Any]]:
    """The configured model on its engine; with `dims` random weights of that size instead.

    Raises
    ------
    ConfigError : OpenAI has no such model
    ModelError : there is no such model, or its files are damaged
    EngineError : the runtime refuses the model
    """
    if not dims:
        return open_model(config, settled=True)
    model = random_model(dims)
    return model, build.engine(config, model)
