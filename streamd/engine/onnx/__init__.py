"""Whisper on ONNX Runtime's CPU provider, in float32: the engine for every machine.

One engine serves all streams of a process: its two sessions may run from any thread, its decoders
each from one. The decoder's cache is memory of ours that the graph reads in place; what a pass
adds, we write into the slots ourselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, OrtValue, SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from streamd.engine import ModelDimensions, Weights
from streamd.engine.onnx.builder import Graph
from streamd.engine.onnx.graphs import decoder_graph, encoder_graph
from streamd.engine.weights import OUTPUT
from streamd.errors import EngineError
from streamd.types import Mel

_POOL_STEP = 64
"""Slots by which a decoder's pool grows: most windows need no second step."""

_RUNTIME_FAILURES = (
    ort.EPFail,
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.NotImplemented,
    ort.RuntimeException,
)
"""ONNX Runtime's exceptions have no common base of their own."""


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
    ) -> None:
        """Build both graphs and load them; keeps `weights`, which must not change any more.

        `alignment_heads`: (decoder layer, head) pairs, at least one; `step` returns their scores,
        sorted by layer and head. `threads`: 2 suit one stream; a server does better with 1 and
        several inference threads.

        Raises
        ------
        EngineError
            ONNX Runtime refuses the graphs.
        """
        self.dims = dims
        heads = sorted(alignment_heads)
        self._weights = {name: OrtValue.ortvalue_from_numpy(w) for name, w in weights.items()}
        self._encoder = self._load(encoder_graph(dims), threads)
        self._decoder = self._load(decoder_graph(dims, heads, tied=OUTPUT not in weights), threads)

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
        layers = range(self.dims.n_text_layer)
        names = [f"cross_{kind}_{layer}" for layer in layers for kind in ("key", "value")]
        values = _run(self._encoder, names, {"mel": _value(mel[None], np.float32)})
        return OnnxFeatures(dict(zip(names, values, strict=True)), n_ctx)

    def decoder(self, features: OnnxFeatures, n_slots: int) -> "OnnxDecoder":
        """Give a decoder for these features with an empty pool of `n_slots` cache slots."""
        return OnnxDecoder(self._decoder, self.dims, features, n_slots)

    def _load(self, graph: Graph, threads: int) -> InferenceSession:
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised, not printed
        # a pool that spins between two runs takes the cores from the other session, and from
        # whatever else the machine does: twice as slow on two cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        values = [self._weights[name] for name in graph.parameters]
        options.add_external_initializers(list(graph.parameters), values)
        try:
            return InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])
        except _RUNTIME_FAILURES as error:
            raise _engine_error(error) from error


class OnnxDecoder:
    """A `Decoder` (streamd/search/__init__.py) on ONNX Runtime."""

    def __init__(
        self,
        session: InferenceSession,
        dims: ModelDimensions,
        features: OnnxFeatures,
        n_slots: int,
    ) -> None:
        self.n_vocab = dims.n_vocab
        self.n_text_ctx = dims.n_text_ctx
        self.n_slots = n_slots
        self._session = session
        self._features = features
        self._n_pool = 0
        shape = (dims.n_text_layer, dims.n_text_head, 0, dims.n_text_state // dims.n_text_head)
        self._keys = np.zeros(shape, np.float32)
        self._values = np.zeros(shape, np.float32)
        self._pool: dict[str, OrtValue] = {}

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Run k tokens in one pass, as the protocol says.

        Raises
        ------
        EngineError
            ONNX Runtime failed.
        """
        self._grow(int(slots.max()) + 1)
        in_pool = visible[:, : self._n_pool].copy()
        in_pool[:, slots] = False  # what these slots held is dead, the pass itself replaces it
        seen = np.concatenate([in_pool, visible[:, slots]], axis=1)
        inputs = {
            "tokens": _value(tokens, np.int64),
            "positions": _value(positions, np.int64),
            "want": _value(want, np.int64),
            "mask": _value(np.where(seen, 0, -np.inf), np.float32),
            **self._pool,
            **self._features.values,
        }
        outputs = ["logits", "alignment", "new_keys", "new_values"]
        values = _run(self._session, outputs, inputs)
        logits, alignment, keys, new_values = (value.numpy() for value in values)
        self._keys[:, :, slots] = keys
        self._values[:, :, slots] = new_values
        return logits, alignment

    def _grow(self, n_slots: int) -> None:
        """Make room for the first `n_slots` slots: only these are read, not the whole pool."""
        if n_slots <= self._n_pool:
            return
        self._n_pool = min(-(-n_slots // _POOL_STEP) * _POOL_STEP, self.n_slots)
        more = ((0, 0), (0, 0), (0, self._n_pool - self._keys.shape[2]), (0, 0))
        self._keys = np.pad(self._keys, more)
        self._values = np.pad(self._values, more)
        for layer in range(len(self._keys)):
            # these share memory with our arrays: what we write there, the graph reads
            self._pool[f"key_{layer}"] = OrtValue.ortvalue_from_numpy(self._keys[layer])
            self._pool[f"value_{layer}"] = OrtValue.ortvalue_from_numpy(self._values[layer])


def _value(array: NDArray[np.generic], dtype: type[np.generic]) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array, dtype))


def _run(
    session: InferenceSession, outputs: Sequence[str], inputs: Mapping[str, OrtValue]
) -> list[OrtValue]:
    try:
        values: list[OrtValue] = session.run_with_ort_values(outputs, inputs)
    except _RUNTIME_FAILURES as error:
        raise _engine_error(error) from error
    return values


def _engine_error(error: Exception) -> EngineError:
    reason = str(error).strip().splitlines()[0]
    return EngineError(f"ONNX Runtime failed: {reason}; try another version of onnxruntime")
