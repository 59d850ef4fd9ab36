"""Whisper on ONNX Runtime's CPU provider: the engine for every machine.

One engine serves all streams of a process: its two sessions may run from any thread, its decoders
each from one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnxruntime import OrtValue

from streamd.engine import ModelDimensions, Weights
from streamd.engine.onnx.decoder import OnnxDecoder
from streamd.engine.onnx.graphs import decoder_graph, encoder_graph
from streamd.engine.onnx.linear import Linear
from streamd.engine.onnx.sessions import RUNTIME_FAILURES, engine_error, new_session
from streamd.types import Mel

Precision = Literal["float32", "int8"]

_KINDS = {
    "float32": (Linear.FLOAT32, Linear.FLOAT32),
    "int8": (Linear.TENSOR, Linear.BLOCKS),
}
"""How encoder and decoder multiply."""


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
        weights: Weights,
        *,
        alignment_heads: Sequence[tuple[int, int]],
        threads: int = 2,
        precision: Precision = "float32",
    ) -> None:
        """Build both graphs and load them; `weights` must not change any more.

        `alignment_heads`: (decoder layer, head) pairs, at least one; `step` returns their scores,
        sorted by layer and head. `threads`: 2 suit one stream; a server does better with 1 and
        several inference threads.

        Raises
        ------
        EngineError
            ONNX Runtime refuses the graphs.
        """
        self.dims = dims
        of_encoder, of_decoder = _KINDS[precision]
        encoder = encoder_graph(dims, weights, of_encoder)
        decoder = decoder_graph(dims, weights, of_decoder, alignment_heads=sorted(alignment_heads))
        self._tensors = (encoder.tensors, decoder.tensors)
        self._encoder = new_session(encoder.model, threads, tensors=encoder.tensors)
        self._decoder = new_session(decoder.model, threads, tensors=decoder.tensors)

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
