"""Whisper on ONNX Runtime's CPU provider: the engine for every machine.

One engine serves all streams of a process from any thread; a decoder is for one thread at a time.
`streamd.engines.onnx.files` makes engines, and gives them their batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, IOBinding, OrtValue

from streamd.engines.memory import n_together
from streamd.engines.onnx.sessions import Open, n_heads, run
from streamd.engines.onnx.slots import LEAST_ROWS, Pool, bind_pool, no_slots
from streamd.models import ModelDimensions
from streamd.models.silence import Extent, bias, extend
from streamd.system.pages import Template, whole_pages, zeros
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass, Reuse, Together

_N_CHEAP = 4
"""On a CPU the weights are read once for the tokens of a pass: one of four takes hardly longer."""
_MOST_LOGITS = 32
"""Rows of logits that one run of the graph computes, in int8 with three arrays of this size."""


Stored = NDArray[np.float16] | NDArray[np.float32]
"""Keys and values of a window's sound, in half precision if the weights are int8."""


@dataclass(frozen=True, slots=True)
class OnnxFeatures:
    """A window's cross-attention keys and values, in buffers that later windows reuse.

    Each of the `buffers`, (1, n_positions + n_audio_ctx, width), begins with rows for the states of
    silence; the rows of the context follow. The window attends to a slice of each buffer, the
    `views`, (1, n_ctx, width): `n_silence` positions that stand for the silence after the sound,
    then its own positions. `bias` (n_ctx,) is added to the attention scores.
    """

    buffers: Mapping[str, Stored]
    views: Mapping[str, Stored]
    bias: NDArray[np.float32]
    n_silence: int


class BatchFeatures(Protocol):
    """Features of a window in a batch, which make their own decoder."""

    def new_decoder(self, n_slots: int) -> Decoder:
        """Return a decoder, as `Engine.decoder` does."""
        ...


RowsOf = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Maps tokens (k,) to their embeddings (k, n_text_state)."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The embeddings of tokens, and their rows of the output layer."""

    embedding: RowsOf
    output: RowsOf


@dataclass(frozen=True, slots=True)
class EngineSessions:
    """Encoder, decoder and `cross_graph`, each opened when it is first needed.

    `batch` makes the runner of batched passes of an engine (`BatchEngine.together`). `arrays` are
    in use by the sessions, which do not keep a reference to them.
    """

    encoder: Open
    decoder: Open
    cross: Open
    batch: "Callable[[OnnxEngine, Callable[[], bool]], Together[BatchFeatures]]"
    arrays: Sequence[NDArray[Any]] = ()


class OnnxEngine:
    """A Whisper model on ONNX Runtime; an `Engine` (streamd/whisper/engine.py)."""

    def __init__(
        self,
        dims: ModelDimensions,
        sessions: EngineSessions,
        *,
        rows: TokenRows,
        buffers: "Buffers",
    ) -> None:
        """`rows` make the decoders' input of tokens.

        `buffers` are made for the keys and values of a window.
        """
        self.dims = dims
        self.n_cheap = _N_CHEAP
        self.urgent: OnnxEngine | None = None
        """The same engine on more threads, or None; set by the code that opens the engine."""
        self._sessions = sessions
        self._encoder, self.open_decoder = cache(sessions.encoder), cache(sessions.decoder)
        self._cross = cache(sessions.cross)
        self.rows = rows
        self._buffers = buffers
        self._n_kept = buffers.n_silence
        self._bias = np.zeros(self._n_kept + dims.n_audio_ctx, np.float32)
        self._bias[: self._n_kept] = bias(dims.n_audio_ctx)[: self._n_kept]
        self.n_together = n_together(dims, n_positions=self.n_positions, is_int8=buffers.is_half)

    def open(self) -> None:
        """Open what live captions need. Raises `EngineError` if ONNX Runtime refuses it."""
        self.open_encoder()
        self.open_decoder()

    def open_encoder(self) -> None:
        """Open the encoder's session, unless it is open. Raises `EngineError`."""
        self._encoder()

    @property
    def has_silence(self) -> bool:
        """Whether the model has stored states of silence."""
        return self._n_kept > 0

    @property
    def n_positions(self) -> int:
        """The most positions that a window attends to, the states of silence included."""
        return len(self._bias)

    def encode(
        self, mel: Mel, reuse: Reuse[OnnxFeatures] | None = None, *, audio_ctx: int = 0
    ) -> OnnxFeatures:
        if reuse is None or not self.has_silence:
            return self._encode(mel, self._buffers.new(), audio_ctx=audio_ctx)
        return self._encode(mel, reuse.features.buffers, audio_ctx=audio_ctx, n_reused=reuse.n)

    def encode_alone(self, mel: Mel, before: OnnxFeatures | None) -> OnnxFeatures:
        """Encode log-mel of which no later window uses anything; it needs far less memory.

        `before` was encoded like that, too, and gives its memory.
        """
        buffers = before.buffers if before else self._buffers.overlapping()
        self._buffers.fill(buffers)
        return self._encode(mel, buffers)

    def _encode(
        self, mel: Mel, buffers: Mapping[str, Stored], *, audio_ctx: int = 0, n_reused: int = 0
    ) -> OnnxFeatures:
        mel, extent = extend(mel, self.dims, has_silence=self.has_silence, audio_ctx=audio_ctx)
        features = self._features(extent, buffers)
        inputs: dict[str, NDArray[Any]] = {
            "mel": np.ascontiguousarray(mel[None, :, max(0, 2 * n_reused - 2) :]),
            "first": np.array([n_reused], np.int64),
        }
        self._write_rows(self._encoder(), inputs, features, n_reused)
        return features

    def project(
        self,
        encoded: NDArray[np.float16],
        extent: Extent,
        *,
        reuse: Reuse[OnnxFeatures] | None = None,
    ) -> OnnxFeatures:
        features = self._features(extent, reuse.features.buffers if reuse else self._buffers.new())
        inputs = {"encoded": np.ascontiguousarray(encoded, np.float32)}
        self._write_rows(self._cross(), inputs, features, reuse.n if reuse else 0)
        return features

    def _features(self, extent: Extent, buffers: Mapping[str, Stored]) -> OnnxFeatures:
        # The last states of silence are just before the window's first one.
        n_silence = max(0, self._n_kept - extent.first)
        begin, end = self._n_kept - n_silence, self._n_kept + extent.n
        views = {name: buffer[:, begin:end] for name, buffer in buffers.items()}
        return OnnxFeatures(buffers, views, self._bias[begin:end], n_silence)

    def _write_rows(
        self,
        session: InferenceSession,
        inputs: Mapping[str, NDArray[Any]],
        features: OnnxFeatures,
        n_reused: int,
    ) -> None:
        """Run a session that writes a window's keys and values behind the first `n_reused`."""
        first, end = features.n_silence + n_reused, len(features.bias)
        rows = np.zeros((end - first, 2), np.int64)
        rows[:, 1] = np.arange(first, end)
        io = session.io_binding()
        wanted = {each.name for each in session.get_inputs()}
        for name, view in features.views.items():
            if name in wanted:
                shared = OrtValue.ortvalue_from_numpy(view)  # shares our memory
                io.bind_ortvalue_input(name, shared)
                io.bind_ortvalue_output(f"new_{name}", shared)
        run(session, io, {**inputs, "rows": rows}, {}, shrinks=True)

    def decoder(self, features: OnnxFeatures | BatchFeatures, n_slots: int) -> Decoder:
        if not isinstance(features, OnnxFeatures):
            return features.new_decoder(n_slots)
        return OnnxDecoder(self, features, n_slots)

    def together(self, is_alone: Callable[[], bool]) -> Together[BatchFeatures]:
        return self._sessions.batch(self, is_alone)


class Buffers:
    """Makes memory for a window's keys and values; all windows share the rows of silence.

    The encoder writes none of these.
    """

    def __init__(self, silence: Mapping[str, Stored], n_audio_ctx: int) -> None:
        """`silence` are its keys and values, (n_positions, width), without rows if none is known.

        They stand before the rows of a context.
        """
        self.n_silence = len(silence["key_0"])
        self._n_rows = self.n_silence + n_audio_ctx
        self._dtype = silence["key_0"].dtype
        self.is_half = self._dtype == np.float16  # as for weights in int8
        sizes = [self._n_rows * rows.shape[1] * rows.itemsize for rows in silence.values()]
        *begins, n_bytes = np.cumsum([0, *map(whole_pages, sizes)]).tolist()
        self._places = dict(zip(silence, zip(begins, sizes, strict=True), strict=True))
        content = (np.ascontiguousarray(rows).view(np.uint8) for rows in silence.values())
        self._template = Template(n_bytes, dict(zip(begins, map(np.ravel, content), strict=True)))
        self._first = self.new()  # nobody writes there

    def new(self) -> Mapping[str, Stored]:
        """Return new buffers, by the names of the graph's inputs."""
        block = self._template.new_block()
        pieces = {name: block[at : at + size] for name, (at, size) in self._places.items()}
        shape = (1, self._n_rows, -1)
        return {name: each.view(self._dtype).reshape(shape) for name, each in pieces.items()}

    def overlapping(self) -> Mapping[str, Stored]:
        """Return buffers that `fill` has to fill for each window, of which only the ends are left.

        Each layer of the encoder writes its keys and values over those of the layer before: with
        large-v3-turbo, a window takes 90 instead of 279 MB.
        """
        buffers = {n: zeros(r.shape, self._dtype) for n, r in self._first.items() if "cross" in n}
        for kind in ("key", "value"):
            names = [name for name in self._first if name.startswith(kind)]
            _, n_rows, width = self._first[names[0]].shape
            begin = self.n_silence * (len(names) - 1)
            block = zeros((1, begin + n_rows, width), self._dtype)
            for name in names:
                buffers[name] = block[:, begin : begin + n_rows]
                begin -= self.n_silence  # so that the next layer's silence is in front of this one
        return buffers

    def fill(self, buffers: Mapping[str, Stored]) -> None:
        """Write the rows of silence."""
        for name, rows in self._first.items():
            buffers[name][:, : self.n_silence] = rows[:, : self.n_silence]


class OnnxDecoder:
    """A `Decoder` (streamd/whisper/engine.py) on ONNX Runtime."""

    def __init__(self, engine: OnnxEngine, features: OnnxFeatures, n_slots: int) -> None:
        dims = engine.dims
        self.n_vocab, self.n_text_ctx, self.n_slots = dims.n_vocab, dims.n_text_ctx, n_slots
        self.features, self._dims, self._rows = features, dims, engine.rows
        self._session = session = engine.open_decoder()  # which may serve other decoders, too
        self._io: IOBinding | None = None
        self._bound: NDArray[np.float32] | None = None
        self._n_heads = n_heads(session)
        self._pool = Pool(no_slots(dims, 1))

    def run(self, asked: Pass) -> Answer:
        """Run a pass, as `Decoder.run` says. Raises `EngineError` if ONNX Runtime fails."""
        _, tokens, positions, slots, visible, want, among = asked
        if among is not None or len(want) <= _MOST_LOGITS:
            return self._run(asked)
        logits = np.empty((len(want), self.n_vocab), np.float32)
        alignments = []
        begins = [0, *np.sort(want)[_MOST_LOGITS::_MOST_LOGITS], len(tokens)]
        for begin, end in pairwise(begins):
            here = slice(begin, end)
            wanted = np.flatnonzero((want >= begin) & (want < end))
            part = (tokens[here], positions[here], slots[here], visible[here])
            logits[wanted], alignment = self._run(Pass(self, *part, want[wanted] - begin))
            alignments.append(alignment)
        return logits, np.concatenate(alignments)

    def _run(self, asked: Pass) -> Answer:
        _, tokens, positions, slots, visible, want, among = asked
        some = _NO_TOKENS if among is None else among
        of_all, of_some = (want, _NO_TOKENS) if among is None else (_NO_TOKENS, want)
        rows = max(len(slots), LEAST_ROWS)
        place = self._pool.place(slots, visible, rows)
        if self._io is None:
            self._io = self._session.io_binding()
            self._bind_features(self._io)
        if self._bound is not self._pool.array:
            bind_pool(self._io, self._pool.array)
            self._bound = self._pool.array
        inputs: dict[str, NDArray[Any]] = {
            "embedded": self._rows.embedding(np.resize(tokens, rows)),
            "positions": np.resize(positions, rows),
            "want": np.ascontiguousarray(of_all, np.int64),
            "want_some": np.ascontiguousarray(of_some, np.int64),
            "some": self._rows.output(some),
            **place.inputs,
        }
        results = {
            "logits": np.empty((len(of_all), self.n_vocab), np.float32),
            "some_logits": np.empty((len(of_some), len(some)), np.float32),
            "alignment": np.empty((rows, self._n_heads, len(self.features.bias)), np.float32),
        }
        run(self._session, self._io, inputs, results)
        self._pool.settle(place)
        alignment = sound_first(results["alignment"][: len(slots)], self.features.n_silence)
        return results["logits" if among is None else "some_logits"], alignment

    def _bind_features(self, io: IOBinding) -> None:
        for name, rows in self.features.views.items():
            if name.startswith("cross_"):
                heads = rows.reshape(rows.shape[1], self._dims.n_text_head, -1)
                io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(heads))
        io.bind_ortvalue_input("cross_bias", OrtValue.ortvalue_from_numpy(self.features.bias))

    def adopt(self, before: Decoder, n: int) -> bool:
        if not isinstance(before, OnnxDecoder):
            return False
        self._pool.adopt(before._pool, n)
        return True


def sound_first(alignment: NDArray[np.float32], n_silence: int) -> NDArray[np.float32]:
    """Move the scores (..., n_ctx) of the states of silence from the front to the back."""
    return np.concatenate([alignment[..., n_silence:], alignment[..., :n_silence]], axis=-1)


_NO_TOKENS = np.zeros(0, np.int64)
