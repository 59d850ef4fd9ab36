"""Whisper on ONNX Runtime's CPU provider: the engine for every machine.

One engine serves all streams of a process: its two sessions may run from any thread, a decoder only
from one at a time. An engine is built from a model's weights, or opened from files that `save`
wrote: the graphs as ONNX Runtime optimised them, and the weights in the order in which its kernels
read them, to be mapped. Such files suit one version of ONNX Runtime on one kind of processor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, OrtValue

from streamd.engine import ModelDimensions, Weights
from streamd.engine.onnx.decoder import OnnxDecoder
from streamd.engine.onnx.sessions import RUNTIME_FAILURES, WEIGHTS, engine_error, new_session
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

        Raises `EngineError` if ONNX Runtime failed. Raises `ValueError` if the log-mel does not
        have the shape that `n_ctx` demands.
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


_GRAPHS = ("encoder.onnx", "decoder.onnx")
FILES = tuple(name + suffix for name in _GRAPHS for suffix in ("", WEIGHTS))
"""What `save` writes."""


def build(
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    threads: int = 2,
    precision: Precision = "float32",
) -> OnnxEngine:
    """Make an engine in memory; `weights` must not change any more.

    `alignment_heads`: (decoder layer, head) pairs, at least one; `step` returns their scores,
    sorted by layer and head. `threads`: 2 suit one stream; a server does better with 1 and several
    inference threads. Raises `EngineError` if ONNX Runtime refuses the graphs.
    """
    from streamd.engine.onnx.graphs import graphs  # here because few starts need to write graphs

    sessions = []
    arrays: list[NDArray[Any]] = []
    for graph in graphs(dims, weights, alignment_heads=alignment_heads, precision=precision):
        sessions.append(new_session(graph.model, threads, tensors=graph.tensors))
        arrays += graph.tensors.values()
    encoder, decoder = sessions
    return OnnxEngine(dims, encoder, decoder, arrays=arrays)


def save(
    folder: Path,
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    precision: Precision,
) -> None:
    """Write down what `open_folder` needs to make the same engine as `build` does.

    Raises `EngineError` if ONNX Runtime refuses the graphs, or cannot write there.
    """
    from streamd.engine.onnx.graphs import graphs  # here for the reason above

    made = graphs(dims, weights, alignment_heads=alignment_heads, precision=precision)
    for name, graph in zip(_GRAPHS, made, strict=True):
        new_session(graph.model, threads=1, tensors=graph.tensors, save=folder / name)


def open_folder(folder: Path, dims: ModelDimensions, *, threads: int) -> OnnxEngine:
    """Make the engine that was saved in the folder.

    Raises `EngineError` if ONNX Runtime refuses it: the files are damaged, or another version wrote
    them.
    """
    encoder, decoder = (new_session(folder / name, threads) for name in _GRAPHS)
    return OnnxEngine(dims, encoder, decoder)
