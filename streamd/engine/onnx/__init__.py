"""Whisper on ONNX Runtime's CPU provider: the engine for every machine.

One engine serves all streams of a process: its two sessions may run from any thread, its decoders
each from one. Where the sessions' graphs come from is `prepare`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, OrtValue

from streamd.engine import ModelDimensions
from streamd.engine.onnx.decoder import OnnxDecoder
from streamd.engine.onnx.sessions import RUNTIME_FAILURES, engine_error
from streamd.types import Mel

Precision = Literal["float32", "int8"]
"""Of the linear layers' weights; in int8 their activations are rounded too."""


@dataclass(frozen=True, slots=True)
class OnnxFeatures:
    """One window's cross-attention keys and values, in the runtime's memory."""

    values: Mapping[str, OrtValue]
    n_ctx: int


class OnnxEngine:
    """A Whisper model on ONNX Runtime; an `Engine` (streamd/engine/__init__.py)."""

    def __init__(
        self,
        dims: ModelDimensions,
        encoder: InferenceSession,
        decoder: InferenceSession,
        *,
        arrays: Sequence[NDArray[Any]] = (),
    ) -> None:
        """`encoder` and `decoder`: sessions with the graphs of `streamd.engine.onnx.graphs`.

        `arrays` are read by the sessions as long as they live, which do not keep them themselves.
        """
        self.dims = dims
        self._arrays = arrays
        self._encoder = encoder
        self._decoder = decoder

    def encode(self, mel: Mel, n_ctx: int) -> OnnxFeatures:
        """Encode (n_mels, 2 * n_ctx) log-mel; `n_ctx` may be shorter than the trained context.

        Raises
        ------
        EngineError
            ONNX Runtime failed.
        ValueError
            The log-mel does not have the shape that `n_ctx` demands.
        """
        if not 0 < n_ctx <= self.dims.n_audio_ctx or mel.shape != (self.dims.n_mels, 2 * n_ctx):
            raise ValueError(f"log-mel of shape {mel.shape} for {n_ctx} encoder positions")
        names = [output.name for output in self._encoder.get_outputs()]
        batch = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(mel[None], np.float32))
        try:
            values = self._encoder.run_with_ort_values(names, {"mel": batch})
        except RUNTIME_FAILURES as error:
            raise engine_error(error) from error
        return OnnxFeatures(dict(zip(names, values, strict=True)), n_ctx)

    def decoder(self, features: OnnxFeatures, n_slots: int) -> OnnxDecoder:
        """Give a decoder for these features with an empty pool of `n_slots` cache slots."""
        return OnnxDecoder(self._decoder, self.dims, cross=dict(features.values), n_slots=n_slots)
