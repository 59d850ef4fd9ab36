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
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from onnxruntime import (
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
    __version__,
    create_and_register_allocator,
)
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from streamd.engines import Precision
from streamd.errors import EngineError
from streamd.models import ModelDimensions, Weights
from streamd.models.silence import SilenceStates, average, bias, extend
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass, Together

"""Precision of the linear layers' weights; in int8 their activations are rounded too."""

_WEIGHTS = ".weights"
_GRAPHS, _SILENCE, _EMBEDDING = ("encoder.onnx", "decoder.onnx"), "silence.npz", "embedding.npy"
_MANY = "decoder_many.onnx"
_OTHERS = (_MANY, _SILENCE, _EMBEDDING)
FILES = (*(name + suffix for name in _GRAPHS for suffix in ("", _WEIGHTS)), *_OTHERS)
"""The files that `save` writes."""
_OUTPUT = "output.npy"
OPTIONAL = (_OUTPUT,)
"""One more file for models whose output layer is not the embeddings."""

_ARENA_BYTES = 16 * 1024**2
"""Memory for what all sessions compute on the way; as much of it is resident as was ever in use."""

_FAILURES = (
    ort.EPFail,
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.NoSuchFile,
    ort.NotImplemented,
    ort.RuntimeException,
    RuntimeError,  # what a run with bound memory raises for all of these
)
"""ONNX Runtime's exceptions have no common base of their own."""

_SPIN_US = "20"
"""For how long a thread waits for work before it sleeps: about as long as waking it up takes.

A step of `base` is faster by a fifth than without, and not slower on a busy machine
(benchmarks/RESULTS.md).
"""
_SPINNING = "1" if tuple(map(int, __version__.split(".")[:2])) >= (1, 31) else "0"
"""Older versions cannot limit it and would spin for milliseconds."""
_POOL_STEP = 64
"""The memory grows by this many slots; most windows need one step."""
N_TOGETHER = 8
"""Windows in one pass of the decoder for several."""
PARTS = ("/0", "/1")
"""What the names of keys and values of a window's sound end in where there are several windows: of
half of its positions each. Converted to float32, all of them would not fit into a core's cache."""
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
    """A window's keys and values, in memory that the windows after it go on writing.

    Each of the `buffers`, (1, n_positions + n_audio_ctx, width), has rows for the positions of the
    states of silence and behind them for those of the context. The window attends to one piece of
    each, the `views`, (1, n_ctx, width): the `n_silence` positions that stand for the silence after
    it, then its own. `bias` (n_ctx,) is added to the scores.
    """

    buffers: Mapping[str, Stored]
    views: Mapping[str, Stored]
    bias: NDArray[np.float32]
    n_silence: int


RowsOf = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Gives the rows (k, n_text_state) of tokens (k,)."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The embeddings of tokens, and their rows of the output layer."""

    embedding: RowsOf
    output: RowsOf


def _in_memory(matrix: NDArray[Any]) -> RowsOf:
    return lambda tokens: matrix[tokens].astype(np.float32)


class _InFile:
    """Rows of a matrix that `np.save` wrote, read when they are needed.

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
    """A Whisper model on ONNX Runtime; an `Engine` (streamd/engines/__init__.py)."""

    def __init__(
        self,
        dims: ModelDimensions,
        sessions: tuple[InferenceSession, InferenceSession],
        *,
        many: Callable[[], InferenceSession],
        rows: TokenRows,
        silence: Mapping[str, Stored],
        arrays: Sequence[NDArray[Any]] = (),
    ) -> None:
        """`sessions` are the encoder and the decoder, whose input `rows` make of tokens.

        `silence` are its keys and values, (n_positions, width), without rows if there is none.
        `many` opens the decoder for several windows. `arrays` are in use by the sessions, which do
        not keep a reference to them.
        """
        self.dims = dims
        self.urgent: OnnxEngine | None = None
        """The same on more threads, if there is one; whoever makes an engine sets it."""
        self.n_together = N_TOGETHER
        self._open_many = many
        self._rows = rows
        self._many: InferenceSession | None = None
        self._arrays = arrays
        self._encoder, self._decoder = sessions
        self._silence = silence
        self._n_kept = len(silence["key_0"])
        self._bias = np.zeros(self._n_kept + dims.n_audio_ctx, np.float32)
        self._bias[: self._n_kept] = bias(dims.n_audio_ctx)[: self._n_kept]

    @property
    def has_silence(self) -> bool:
        """Whether something stands for the silence after a window."""
        return self._n_kept > 0

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
        if not self.has_silence:
            previous = None
        buffers = previous.buffers if previous else self._new_buffers()
        n_reused = n_reused if previous else 0
        # The last states of silence are just before the window's first one.
        n_silence = max(0, self._n_kept - extent.first)
        begin, end = self._n_kept - n_silence, self._n_kept + extent.n
        views = {name: buffer[:, begin:end] for name, buffer in buffers.items()}
        rows = np.zeros((extent.n - n_reused, 2), np.int64)
        rows[:, 1] = np.arange(n_silence + n_reused, n_silence + extent.n)
        inputs: dict[str, NDArray[Any]] = {
            "mel": np.ascontiguousarray(mel[None, :, max(0, 2 * n_reused - 2) :]),
            "first": np.array([n_reused], np.int64),
            "rows": rows,
        }
        io = self._encoder.io_binding()
        for name, view in views.items():
            shared = OrtValue.ortvalue_from_numpy(view)  # shares our memory
            io.bind_ortvalue_input(name, shared)
            io.bind_ortvalue_output(f"new_{name}", shared)
        _run(self._encoder, io, inputs, {})
        return OnnxFeatures(buffers, views, self._bias[begin:end], n_silence)

    def _new_buffers(self) -> Mapping[str, Stored]:
        n_rows = self._n_kept + self.dims.n_audio_ctx
        dtype = self._silence["key_0"].dtype
        sizes = [n_rows * rows.shape[1] for rows in self._silence.values()]
        # What is not written takes no memory, which a heap does not promise: it gives what was
        # written before, and keeps pieces of what it gets back.
        n_bytes = sum(sizes) * dtype.itemsize
        pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        parts = np.split(np.frombuffer(pages, dtype), np.cumsum(sizes)[:-1])
        buffers = {}
        for (name, rows), part in zip(self._silence.items(), parts, strict=True):
            buffers[name] = part.reshape(1, n_rows, -1)
            buffers[name][0, : self._n_kept] = rows
        return buffers

    def decoder(self, features: OnnxFeatures, n_slots: int) -> "OnnxDecoder":
        """Give a decoder for these features with an empty pool of `n_slots` cache slots."""
        return OnnxDecoder(
            self._decoder, self.dims, rows=self._rows, features=features, n_slots=n_slots
        )

    def for_decoder(self, features: OnnxFeatures) -> OnnxFeatures:
        """Copy what a decoder needs, less than half of the memory."""
        views = {n: view.copy() for n, view in features.views.items() if n.startswith("cross_")}
        return replace(features, buffers={}, views=views)

    def together(self) -> Together:
        """Give what runs passes of several decoders at once."""
        if self._many is None:  # live captions do without
            self._many = self._open_many()
        return _Together(self._many, self.dims, self._rows, self._silence["key_0"].dtype)


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
        self._n_heads = session.get_outputs()[1].shape[1]
        self._n_used = 0
        parts = np.array_split(features.bias, len(PARTS))
        self._parts = np.array([len(part) for part in parts], np.int64)
        d_head = dims.n_text_state // dims.n_text_head
        shape = (dims.n_text_layer, 2, 1, dims.n_text_head, 0, d_head)
        self.pool: NDArray[np.float32] = np.zeros(shape, np.float32)

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
        place = self.place(slots, visible, rows)
        if self._io is None:
            self._io = self._session.io_binding()
            self.bind_features(self._io)
        if self._bound is not self.pool:
            self.bind_pool(self._io)
            self._bound = self.pool
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
        alignment = self.settle(place, results["alignment"])
        return results["logits" if among is None else "some_logits"], alignment

    def place(self, slots: NDArray[np.int64], visible: NDArray[np.bool_], rows: int) -> "_Place":
        """Find the place of a pass in the pool, which is larger then, and what it sees."""
        # The graph writes the pass at `first` and after: see the module's docstring.
        k, first = len(slots), int(slots[0])
        n_used = max(self._n_used, int(slots.max()) + 1)
        in_place = bool((np.diff(slots) == 1).all()) and not visible[:, first + k :].any()
        if not in_place:
            first = n_used  # scratch slots after all others; moved below
        self._grow(max(n_used, first + rows))
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
        overwritten = self.pool[..., first + k : first + rows, :].copy()
        return _Place(slots, first, rows, in_place, inputs, overwritten)

    def settle(self, place: "_Place", alignment: NDArray[np.float32]) -> NDArray[np.float32]:
        """Move the keys and values of a pass to their slots; return its alignment."""
        k, first = len(place.slots), place.first
        self.pool[..., first + k : first + place.rows, :] = place.overwritten
        if not place.in_place:
            self.pool[..., place.slots, :] = self.pool[..., first : first + k, :]
        n_silence = self.features.n_silence
        sound, silent = alignment[:k, :, n_silence:], alignment[:k, :, :n_silence]
        return np.concatenate([sound, silent], axis=-1)

    def bind_features(self, io: IOBinding, suffix: str = "") -> None:
        """Bind the window's features to the inputs of a pass, of several windows with a suffix."""
        names = [f"{suffix}{part}" for part in PARTS] if suffix else [""]
        for name, rows in self.features.views.items():
            if name.startswith("cross_"):
                heads = rows.reshape(rows.shape[1], self._dims.n_text_head, -1)
                for end, part in zip(names, np.array_split(heads, len(names)), strict=True):
                    io.bind_ortvalue_input(name + end, OrtValue.ortvalue_from_numpy(part))
        bias = self.features.bias
        io.bind_ortvalue_input(f"cross_bias{suffix}", OrtValue.ortvalue_from_numpy(bias))
        if suffix:
            io.bind_ortvalue_input(f"parts{suffix}", OrtValue.ortvalue_from_numpy(self._parts))

    def bind_pool(self, io: IOBinding, suffix: str = "") -> None:
        """Bind the pool, after each time that it grew."""
        for layer, (keys, values) in enumerate(self.pool):
            for kind, array in (("key", keys), ("value", values)):
                name = f"{kind}_{layer}{suffix}"
                shared = OrtValue.ortvalue_from_numpy(array)  # shares our memory
                io.bind_ortvalue_input(name, shared)
                io.bind_ortvalue_output(f"new_{name}", shared)

    def adopt(self, before: Decoder, n: int) -> bool:
        """Take the first `n` slots of another window's decoder."""
        if not isinstance(before, OnnxDecoder):
            return False
        self._grow(n)
        self.pool[..., :n, :] = before.pool[..., :n, :]
        self._n_used = n
        return True

    def _grow(self, n_slots: int) -> None:
        n_pool = self.pool.shape[-2]
        if n_slots <= n_pool:
            return
        *outer, _, d_head = self.pool.shape
        larger = np.zeros((*outer, -(-n_slots // _POOL_STEP) * _POOL_STEP, d_head), np.float32)
        larger[..., :n_pool, :] = self.pool
        self.pool = larger


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


class _Together:
    """Passes of several windows at once, on a decoder's graph for `N_TOGETHER` windows."""

    def __init__(
        self,
        session: InferenceSession,
        dims: ModelDimensions,
        rows: TokenRows,
        stored: np.dtype[Any],
    ) -> None:
        self._session, self._n_vocab, self._rows = session, dims.n_vocab, rows
        self._io = session.io_binding()
        self._suffixes = [f".{at}" for at in range(N_TOGETHER)]
        self._n_heads = session.get_outputs()[1].shape[1]
        # The graph has rows of every window: where there is none, a token that nobody reads.
        nothing = np.zeros((1, len(PARTS), dims.n_text_state), stored)
        names = [
            f"cross_{kind}_{at}" for kind in ("key", "value") for at in range(dims.n_text_layer)
        ]
        no_bias = np.zeros(len(PARTS), np.float32)
        features = OnnxFeatures({}, dict.fromkeys(names, nothing), no_bias, 0)
        self._idle = OnnxDecoder(session, dims, rows=rows, features=features, n_slots=1)
        for suffix in self._suffixes:
            self._idle.bind_features(self._io, suffix)
        self._seats = [self._idle] * N_TOGETHER
        self._pools: list[NDArray[np.float32] | None] = [None] * N_TOGETHER

    def __call__(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run at most `N_TOGETHER` passes, each of another window, in one of the graph."""
        asked = {id(each.decoder): each for each in passes}
        self._seat([each.decoder for each in passes if isinstance(each.decoder, OnnxDecoder)])
        one = Pass(self._idle, *_IDLE)
        seated = [asked.get(id(decoder), one) for decoder in self._seats]
        inputs: dict[str, NDArray[Any]] = {
            "sizes": np.array([len(each.tokens) for each in seated], np.int64),
            "embedded": self._rows.embedding(np.concatenate([each.tokens for each in seated])),
            "positions": np.concatenate([each.positions for each in seated]),
        }
        begins = np.cumsum([0, *inputs["sizes"]])
        wants = [each.want + begin for each, begin in zip(seated, begins, strict=False)]
        inputs["want"] = np.concatenate(wants)
        results = {"logits": np.empty((len(inputs["want"]), self._n_vocab), np.float32)}
        places = []
        for at, (each, suffix) in enumerate(zip(seated, self._suffixes, strict=True)):
            decoder, k = self._seats[at], len(each.tokens)
            place = decoder.place(each.slots, each.visible, k)
            if decoder.pool is not self._pools[at]:
                decoder.bind_pool(self._io, suffix)
                self._pools[at] = decoder.pool
            places.append(place)
            inputs |= {name + suffix: array for name, array in place.inputs.items()}
            shape = (k, self._n_heads, len(decoder.features.bias))
            results[f"alignment{suffix}"] = np.empty(shape, np.float32)
        _run(self._session, self._io, inputs, results)
        answers, ends = {}, np.cumsum([len(want) for want in wants])
        for at, suffix in enumerate(self._suffixes):
            decoder, end = self._seats[at], ends[at]
            logits = results["logits"][end - len(wants[at]) : end]
            alignment = decoder.settle(places[at], results[f"alignment{suffix}"])
            among = seated[at].among
            answers[id(decoder)] = (logits if among is None else logits[:, among], alignment)
        return [answers[id(each.decoder)] for each in passes]

    def _seat(self, decoders: Sequence[OnnxDecoder]) -> None:
        """Bind the features of decoders that are new, in place of those that are done."""
        known = {id(decoder) for decoder in self._seats}
        new = [decoder for decoder in decoders if id(decoder) not in known]
        present = {id(decoder) for decoder in decoders}
        for at, (decoder, suffix) in enumerate(zip(self._seats, self._suffixes, strict=True)):
            if id(decoder) in present:
                continue
            chosen = new.pop() if new else self._idle
            if chosen is not decoder:
                chosen.bind_features(self._io, suffix)
                self._seats[at], self._pools[at] = chosen, None


_NO_TOKENS = np.zeros(0, np.int64)
_IDLE = (
    np.zeros(1, np.int64),
    np.zeros(1, np.int64),
    np.zeros(1, np.int64),
    np.ones((1, 1), np.bool_),
    _NO_TOKENS,
)


def _run(
    session: InferenceSession,
    io: IOBinding,
    inputs: Mapping[str, NDArray[Any]],
    results: Mapping[str, NDArray[np.float32]],
) -> None:
    for name, array in inputs.items():
        io.bind_cpu_input(name, array)
    for name, result in results.items():
        io.bind_output(name, "cpu", 0, np.float32, result.shape, result.ctypes.data)
    try:
        session.run_with_iobinding(io, _run_options())
    except _FAILURES as error:
        raise _engine_error(error) from error


@cache
def _share_arena() -> None:
    """Have sessions take temporary memory from one place instead of the heap.

    In the heap it moves about between what stays, until all of it is resident: tiny.en took 25 MB
    more.
    """
    place = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
    settings = {"arena_extend_strategy": 0, "initial_chunk_size_bytes": _ARENA_BYTES}
    create_and_register_allocator(place, OrtArenaCfg(settings))


@cache
def _run_options() -> RunOptions:
    """Return options that make the arena give back, after a run, what exceeds its first size."""
    options = RunOptions()
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
    from streamd.engines.onnx.graphs import decoders, embedding, graphs, output, silence_rows

    sessions = []
    arrays: list[NDArray[Any]] = []
    made = graphs(
        dims, weights, alignment_heads=alignment_heads, silence=silence, precision=precision
    )
    for graph in made:
        sessions.append(_new_session(graph.model, threads, tensors=graph.tensors))
        arrays += graph.tensors.values()
    encoder, decoder = sessions

    def many() -> InferenceSession:
        made = decoders(
            dims, weights, alignment_heads=alignment_heads, precision=precision, n=N_TOGETHER
        )
        arrays.extend(made.tensors.values())
        return _new_session(made.model, threads, tensors=made.tensors)

    embeddings, outputs = embedding(weights, precision), output(weights, precision)
    if outputs is None:
        outputs = embeddings
    return OnnxEngine(
        dims,
        (encoder, decoder),
        many=many,
        rows=TokenRows(_in_memory(embeddings), _in_memory(outputs)),
        silence=silence_rows(dims, weights, silence, precision),
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
    from streamd.engines.onnx.graphs import decoders, embedding, graphs, output, silence_rows

    heads = alignment_heads
    made = graphs(dims, weights, alignment_heads=heads, silence=silence, precision=precision)
    for name, graph in zip(_GRAPHS, made, strict=True):
        _new_session(graph.model, threads=1, tensors=graph.tensors, save=folder / name)
    del graph  # and its tensors, before there are others
    many = decoders(dims, weights, alignment_heads=heads, precision=precision, n=N_TOGETHER)
    # Its weights are those of the other decoder, in the same order: they share a file, whose pages
    # are in memory once.
    shared = folder / (_GRAPHS[1] + _WEIGHTS)
    before = _digest(shared)
    place = folder / _MANY
    _new_session(many.model, threads=1, tensors=many.tensors, save=place, saved_weights=shared.name)
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
    folder: Path, dims: ModelDimensions, *, threads: int, urgent_threads: int = 0
) -> OnnxEngine:
    """Open a saved engine, and an urgent one if that has more threads; they share the files.

    Raises `EngineError` if its files are damaged, or another version of ONNX Runtime wrote them.
    """
    several = [threads, urgent_threads] if urgent_threads > threads else [threads]
    sessions = [[_new_session(folder / name, n) for name in _GRAPHS] for n in several]
    try:
        embedding = output = _InFile(folder / _EMBEDDING)
        if (place := folder / _OUTPUT).exists():
            output = _InFile(place)
        rows, many = TokenRows(embedding, output), partial(_new_session, folder / _MANY, threads)
        with np.load(folder / _SILENCE) as silence:
            states = dict(silence)
        engine, *urgent = (
            OnnxEngine(dims, (encoder, decoder), many=many, rows=rows, silence=states)
            for encoder, decoder in sessions
        )
        engine.urgent = urgent[0] if urgent else None
        return engine
    except (OSError, ValueError, BadZipFile) as error:
        raise EngineError(f"the prepared model in {folder} is damaged: {error}") from error


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
    options.add_session_config_entry("session.intra_op.allow_spinning", _SPINNING)
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in (tensors or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    if save:
        options.optimized_model_filepath = str(save)
        saved = "session.optimized_model_external_initializers"
        name = saved_weights or save.name + _WEIGHTS
        options.add_session_config_entry(f"{saved}_file_name", name)
        options.add_session_config_entry(f"{saved}_min_size_in_bytes", "1024")
        # in the kernels' order, so that they can be used where they are mapped
        options.add_session_config_entry(
            "session.save_external_prepacked_constant_initializers", "1"
        )
    if isinstance(model, Path):
        # it was optimised before it was saved
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, bytes) else str(model)
    try:
        return InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except _FAILURES as error:
        raise _engine_error(error) from error


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _engine_error(error: Exception) -> EngineError:
    reason = str(error).strip().splitlines()[0]
    return EngineError(f"ONNX Runtime failed: {reason}; try another version of onnxruntime")
