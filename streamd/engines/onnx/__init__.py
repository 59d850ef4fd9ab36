"""Whisper on ONNX Runtime's CPU provider: the engine for every machine.

One engine serves all streams of a process from any thread; a decoder is for one thread at a time.
An engine is built from a model's weights, or opened from files that `save` wrote: the graphs as
ONNX Runtime optimised them, and the weights in its kernels' order, to be mapped. Such files suit
one version of ONNX Runtime on one kind of processor.

The decoder's graph reads and writes the cache of slots in place, in memory that `OnnxDecoder` owns.
It writes the keys and values of a pass into consecutive slots and reads none after them, which is
what greedy search and draft verification need. Any other pass is written after all slots that were
ever used, and then moved to its own slots.
"""

import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from onnxruntime import (
    ExecutionOrder,
    GraphOptimizationLevel,
    InferenceSession,
    IOBinding,
    OrtAllocatorType,
    OrtArenaCfg,
    OrtMemoryInfo,
    OrtMemType,
    OrtValue,
    RunOptions,
    SessionOptions,
    create_and_register_allocator,
)
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from streamd.engines import Precision
from streamd.engines.memory import n_together
from streamd.errors import EngineError, EngineMemoryError
from streamd.models import ModelDimensions, Weights
from streamd.models.silence import Extent, SilenceStates, average, bias, extend
from streamd.system.calls import in_thread, settle
from streamd.system.disk import discard, in_utf8
from streamd.system.pages import Template, whole_pages, zeros
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass

if TYPE_CHECKING:
    from streamd.engines.onnx.builder import Graph

_WEIGHTS = ".weights"
_GRAPHS, _SILENCE, _EMBEDDING = ("encoder.onnx", "decoder.onnx"), "silence.npz", "embedding.npy"
_MANY = "decoder_many.onnx"
_CROSS = "cross.onnx"
_OTHERS = (_MANY, _CROSS, _SILENCE, _EMBEDDING)
FILES = (*(name + suffix for name in _GRAPHS for suffix in ("", _WEIGHTS)), *_OTHERS)
"""The files that `save` writes."""
_OUTPUT = "output.npy"
OPTIONAL = (_OUTPUT, _CROSS + _WEIGHTS)
"""More files: of models whose output layer is not the embeddings, and of all but tiny ones."""

_ARENA_BYTES = 16 * 1024**2
"""Size of the arena for temporary results of all sessions; what was ever in use stays resident.

What exceeds it is given back when a window is encoded, unless several windows of a recording are
computed at a time. What runs next needs it again: to get its pages from the system each time takes
up to a quarter of the CPU time.
"""

_FAILURES = (
    ort.EPFail,
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.InvalidProtobuf,
    ort.NoSuchFile,
    ort.NotImplemented,
    ort.RuntimeException,
    RuntimeError,  # what a run with bound memory raises for all of these
)
"""ONNX Runtime's exceptions have no common base of their own."""

_SPIN_US = "20"
"""How long (µs) an idle thread spins before it sleeps: about as long as waking it takes.

This makes a step of `base` a fifth faster on an idle machine (benchmarks/RESULTS.md, "What
helped").
"""
log = logging.getLogger(__name__)
_POOL_STEP = 64
"""The memory grows by this many slots; most windows need one step."""
N_TOGETHER = 16
"""Windows in one pass of the decoder for several, if there is memory for so many."""
_N_CHEAP = 4
"""On a CPU the weights are read once for the tokens of a pass: one of four takes hardly longer."""
_MOST_ROWS = 8
"""A pass of more tokens does not run with those of other windows, which would get as many places.
"""
_LEAST_ROWS = 2
"""A single token is run as two rows, of which the second is ignored.

ONNX Runtime multiplies a single row in another order than several rows, and rounding to int8
enlarges the difference in the last bit. With two rows, a token's logits are bit for bit those of a
pass of many tokens, so a verified draft is the text that decoding step by step would have given.
"""
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


class JointFeatures:
    """A window's keys and values in a batch of several windows: a seat of `OnnxTogether`.

    The seat is released when the features are garbage-collected. Only the newest decoder may use
    them.
    """

    __slots__ = ("__weakref__", "bias", "n_silence", "seat", "together")

    def __init__(
        self, together: "OnnxTogether", seat: int, bias: NDArray[np.float32], n_silence: int
    ) -> None:
        """`bias` and `n_silence` as of `OnnxFeatures`."""
        self.together, self.seat = together, seat
        self.bias, self.n_silence = bias, n_silence


Open = Callable[[], InferenceSession]
"""Opens a session, or returns the one that is open."""

RowsOf = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Maps tokens (k,) to their embeddings (k, n_text_state)."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The embeddings of tokens, and their rows of the output layer."""

    embedding: RowsOf
    output: RowsOf


def _in_memory(matrix: NDArray[Any]) -> RowsOf:
    return lambda tokens: matrix[tokens].astype(np.float32)


class _InFile:
    """Rows of a matrix that `np.save` wrote, read on demand.

    If the file were mapped, the system would bring its neighbours into memory with each row, and
    soon most of it: 40 MB for tiny.en. Raises `ValueError` if there is no such matrix.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        np.lib.format.read_magic(self._file)
        (_, self._width), _, self._dtype = np.lib.format.read_array_header_1_0(self._file)
        self._begin = self._file.tell()

    def __call__(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        n_bytes, file = self._width * self._dtype.itemsize, self._file.fileno()
        rows = [os.pread(file, n_bytes, self._begin + n_bytes * at) for at in tokens.tolist()]
        found = np.frombuffer(b"".join(rows), self._dtype).reshape(len(rows), self._width)
        return found.astype(np.float32)


class OnnxEngine:
    """A Whisper model on ONNX Runtime; an `Engine` (streamd/whisper/engine.py)."""

    def __init__(
        self,
        dims: ModelDimensions,
        sessions: tuple[Open, Open, Open, Open],
        *,
        rows: TokenRows,
        buffers: "_Buffers",
        arrays: Sequence[NDArray[Any]] = (),
    ) -> None:
        """`sessions` are encoder, decoder, decoder for several windows, and `cross_graph`.

        Each is opened when it is first needed. `rows` make the decoders' input of tokens, and
        `buffers` are made for the keys and values of a window. `arrays` are in use by the sessions,
        which do not keep a reference to them.
        """
        self.dims = dims
        self.n_cheap = _N_CHEAP
        self.urgent: OnnxEngine | None = None
        """The same engine on more threads, or None; set by the code that opens the engine."""
        self._encoder, self._decoder, self._many, self._cross = map(cache, sessions)
        self._rows = rows
        self._arrays = arrays
        self._buffers = buffers
        self._n_kept = buffers.n_silence
        self._bias = np.zeros(self._n_kept + dims.n_audio_ctx, np.float32)
        self._bias[: self._n_kept] = bias(dims.n_audio_ctx)[: self._n_kept]
        self.n_together = n_together(
            dims, N_TOGETHER, n_positions=self.n_positions, is_int8=buffers.is_half
        )

    def open(self) -> None:
        """Open what live captions need. Raises `EngineError` if ONNX Runtime refuses it."""
        self._encoder()
        self._decoder()

    @property
    def has_silence(self) -> bool:
        """Whether the model has stored states of silence."""
        return self._n_kept > 0

    @property
    def n_positions(self) -> int:
        """The most positions that a window attends to, the states of silence included."""
        return len(self._bias)

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        previous: OnnxFeatures | None = None,
        n_reused: int = 0,
    ) -> OnnxFeatures:
        """Encode log-mel as `Engine.encode` says."""
        mel, extent = extend(mel, self.dims, has_silence=self.has_silence, audio_ctx=audio_ctx)
        if previous is None or not self.has_silence:
            previous, n_reused = None, 0
        features = self._features(extent, previous)
        inputs: dict[str, NDArray[Any]] = {
            "mel": np.ascontiguousarray(mel[None, :, max(0, 2 * n_reused - 2) :]),
            "first": np.array([n_reused], np.int64),
        }
        _write_rows(self._encoder(), inputs, features, n_reused)
        return features

    def project(
        self,
        encoded: NDArray[np.float16],
        extent: Extent,
        *,
        previous: OnnxFeatures | None = None,
        n_reused: int = 0,
    ) -> OnnxFeatures:
        """Make features of an encoder's output, as `ProjectingEngine.project` says."""
        features = self._features(extent, previous)
        inputs = {"encoded": np.ascontiguousarray(encoded, np.float32)}
        _write_rows(self._cross(), inputs, features, n_reused)
        return features

    def _features(self, extent: Extent, previous: OnnxFeatures | None) -> OnnxFeatures:
        """Return features in memory of their own, or in that of the window before."""
        buffers = previous.buffers if previous else self._buffers.new()
        # The last states of silence are just before the window's first one.
        n_silence = max(0, self._n_kept - extent.first)
        begin, end = self._n_kept - n_silence, self._n_kept + extent.n
        views = {name: buffer[:, begin:end] for name, buffer in buffers.items()}
        return OnnxFeatures(buffers, views, self._bias[begin:end], n_silence)

    def decoder(
        self, features: OnnxFeatures | JointFeatures, n_slots: int
    ) -> "OnnxDecoder | JointDecoder":
        """Return a decoder for these features, with an empty pool of `n_slots` cache slots."""
        if isinstance(features, JointFeatures):
            return JointDecoder(features, self.dims, n_slots)
        return OnnxDecoder(
            self._decoder(), self.dims, rows=self._rows, features=features, n_slots=n_slots
        )

    def together(self, is_alone: Callable[[], bool]) -> "OnnxTogether":
        """Return a runner of batched passes (`BatchEngine.together`)."""
        self._encoder()  # which two threads will need
        return OnnxTogether(self, self._many(), self._rows, is_alone=is_alone)


class _Buffers:
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
        sizes = [self._n_rows * rows.shape[1] * rows.itemsize for rows in silence.values()]
        *begins, n_bytes = np.cumsum([0, *map(whole_pages, sizes)]).tolist()
        self._places = dict(zip(silence, zip(begins, sizes, strict=True), strict=True))
        content = (np.ascontiguousarray(rows).view(np.uint8) for rows in silence.values())
        self._template = Template(n_bytes, dict(zip(begins, map(np.ravel, content), strict=True)))

    @property
    def is_half(self) -> bool:
        """Whether they are in half precision, as they are for weights in int8."""
        return self._dtype == np.float16

    def new(self) -> Mapping[str, Stored]:
        block = self._template.new_block()
        pieces = {name: block[at : at + size] for name, (at, size) in self._places.items()}
        shape = (1, self._n_rows, -1)
        return {name: each.view(self._dtype).reshape(shape) for name, each in pieces.items()}


class OnnxDecoder:
    """A `Decoder` (streamd/whisper/engine.py) on ONNX Runtime."""

    def __init__(
        self,
        session: InferenceSession,
        dims: ModelDimensions,
        *,
        rows: TokenRows,
        features: OnnxFeatures,
        n_slots: int,
    ) -> None:
        """`session` may serve other decoders too."""
        self.n_vocab = dims.n_vocab
        self.n_text_ctx = dims.n_text_ctx
        self.n_slots = n_slots
        self.features = features
        self._session = session
        self._rows = rows
        self._dims = dims
        self._io: IOBinding | None = None
        self._bound: NDArray[np.float32] | None = None
        self._n_heads = _n_heads(session)
        self._pool = _Pool(_no_slots(dims, 1))

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
        among: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Run k tokens in one pass. Raises `EngineError` if ONNX Runtime fails."""
        if among is not None or len(want) <= _MOST_LOGITS:
            return self._run(Pass(self, tokens, positions, slots, visible, want, among))
        logits = np.empty((len(want), self.n_vocab), np.float32)
        alignments = []
        begins = [0, *np.sort(want)[_MOST_LOGITS::_MOST_LOGITS], len(tokens)]
        for begin, end in pairwise(begins):
            here = slice(begin, end)
            wanted = np.flatnonzero((want >= begin) & (want < end))
            asked = (tokens[here], positions[here], slots[here], visible[here])
            logits[wanted], alignment = self._run(Pass(self, *asked, want[wanted] - begin))
            alignments.append(alignment)
        return logits, np.concatenate(alignments)

    def _run(self, asked: Pass) -> Answer:
        _, tokens, positions, slots, visible, want, among = asked
        some = _NO_TOKENS if among is None else among
        of_all, of_some = (want, _NO_TOKENS) if among is None else (_NO_TOKENS, want)
        rows = max(len(slots), _LEAST_ROWS)
        place = self._pool.place(slots, visible, rows)
        if self._io is None:
            self._io = self._session.io_binding()
            self._bind_features(self._io)
        if self._bound is not self._pool.array:
            _bind_pool(self._io, self._pool.array)
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
        _run(self._session, self._io, inputs, results)
        self._pool.settle(place)
        alignment = _sound_first(results["alignment"][: len(slots)], self.features.n_silence)
        return results["logits" if among is None else "some_logits"], alignment

    def _bind_features(self, io: IOBinding) -> None:
        for name, rows in self.features.views.items():
            if name.startswith("cross_"):
                heads = rows.reshape(rows.shape[1], self._dims.n_text_head, -1)
                io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(heads))
        io.bind_ortvalue_input("cross_bias", OrtValue.ortvalue_from_numpy(self.features.bias))

    def adopt(self, before: Decoder, n: int) -> bool:
        """Take the first `n` slots of another window's decoder."""
        if not isinstance(before, OnnxDecoder):
            return False
        self._pool.adopt(before._pool, n)
        return True


def _n_heads(session: InferenceSession) -> int:
    """Return the number of alignment heads of a decoder's graph."""
    shapes = {each.name: each.shape for each in session.get_outputs()}
    n_heads: int = shapes["alignment"][1]
    return n_heads


def _no_slots(dims: ModelDimensions, n_windows: int) -> NDArray[np.float32]:
    d_head = dims.n_text_state // dims.n_text_head
    shape = (dims.n_text_layer, 2, n_windows, dims.n_text_head, 0, d_head)
    return np.zeros(shape, np.float32)


def _sound_first(alignment: NDArray[np.float32], n_silence: int) -> NDArray[np.float32]:
    """Move the scores (..., n_ctx) of the states of silence from the front to the back."""
    return np.concatenate([alignment[..., n_silence:], alignment[..., :n_silence]], axis=-1)


def _bind_pool(io: IOBinding, pool: NDArray[np.float32]) -> None:
    for layer, (keys, values) in enumerate(pool):
        for kind, array in (("key", keys), ("value", values)):
            _bind_in_place(io, f"{kind}_{layer}", array)


def _bind_in_place(io: IOBinding, name: str, array: NDArray[Any]) -> None:
    shared = OrtValue.ortvalue_from_numpy(array)  # shares our memory
    io.bind_ortvalue_input(name, shared)
    io.bind_ortvalue_output(f"new_{name}", shared)


class _Pool:
    """Keys and values of cache slots, `array` (n_text_layer, 2, 1, n_head, n_slots, d_head).

    It becomes larger where that is needed, unless whoever gave it has made room before.
    """

    def __init__(self, array: NDArray[np.float32]) -> None:
        self.array = array
        self._n_used = 0

    def n_used_with(self, slots: NDArray[np.int64]) -> int:
        """Return the end of the slots in use once these are; a pass may be written after it."""
        return max(self._n_used, int(slots.max()) + 1)

    def place(self, slots: NDArray[np.int64], visible: NDArray[np.bool_], rows: int) -> "_Place":
        """Return where a pass goes in the pool, enlarging it, and what the pass may attend to."""
        # The graph writes the pass at `first` and after: see the module's docstring.
        k, first = len(slots), int(slots[0])
        n_used = self.n_used_with(slots)
        in_place = bool((np.diff(slots) == 1).all()) and not visible[:, first + k :].any()
        if not in_place:
            first = n_used  # scratch slots after all others; moved below
        self._make_room(max(n_used, first + rows))
        self._n_used = n_used
        seen = np.zeros((rows, first + rows), np.bool_)
        seen[:k, :first] = visible[:, :first]
        if not in_place:
            # `visible` speaks of the slots after this pass, but until its rows are moved there they
            # still hold old keys. The new ones are read from the scratch slots instead.
            seen[:, slots] = False
        seen[:k, first : first + k] = visible[:, slots]
        # The row that is ignored must see something: a softmax over nothing would be NaN.
        seen[k:, first + k :] = True
        inputs: dict[str, NDArray[Any]] = {
            "last": np.array([first + rows - 1], np.int32),
            "n_total": np.array([first + rows], np.int32),
            "mask": np.where(seen, np.float32(0), np.float32(-np.inf))[None, None],
        }
        # It also writes a slot, which may be in use: keep what is there.
        overwritten = self.array[..., first + k : first + rows, :].copy()
        return _Place(slots, first, rows, in_place, inputs, overwritten)

    def settle(self, place: "_Place") -> None:
        """Move the keys and values of a pass to their slots."""
        k, first = len(place.slots), place.first
        self.array[..., first + k : first + place.rows, :] = place.overwritten
        if not place.in_place:
            self.array[..., place.slots, :] = self.array[..., first : first + k, :]

    def adopt(self, before: "_Pool", n: int) -> None:
        """Take the first `n` slots of another one."""
        self._make_room(n)
        self.array[..., :n, :] = before.array[..., :n, :]
        self._n_used = n

    def _make_room(self, n_slots: int) -> None:
        if n_slots > self.array.shape[-2]:
            self.move_to(_larger(self.array, n_slots))

    def move_to(self, array: NDArray[np.float32]) -> None:
        """Move to a larger array of zeros; only the slots in use are copied."""
        array[..., : self._n_used, :] = self.array[..., : self._n_used, :]
        self.array = array


def _larger(pool: NDArray[np.float32], n_slots: int) -> NDArray[np.float32]:
    """Return zeros in the shape of `pool`, with at least `n_slots` slots."""
    *outer, _, d_head = pool.shape
    shape = (*outer, -(-n_slots // _POOL_STEP) * _POOL_STEP, d_head)
    return zeros(shape, np.dtype(np.float32))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pass is in the pool: from slot `first` on, `rows` of them, the graph writes.

    These are `slots` if it is `in_place`. `overwritten` is what was there behind the pass.
    """

    slots: NDArray[np.int64]
    first: int
    rows: int
    in_place: bool
    inputs: Mapping[str, NDArray[Any]]
    overwritten: NDArray[np.float32]


class JointDecoder:
    """A `Decoder` (streamd/whisper/engine.py) whose passes are batched with other windows'."""

    def __init__(self, features: JointFeatures, dims: ModelDimensions, n_slots: int) -> None:
        """Takes the seat of `features` from their previous decoder."""
        self.n_vocab, self.n_text_ctx, self.n_slots = dims.n_vocab, dims.n_text_ctx, n_slots
        self.features = features
        self.pool = features.together.new_pool(features.seat)

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
        among: NDArray[np.int64] | None = None,
    ) -> Answer:
        """Run k tokens in a pass of their own."""
        asked = Pass(self, tokens, positions, slots, visible, want, among)
        (answer,) = self.features.together([asked])
        return answer

    def adopt(self, before: Decoder, n: int) -> bool:
        """Adopt nothing: windows of recordings share no tokens."""
        return False


class _QueuedWindow:
    """A window to be encoded by the first free thread."""

    def __init__(self, encode: Callable[[], JointFeatures]) -> None:
        self._encode, self._done = encode, Future[None]()
        self._found: list[JointFeatures] = []  # its thread may keep a reference to it for longer

    @property
    def is_done(self) -> bool:
        return self._done.done()

    def run(self) -> None:
        """Encode the window; an error is raised by `take`."""
        settle(self._done, lambda: self._found.append(self._encode()))

    def take(self) -> JointFeatures:
        """Wait for the features and return them; call it once."""
        self._done.result()
        return self._found.pop()


class OnnxTogether:
    """Runs passes of several windows as one batch.

    Each window has a *seat*: memory for the keys and values of its sound and of its cache slots.
    Seats are contiguous, as the graph reads them.
    """

    def __init__(
        self,
        engine: OnnxEngine,
        session: InferenceSession,
        rows: TokenRows,
        *,
        is_alone: Callable[[], bool],
    ) -> None:
        """`session` is the batched decoder's.

        A second thread is used if there is an urgent engine, and only while `is_alone` holds.
        """
        self._is_alone = is_alone
        self._engine, self._session, self._rows = engine, session, rows
        self._dims = engine.dims
        # The last window: nothing of it is known, but its memory is taken.
        self._spare: OnnxFeatures | None = None
        self._queue: list[weakref.ref[_QueuedWindow]] = []
        self._taking = Lock()
        self._other_thread = Lock()
        self._io = session.io_binding()
        self._n_heads = _n_heads(session)
        inputs = {each.name for each in session.get_inputs()}
        is_int8 = "cross_key_scale_0" in inputs
        self._sound_type = np.dtype(np.int8 if is_int8 else np.float32)
        self._widen = _new_session(_widening(), 1)
        _together.add(id(self))
        weakref.finalize(self, _shrink_arena_without, id(self), self._widen).atexit = False
        self._free = list(range(engine.n_together))
        self._pools: list[_Pool | None] = [None] * engine.n_together
        self._pool = _no_slots(self._dims, engine.n_together)
        self._sound = self._no_sound()
        self._bound: tuple[int, int] | None = None

    def encode(self, mel: Mel) -> JointFeatures:
        """Encode a window into a seat (`Together.encode`)."""
        with self._taking:
            before, self._spare = self._spare, None
        features = self._engine.encode(mel, previous=before)
        kept = self._keep(features)
        self._spare = features
        return kept

    def begin(self, mel: Callable[[], Mel]) -> Callable[[], JointFeatures]:
        """Queue a window for encoding in another thread (`Together.begin`)."""
        if self._engine.urgent is None or not self._is_alone():
            return lambda: self.encode(mel())
        window = _QueuedWindow(lambda: self.encode(mel()))
        with self._taking:
            self._queue.append(weakref.ref(window))
        in_thread(self._encode_next)
        return partial(self._wait, window)

    def _encode_next(self) -> None:
        """Encode the next queued window; runs in the other thread."""
        with self._other_thread:
            if (window := self._next()) is not None:
                window.run()

    def _wait(self, window: "_QueuedWindow") -> JointFeatures:
        """Return the features of a queued window.

        While the other thread is behind, this thread encodes windows from the end of the queue: the
        encoder may take longer than the decoder.
        """
        while not window.is_done and self._is_alone() and (last := self._next(window)) is not None:
            last.run()
        return window.take()

    def _next(self, waits_for: "_QueuedWindow | None" = None) -> "_QueuedWindow | None":
        """Take the first queued window, or the last one for a thread that waits.

        A waiting thread leaves one window for the other thread, unless it waits for that very one.
        Windows of cancelled recordings, for which nobody waits, are dropped.
        """
        with self._taking:
            queue = [window for each in self._queue if (window := each()) is not None]
            if not queue or (waits_for and len(queue) == 1 and queue[0] is not waits_for):
                return None
            window = queue.pop(-1 if waits_for else 0)
            self._queue = [weakref.ref(each) for each in queue]
            return window

    def _keep(self, features: OnnxFeatures) -> JointFeatures:
        """Copy what a decoder needs into a seat, while passes may read the others."""
        seat, n_head = self._free.pop(), self._dims.n_text_head
        for name, view in features.views.items():
            if name.startswith("cross_"):
                (rows,) = view
                if self._sound_type == np.int8:
                    (rows,) = self._widen.run(None, {"half": rows})
                    scale = np.maximum(rows.max(axis=0), -rows.min(axis=0)) / np.float32(127)
                    scale[scale == 0] = 1
                    rows *= 1 / scale
                    np.rint(rows, out=rows)
                    kind, layer = name.rsplit("_", 1)
                    self._sound[f"{kind}_scale_{layer}"][seat, 0] = scale
                heads = rows.reshape(len(rows), n_head, -1).swapaxes(0, 1)
                self._sound[name][seat, :, : len(rows)] = heads
        kept = JointFeatures(self, seat, features.bias, features.n_silence)
        weakref.finalize(kept, self._free.append, seat)
        return kept

    def new_pool(self, seat: int) -> _Pool:
        """Return an empty pool of cache slots in a seat; its former pool must no longer be used."""
        pool = self._pools[seat] = _Pool(self._pool[:, :, seat : seat + 1])
        return pool

    def _set_pool(self, array: NDArray[np.float32]) -> None:
        self._pool, self._bound = array, None
        for seat, pool in enumerate(self._pools):
            if pool is not None:
                pool.move_to(array[:, :, seat : seat + 1])

    def _no_sound(self) -> dict[str, NDArray[Any]]:
        """Allocate the keys and values of all seats, and the rows of a pass."""
        n_head, n_state = self._dims.n_text_head, self._dims.n_text_state
        n_ctx = self._engine.n_positions + self._dims.n_text_ctx
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "": ((len(self._free), n_head, n_ctx, n_state // n_head), self._sound_type)
        }
        if self._sound_type == np.int8:
            shapes["scale_"] = (len(self._free), 1, n_state), np.dtype(np.float32)
        return {
            f"cross_{kind}_{what}{layer}": zeros(shape, dtype)
            for layer, kind in product(range(self._dims.n_text_layer), ("key", "value"))
            for what, (shape, dtype) in shapes.items()
        }

    def __call__(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes of different windows in one batch, those of many tokens by themselves."""
        few = [at for at, each in enumerate(passes) if len(each.tokens) <= _MOST_ROWS]
        others = ([at] for at, each in enumerate(passes) if len(each.tokens) > _MOST_ROWS)
        answers: dict[int, Answer] = {}
        for group in filter(None, (few, *others)):
            answers |= zip(group, self._run([passes[at] for at in group]), strict=True)
        return [answers[at] for at in range(len(passes))]

    def _run(self, passes: Sequence[Pass]) -> list[Answer]:
        decoders = [each.decoder for each in passes if isinstance(each.decoder, JointDecoder)]
        both = list(zip(decoders, passes, strict=True))
        # Each window has as many places as the one with the most tokens, which must fit in.
        n_most = max(len(each.tokens) for each in passes)
        n_slots = max(one.pool.n_used_with(each.slots) for one, each in both) + n_most
        if n_slots > self._pool.shape[-2]:
            self._set_pool(_larger(self._pool, n_slots))
        places = [one.pool.place(each.slots, each.visible, len(each.slots)) for one, each in both]
        layout = _Layout([one.features for one in decoders], places)
        begins = np.cumsum([0, *layout.sizes])
        wants = [each.want + begin for each, begin in zip(passes, begins, strict=False)]
        tokens = np.concatenate([each.tokens for each in passes])
        positions = np.concatenate([each.positions for each in passes])
        rows = max(len(tokens), _LEAST_ROWS)
        inputs: dict[str, NDArray[Any]] = {
            "embedded": self._rows.embedding(np.resize(tokens, rows)),
            "positions": np.resize(positions, rows),
            "want": np.concatenate(wants),
            **layout.inputs(rows),
        }
        n_windows = len(inputs["place"])
        shape = (n_windows, self._n_heads, n_most, int(inputs["n_frames"][0]))
        results = {
            "logits": np.empty((len(inputs["want"]), self._dims.n_vocab), np.float32),
            "alignment": np.empty(shape, np.float32),
        }
        self._bind(layout.first, n_windows)
        _run(self._session, self._io, inputs, results)
        answers, ends = [], np.cumsum([len(want) for want in wants])
        for (one, each), place, want, end in zip(both, places, wants, ends, strict=True):
            one.pool.settle(place)
            logits = results["logits"][end - len(want) : end]
            features = one.features
            scores = results["alignment"][features.seat - layout.first, :, : len(each.tokens)]
            scores = (scores[..., : len(features.bias)] - features.bias).swapaxes(0, 1)
            alignment = _sound_first(scores, features.n_silence)
            answers.append((logits if each.among is None else logits[:, each.among], alignment))
        return answers

    def _bind(self, first: int, n_windows: int) -> None:
        """Bind the memory of `n_windows` seats from `first` on."""
        if self._bound == (first, n_windows):
            return
        seats = slice(first, first + n_windows)
        _bind_pool(self._io, self._pool[:, :, seats])
        for name, array in self._sound.items():
            if "scale" in name:
                self._io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array[seats]))
            else:
                _bind_in_place(self._io, name, array[seats])
        self._bound = first, n_windows


class _Layout:
    """Where the tokens of a batched pass go: one row for each seat, from the first that takes part.

    A seat in between that takes no part has no tokens, and attends to one slot that is not read.
    """

    def __init__(self, windows: Sequence[JointFeatures], places: Sequence["_Place"]) -> None:
        """`places` are those in the windows' pools, with as many rows as tokens."""
        self.first = min(window.seat for window in windows)
        self.sizes = [place.rows for place in places]
        self._windows, self._places = windows, places

    def inputs(self, rows: int) -> dict[str, NDArray[Any]]:
        """Return the graph's inputs; rows after the last token are padding."""
        n_windows, n_most = (
            max(each.seat for each in self._windows) + 1 - self.first,
            max(self.sizes),
        )
        place = np.zeros((n_windows, n_most), np.int64)
        row = np.empty(rows, np.int64)
        sizes, last, last_frame = np.zeros((3, n_windows), np.int32)
        n_total = max(each.first + each.rows for each in self._places)
        n_frames = max(
            len(each.bias) + n for each, n in zip(self._windows, self.sizes, strict=True)
        )
        mask, frames = (
            np.full((n_windows, 1, n_most, n), -np.inf, np.float32) for n in (n_total, n_frames)
        )
        begin = 0
        for window, each in zip(self._windows, self._places, strict=True):
            seat, n, n_ctx = window.seat - self.first, each.rows, len(window.bias)
            tokens = np.arange(n)
            place[seat, :n], row[begin : begin + n] = begin + tokens, seat * n_most + tokens
            sizes[seat], last[seat], last_frame[seat] = n, each.first + n - 1, n_ctx + n - 1
            mask[seat, 0, :n, : each.first + n] = each.inputs["mask"]
            frames[seat, 0, :, :n_ctx] = window.bias
            begin += n
        row[begin:] = row[0]
        return {
            "place": place,
            "row": row,
            "sizes": sizes,
            "last": last,
            "n_total": np.array([n_total], np.int32),
            "mask": mask,
            "last_frame": last_frame,
            "n_frames": np.array([n_frames], np.int32),
            "frames": frames,
        }


def _widening() -> bytes:
    """Return a graph that converts float16 to float32, in a tenth of numpy's time."""
    from streamd.engines.onnx import proto  # live captions do without

    shape: proto.Shape = ["n", "width"]
    half = proto.value_info("half", proto.ElementType.FLOAT16, shape)
    single = proto.value_info("single", proto.ElementType.FLOAT32, shape)
    to = {"to": proto.ElementType.FLOAT32}
    cast = proto.node("Cast", ["half"], ["single"], name="cast", attributes=to)
    return proto.model([cast], inputs=[half], outputs=[single], initializers=[], opsets={"": 20})


_NO_TOKENS = np.zeros(0, np.int64)


def _write_rows(
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
    _run(session, io, {**inputs, "rows": rows}, {}, shrinks=not _together)


def _run(
    session: InferenceSession,
    io: IOBinding,
    inputs: Mapping[str, NDArray[Any]],
    results: Mapping[str, NDArray[np.float32]],
    *,
    shrinks: bool = False,
) -> None:
    """Run a session on its bound memory and these arrays; `shrinks` as in `_run_options`.

    Raises `EngineError`.
    """
    for name, array in inputs.items():
        io.bind_cpu_input(name, array)
    for name, result in results.items():
        io.bind_output(name, "cpu", 0, np.float32, result.shape, result.ctypes.data)
    try:
        session.run_with_iobinding(io, _run_options(shrinks=shrinks))
    except _FAILURES as error:
        raise _engine_error(error) from error


@cache
def _share_arena() -> None:
    """Make all sessions share one arena for temporary memory instead of the heap.

    On the heap it fragments until all of it is resident: 25 MB more with tiny.en.
    """
    place = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
    settings = {"arena_extend_strategy": 0, "initial_chunk_size_bytes": _ARENA_BYTES}
    create_and_register_allocator(place, OrtArenaCfg(settings))


_together: set[int] = set()
"""The ids of all `OnnxTogether` in use."""


def _shrink_arena_without(together: int, session: InferenceSession) -> None:
    """Shrink the arena to its initial size, unless other batches still use it.

    Any run of a session can do that; this one, of `_widening`, computes next to nothing.
    """
    _together.discard(together)
    if not _together:
        session.run(None, {"half": np.zeros((1, 1), np.float16)}, _run_options(shrinks=True))


@cache
def _run_options(*, shrinks: bool) -> RunOptions:
    """Return options of a run; with `shrinks`, the arena shrinks to its initial size after it."""
    options = RunOptions()
    if shrinks:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    # The default. ONNX Runtime 1.32 asks for it before each run, and catches the C++ exception that
    # tells that it is missing: 0.1 ms of a pass of 4 ms.
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


def build(
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    silence: SilenceStates | None = None,
    threads: int = 2,
    precision: Precision = "float32",
) -> OnnxEngine:
    """Make an engine in memory; `weights` must not change any more.

    Without `silence` every window is encoded at the full context. There must be at least one of
    `alignment_heads`; `step` returns their scores, sorted by layer and head. Two `threads` suit one
    stream; a server does better with 1 and several inference threads. Raises `EngineError` if ONNX
    Runtime refuses the graphs.
    """
    # here because few starts need to write graphs
    from streamd.engines.onnx.graphs import (
        cross_graph,
        embedding,
        graphs,
        joint_decoder_graph,
        output,
        silence_rows,
    )

    sessions = []
    arrays: list[NDArray[Any]] = []
    made = graphs(
        dims, weights, alignment_heads=alignment_heads, silence=silence, precision=precision
    )
    for graph in made:
        sessions.append(_new_session(graph.model, threads, tensors=graph.tensors))
        arrays += graph.tensors.values()
    encoder, decoder = sessions

    def opened(make: "Callable[[], Graph]") -> InferenceSession:
        made = make()
        arrays.extend(made.tensors.values())
        return _new_session(made.model, threads, tensors=made.tensors)

    many = partial(joint_decoder_graph, dims, weights, precision, alignment_heads=alignment_heads)
    cross = partial(cross_graph, dims, weights, precision)

    embeddings, outputs = embedding(weights, precision), output(weights, precision)
    if outputs is None:
        outputs = embeddings
    return OnnxEngine(
        dims,
        (lambda: encoder, lambda: decoder, partial(opened, many), partial(opened, cross)),
        rows=TokenRows(_in_memory(embeddings), _in_memory(outputs)),
        buffers=_Buffers(silence_rows(dims, weights, silence, precision), dims.n_audio_ctx),
        arrays=arrays,
    )


def save(
    folder: Path,
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    silence: SilenceStates | None,
    precision: Precision,
) -> None:
    """Write the files from which `open_folder` makes the same engine as `build` does.

    Raises `EngineError` if ONNX Runtime refuses the graphs, or cannot write there.
    """
    # for the reason above
    from streamd.engines.onnx.graphs import (
        cross_graph,
        embedding,
        graphs,
        joint_decoder_graph,
        output,
        silence_rows,
    )

    heads = alignment_heads
    made = graphs(dims, weights, alignment_heads=heads, silence=silence, precision=precision)
    for name, graph in zip(_GRAPHS, made, strict=True):
        _new_session(graph.model, threads=1, tensors=graph.tensors, save=folder / name)
        del graph  # and its tensors, before there are others
    many = joint_decoder_graph(dims, weights, precision, alignment_heads=heads)
    # Its weights are those of the other decoder, in the same order: they share a file, whose pages
    # are in memory once.
    shared = folder / (_GRAPHS[1] + _WEIGHTS)
    before = _digest(shared)
    place = folder / _MANY
    _new_session(many.model, threads=1, tensors=many.tensors, save=place, saved_weights=shared.name)
    del many  # as above
    cross = cross_graph(dims, weights, precision)
    _new_session(cross.model, threads=1, tensors=cross.tensors, save=folder / _CROSS)
    if _digest(shared) != before:
        raise EngineError("the graphs of the decoder do not agree on their weights")
    np.save(folder / _EMBEDDING, embedding(weights, precision))
    if (outputs := output(weights, precision)) is not None:
        np.save(folder / _OUTPUT, outputs)
    with (folder / _SILENCE).open("wb") as file:
        # The stubs of numpy take a name that they do not know for `allow_pickle`, a bool.
        np.savez(file, **silence_rows(dims, weights, silence, precision))  # type: ignore[arg-type]


def make_silence_states(
    dims: ModelDimensions,
    weights: Weights,
    windows: Iterable[tuple[int, Mel]],
    *,
    threads: int,
    precision: Precision,
) -> SilenceStates:
    """Encode windows of speech at the full context, and average their states of silence.

    Each is its number of positions with sound, and its log-mel (n_mels, 2 * n_audio_ctx). Raises
    `EngineError` if ONNX Runtime refuses the graph.
    """
    from streamd.engines.onnx.graphs import states_graph  # here for the reason above

    graph = states_graph(dims, weights, precision)
    session = _new_session(graph.model, threads, tensors=graph.tensors, arena=False)
    try:
        found = ((n, np.stack(session.run(None, {"mel": mel[None]}))) for n, mel in windows)
        return average(found, dims)
    except _FAILURES as error:
        raise _engine_error(error) from error


def open_folder(
    folder: Path,
    dims: ModelDimensions,
    *,
    threads: int,
    urgent_threads: int = 0,
    recordings: bool = False,
) -> OnnxEngine:
    """Open a saved engine, and an urgent one if that has more threads; they share the files.

    For `recordings`, which do not need all of it, each session is opened when it is first used: it
    has the weights in memory once more. Raises `EngineError` if files are damaged, or another
    version of ONNX Runtime wrote them; with `recordings`, the first use of a session may raise it,
    and has removed the folder, so that the next start prepares the model anew.
    """
    several = [threads, urgent_threads] if urgent_threads > threads else [threads]
    try:
        embedding = output = _InFile(folder / _EMBEDDING)
        if (place := folder / _OUTPUT).exists():
            output = _InFile(place)
        rows = TokenRows(embedding, output)
        with np.load(folder / _SILENCE) as silence:
            buffers = _Buffers(dict(silence), dims.n_audio_ctx)
    except (OSError, ValueError, BadZipFile) as error:
        log.error("the prepared model in %s is damaged", folder)  # noqa: TRY400 - no bug
        raise EngineError(f"the prepared model is damaged: {error}") from error
    encoder, decoder = _GRAPHS
    engine, *urgent = (
        OnnxEngine(
            dims,
            (
                partial(_open_file, folder / encoder, n),
                partial(_open_file, folder / decoder, n),
                partial(_open_file, folder / _MANY, n),
                partial(_open_file, folder / _CROSS, n),
            ),
            rows=rows,
            buffers=buffers,
        )
        for n in several
    )
    engine.urgent = urgent[0] if urgent else None
    if not recordings:
        for each in (engine, *urgent):
            each.open()
    return engine


def _open_file(file: Path, threads: int) -> InferenceSession:
    try:
        return _new_session(file, threads)
    except EngineError as error:
        discard(file.parent)
        raise EngineError(
            f"the prepared model in {file.parent} was damaged and is removed ({error}): start again"
        ) from error


def _new_session(
    model: bytes | Path,
    threads: int,
    *,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    save: Path | None = None,
    saved_weights: str = "",
    arena: bool = True,
) -> InferenceSession:
    """Load a model: a file that was saved, or bytes with the weights in `tensors`.

    The caller keeps the arrays while the session lives. If `save` is given, the optimised graph is
    written there, and its weights beside it, in a file of their own or `saved_weights`. Without
    `arena`, memory comes from the heap. Raises `EngineError` if ONNX Runtime refuses the model.
    """
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, not printed
    options.enable_cpu_mem_arena = arena
    # It would keep a plan of the memory for each combination of shapes, and nearly every pass has
    # its own: 3 MB in a minute of speech, and as much again of holes in the heap between them.
    options.enable_mem_pattern = False
    if arena:
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    # threads that spin between two runs take the cores from the other session and from other
    # programs: twice as slow on two cores
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in (tensors or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    if save:
        saved = "session.optimized_model_external_initializers"
        name = saved_weights or save.name + _WEIGHTS
        options.add_session_config_entry(f"{saved}_file_name", name)
        # so that two decoders' files have the same weights, although one needs a vector less
        options.add_session_config_entry(f"{saved}_min_size_in_bytes", "8192")
        # in the kernels' order, so that they can be used where they are mapped
        options.add_session_config_entry(
            "session.save_external_prepacked_constant_initializers", "1"
        )
    if isinstance(model, Path):
        # it was optimised before it was saved
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
        if model.name == _GRAPHS[1]:
            # By default, a decoder that was saved widens the sound's keys and values for all layers
            # before it uses them: 36 MB more for base at the full context.
            options.execution_order = ExecutionOrder.PRIORITY_BASED
    with ExitStack() as names:
        if save:
            options.optimized_model_filepath = names.enter_context(in_utf8(save))
        source = model if isinstance(model, bytes) else names.enter_context(in_utf8(model))
        try:
            return InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except _FAILURES as error:
            raise _engine_error(error) from error


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _engine_error(error: Exception) -> EngineError:
    reason = str(error).strip().splitlines()[0]
    if "Failed to allocate memory" in reason:  # its arena says so, with no type or code of its own
        return EngineMemoryError("ONNX Runtime found too little memory: free some")
    return EngineError(f"ONNX Runtime failed: {reason}; try another version of onnxruntime")
