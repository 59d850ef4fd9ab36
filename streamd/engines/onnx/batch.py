"""Passes of several windows of a recording as one batch."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import product
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from streamd.engines.onnx.onnx_engine import OnnxEngine, OnnxFeatures, sound_first
from streamd.engines.onnx.sessions import Open, keep_arena, n_heads, new_session, run, run_options
from streamd.engines.onnx.slots import (
    LEAST_ROWS,
    Place,
    Pool,
    bind_in_place,
    bind_pool,
    larger,
    no_slots,
)
from streamd.models import ModelDimensions
from streamd.system.calls import in_thread, settle
from streamd.system.pages import zeros
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass

_MOST_ROWS = 8
"""A pass of more tokens does not run with those of other windows, which would get as many places.
"""


@dataclass(frozen=True, eq=False)
class JointFeatures:
    """A window's keys and values in a batch of several windows: a seat of `OnnxTogether`.

    The seat is released when the features are garbage-collected. Only the newest decoder may use
    them. `bias` and `n_silence` are as of `OnnxFeatures`.
    """

    together: "OnnxTogether"
    seat: int
    bias: NDArray[np.float32]
    n_silence: int

    def new_decoder(self, n_slots: int) -> "JointDecoder":
        return JointDecoder(self, self.together.dims, n_slots)


class JointDecoder:
    """A `Decoder` (streamd/whisper/engine.py) whose passes are batched with other windows'."""

    def __init__(self, features: JointFeatures, dims: ModelDimensions, n_slots: int) -> None:
        """Takes the seat of `features` from their previous decoder."""
        self.n_vocab, self.n_text_ctx, self.n_slots = dims.n_vocab, dims.n_text_ctx, n_slots
        self.features = features
        self.pool = features.together.new_pool(features.seat)

    def run(self, asked: Pass) -> Answer:
        (answer,) = self.features.together.run([asked])
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

    def __init__(self, engine: OnnxEngine, is_alone: Callable[[], bool], *, many: Open) -> None:
        """`many` opens the batched decoder's session.

        A second thread is used if there is an urgent engine, and only while `is_alone` holds.
        """
        self._is_alone = is_alone
        engine.open_encoder()  # which two threads will need
        session = many()
        self._engine, self._session, self._rows = engine, session, engine.rows
        self.dims = engine.dims
        # The last window: nothing of it is known, but its memory is taken.
        self._spare: OnnxFeatures | None = None
        self._queue: list[weakref.ref[_QueuedWindow]] = []
        self._taking = Lock()
        self._other_thread = Lock()
        self._io = session.io_binding()
        self._n_heads = n_heads(session)
        inputs = {each.name for each in session.get_inputs()}
        is_int8 = "cross_key_scale_0" in inputs
        self._sound_type = np.dtype(np.int8 if is_int8 else np.float32)
        self._widen = widen = new_session(_widening(), 1)
        # Any run of a session shrinks the arena; this one computes next to nothing.
        nothing, shrinks = {"half": np.zeros((1, 1), np.float16)}, run_options(shrinks=True)
        keep_arena(self, lambda: widen.run(None, nothing, shrinks))
        self._free = list(range(engine.n_together))
        self._pools: list[Pool | None] = [None] * engine.n_together
        self._pool = no_slots(self.dims, engine.n_together)
        self._sound = self._no_sound()
        self._bound: tuple[int, int] | None = None

    def encode_alone(self, mel: Mel) -> JointFeatures:
        """Encode a window into a seat (`Together.encode_alone`)."""
        with self._taking:
            before, self._spare = self._spare, None
        features = self._engine.encode_alone(mel, before)
        kept = self._keep(features)
        self._spare = features
        return kept

    def begin(self, mel: Callable[[], Mel]) -> Callable[[], JointFeatures]:
        """Queue a window for encoding in another thread (`Together.begin`)."""
        if self._engine.urgent is None or not self._is_alone():
            return lambda: self.encode_alone(mel())
        window = _QueuedWindow(lambda: self.encode_alone(mel()))
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
        seat, n_head = self._free.pop(), self.dims.n_text_head
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

    def new_pool(self, seat: int) -> Pool:
        """Return an empty pool of cache slots in a seat; its former pool must no longer be used."""
        pool = self._pools[seat] = Pool(self._pool[:, :, seat : seat + 1])
        return pool

    def _set_pool(self, array: NDArray[np.float32]) -> None:
        self._pool, self._bound = array, None
        for seat, pool in enumerate(self._pools):
            if pool is not None:
                pool.move_to(array[:, :, seat : seat + 1])

    def _no_sound(self) -> dict[str, NDArray[Any]]:
        """Allocate the keys and values of all seats, and the rows of a pass."""
        n_head, n_state = self.dims.n_text_head, self.dims.n_text_state
        n_ctx = self._engine.n_positions + self.dims.n_text_ctx
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "": ((len(self._free), n_head, n_ctx, n_state // n_head), self._sound_type)
        }
        if self._sound_type == np.int8:
            shapes["scale_"] = (len(self._free), 1, n_state), np.dtype(np.float32)
        return {
            f"cross_{kind}_{what}{layer}": zeros(shape, dtype)
            for layer, kind in product(range(self.dims.n_text_layer), ("key", "value"))
            for what, (shape, dtype) in shapes.items()
        }

    def run(self, passes: Sequence[Pass]) -> list[Answer]:
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
            self._set_pool(larger(self._pool, n_slots))
        places = [one.pool.place(each.slots, each.visible, len(each.slots)) for one, each in both]
        layout = _Layout([one.features for one in decoders], places)
        begins = np.cumsum([0, *layout.sizes])
        wants = [each.want + begin for each, begin in zip(passes, begins, strict=False)]
        tokens = np.concatenate([each.tokens for each in passes])
        positions = np.concatenate([each.positions for each in passes])
        rows = max(len(tokens), LEAST_ROWS)
        inputs: dict[str, NDArray[Any]] = {
            "embedded": self._rows.embedding(np.resize(tokens, rows)),
            "positions": np.resize(positions, rows),
            "want": np.concatenate(wants),
            **layout.inputs(rows),
        }
        n_windows = len(inputs["place"])
        shape = (n_windows, self._n_heads, n_most, int(inputs["n_frames"][0]))
        results = {
            "logits": np.empty((len(inputs["want"]), self.dims.n_vocab), np.float32),
            "alignment": np.empty(shape, np.float32),
        }
        self._bind(layout.first, n_windows)
        run(self._session, self._io, inputs, results)
        answers, ends = [], np.cumsum([len(want) for want in wants])
        for (one, each), place, want, end in zip(both, places, wants, ends, strict=True):
            one.pool.settle(place)
            logits = results["logits"][end - len(want) : end]
            features = one.features
            scores = results["alignment"][features.seat - layout.first, :, : len(each.tokens)]
            scores = (scores[..., : len(features.bias)] - features.bias).swapaxes(0, 1)
            alignment = sound_first(scores, features.n_silence)
            answers.append((logits if each.among is None else logits[:, each.among], alignment))
        return answers

    def _bind(self, first: int, n_windows: int) -> None:
        """Bind the memory of `n_windows` seats from `first` on."""
        if self._bound == (first, n_windows):
            return
        seats = slice(first, first + n_windows)
        bind_pool(self._io, self._pool[:, :, seats])
        for name, array in self._sound.items():
            if "scale" in name:
                self._io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array[seats]))
            else:
                bind_in_place(self._io, name, array[seats])
        self._bound = first, n_windows


class _Layout:
    """Where the tokens of a batched pass go: one row for each seat, from the first that takes part.

    A seat in between that takes no part has no tokens, and attends to one slot that is not read.
    """

    def __init__(self, windows: Sequence[JointFeatures], places: Sequence["Place"]) -> None:
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
