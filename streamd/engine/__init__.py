"""The recognizer and the backends that run a model's encoder and decoder.

A backend implements `Engine`: `onnx` (CPU, the default), `coreml` (GPU and Neural Engine of a
Mac), `reference` (float32 numpy, for comparison). `store` finds a model's files, `padding` says
what is computed of the context, and `recognizer` turns a window into a hypothesis with any backend.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamd.search import Decoder
from streamd.types import Mel

# ONNX Runtime 1.32 otherwise reports to Microsoft, and keeps an identifier and a database in
# ~/.cache/Microsoft. It reads the variable while it is imported, when its own
# disable_telemetry_events() would come too late; Python runs this file before any module of the
# package that imports it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """openai/whisper's `ModelDimensions`, under its names."""

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

FeaturesT = TypeVar("FeaturesT")


class Engine(Protocol, Generic[FeaturesT]):
    """A loaded model on some runtime."""

    dims: ModelDimensions

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        known: FeaturesT | None = None,
        n_known: int = 0,
    ) -> FeaturesT:
        """Encode log-mel (n_mels, n_columns) into opaque features, cross-attention K/V included.

        The model's full context is encoded, or what stands for it (streamd/engine/padding.py): the
        last column of `mel` is silence and repeats to its end. A positive `audio_ctx` cuts the
        context to so many positions, but not below the length of `mel`. `known` are features of a
        window whose audio began with the same frames: an engine may take its first `n_known`
        positions from there instead of computing them, and write the others into its memory: a
        decoder of those features must not be used any more. Raises `EngineError` if the runtime
        fails, `ValueError` if `mel` does not fit the model.
        """
        ...

    def decoder(self, features: FeaturesT, n_slots: int) -> Decoder:
        """Give a decoder for these features with an empty pool of `n_slots` cache slots."""
        ...
