"""The sizes of a Whisper, and what its parameters are."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """openai/whisper's `ModelDimensions`, under its names.

    They are the bands; context, width, heads and layers of the encoder; tokens; the decoder's four.
    """

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int


Weights = Mapping[str, NDArray[np.float32]]
"""A model's parameters under openai/whisper's names (``model.state_dict()``)."""
