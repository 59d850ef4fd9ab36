"""Whisper on Core ML: an `Engine` whose work is done by a supervised process.

Any thread may call it; it does one thing at a time. A worker that dies, or does not answer in time,
costs a repetition: what a new one lacks is computed again from what is remembered here. A window
that was resumed is then computed whole, and text that its decoder adopted is read with the new
sound; the same happens where more windows are in use than there are cache slots. Apart from that,
results do not depend on whether a worker was replaced. If that happens too often, the engine has
failed.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from weakref import WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import MAX_TOKENS, padded
from streamd.engines.coreml.runtime.programs import Placement, Step, needed
from streamd.engines.coreml.runtime.worker import Job, Worker, WorkerLostError
from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.models.silence import Extent, kept_positions
from streamd.types import Mel
from streamd.whisper.engine import Alignment, Decoder, Logits

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
RunStep = Callable[[Step], tuple[Logits, Alignment]]

_Indices = NDArray[np.int64]
_NONE: _Indices = np.zeros(0, np.int64)
_NOT_CACHED = -1
_NO_RUN, _EMPTY = -1, 0
"""In place of a run's number: the slot was never run; the column holds nothing."""
_N_CHEAP = 4
"""Functions have fixed shapes: a pass of a few tokens has as many rows as one of a single token."""
_N_CACHE_SLOTS = 4
"""Windows that a worker keeps at a time; if more are in use, they are encoded again in turn."""


@dataclass(frozen=True, eq=False)
class CoreMLFeatures:
    """An encoded window; its log-mel is kept, so that any worker can encode it again.

    Its first `n_reused` positions are those of the window `previous`, whose cache slot it takes
    over when it is first encoded. If that is gone, all of it is computed.
    """

    engine: "CoreMLEngine"
    mel: Mel
    extent: Extent
    previous: "ref[CoreMLFeatures] | None" = None
    n_reused: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """When a worker counts as hung, and the engine as failed.

    `start_s`, `answer_s`: how long a worker may take to load, and for a window or a pass. The
    engine fails after `deaths` workers lost within `windows` windows. A worker that takes more
    memory than `most_bytes` is lost, too.
    """

    start_s: float = 30.0
    answer_s: float = 20.0
    deaths: int = 3
    windows: int = 50
    most_bytes: float = math.inf


class CoreMLEngine:
    """A built model on Core ML; an `Engine` (streamd/engines/__init__.py).

    It has one worker at a time, which is started when it is first needed, and ends with it.
    `n_windows` is how many windows were encoded; `limits` can be changed at any time.
    """

    def __init__(self, job: Job, limits: WorkerLimits) -> None:
        """Workers load all functions that the placement of the `job` needs."""
        self.dims, self.n_windows = job.built.meta.dims, 0
        self.n_cheap = _N_CHEAP
        self.cache_slots = CacheSlots(padded(self.dims.n_text_ctx))
        self.limits = limits
        self._job = replace(job, functions=needed(job.built, job.placement))
        self._lock = threading.RLock()
        self._worker: Worker | None = None
        self._deaths: list[int] = []

    @property
    def placement(self) -> Placement:
        """Where the model runs."""
        return self._job.placement

    def close(self) -> None:
        """End the worker; the engine cannot be used any more."""
        if self._worker is not None:
            self._worker.close()

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        previous: CoreMLFeatures | None = None,
        n_reused: int = 0,
    ) -> CoreMLFeatures:
        """Encode log-mel as `Engine.encode` says. Raises `EngineError` if Core ML failed often.

        The functions have fixed shapes: more positions may be computed than have to be.
        """
        before = ref(previous) if previous is not None else None
        extended = self._job.built.extend(mel, audio_ctx)
        features = CoreMLFeatures(self, *extended, previous=before, n_reused=n_reused)
        with self._lock:
            self.n_windows += 1
            self.with_worker(lambda worker: self.cache_slots.take(worker, features))
        return features

    def decoder(self, features: CoreMLFeatures, n_slots: int) -> "CoreMLDecoder":
        """Return a decoder for these features with an empty pool of `n_slots` slots."""
        return CoreMLDecoder(self.dims, features, n_slots)

    def with_worker(self, attempt: Callable[[Worker], ResultT]) -> ResultT:
        """Call `attempt`, again if its worker is lost. Raises `EngineError` if too many are."""
        with self._lock:
            while True:
                try:
                    if self._worker is None:
                        worker = Worker(self._job)
                        worker.most_bytes = self.limits.most_bytes
                        worker.wait(self.limits.start_s)
                        self._worker = worker
                    self._worker.answer_s = self.limits.answer_s
                    self._worker.most_bytes = self.limits.most_bytes
                    return attempt(self._worker)
                except WorkerLostError as error:
                    self.lost(error)

    def lost(self, error: WorkerLostError) -> None:
        """Record a lost worker, which will be replaced. Raises `EngineError` if too many were."""
        self._worker = None
        since = self.n_windows - self.limits.windows
        self._deaths = [*(window for window in self._deaths if window > since), self.n_windows]
        if len(self._deaths) < self.limits.deaths:
            log.warning("Core ML, %s: the worker %s; starting another", self.placement, error)
            return
        raise EngineError(
            f"Core ML failed, {self.placement}: the worker {error}; use --compute cpu"
        ) from error


class CacheSlots:
    """Which windows the current worker has, and which tokens are in the columns of its caches.

    Each token that a decoder runs has a number. A column holds its keys and values until another
    token is written there, in whatever window: so the decoder of the next one finds them. Any
    thread may call all but `take`, which is for the one that has the worker.
    """

    def __init__(self, n_columns: int) -> None:
        self._n_columns, self._n_run = n_columns, 0
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        # By the slot's number; the most recently used window is last.
        self._windows: dict[int, ref[CoreMLFeatures]] = {}
        self._columns: dict[int, _Indices] = {}
        self._decoders: WeakSet[CoreMLDecoder] = WeakSet()

    def add(self, decoder: "CoreMLDecoder") -> None:
        """Take note of a new decoder, whose columns are spared as long as there is one."""
        with self._lock:
            self._decoders.add(decoder)

    def wanted(self) -> _Indices:
        """Return the numbers of all tokens that a decoder may want to see, in any order."""
        with self._lock:
            return np.concatenate([_NONE, *(decoder.runs for decoder in self._decoders)])

    def number(self, k: int) -> _Indices:
        """Return new numbers for `k` tokens that are run."""
        with self._lock:
            self._n_run += k
            return np.arange(self._n_run - k, self._n_run) + 1

    def take(self, worker: Worker, window: CoreMLFeatures) -> tuple[int, _Indices]:
        """Return the cache slot of this window, which is encoded now if the worker lacks it.

        Besides it returns the numbers of the tokens in each column of that cache, for a decoder to
        change when it writes others there. Raises `WorkerLostError` if the worker is lost
        meanwhile.
        """
        if self._worker is not worker:  # a new worker has nothing
            self._worker, self._windows, self._columns = worker, {}, {}
        held = {number: each() for number, each in self._windows.items()}
        number = next((n for n, each in held.items() if each is window), None)
        if number is None:
            before, n_known = window.previous() if window.previous else None, 0
            if before is not None:
                number = next((n for n, each in held.items() if each is before), None)
                n_known = 0 if number is None else window.n_reused
            # The lowest free one, since a worker makes caches for a slot when it is first used; or
            # else the least recently used.
            free = (n for n in range(_N_CACHE_SLOTS) if held.get(n) is None)
            if number is None:
                number = next(free, next(iter(held), 0))
            # The window is entered after it is encoded: if that fails, the slot holds no window.
            self._windows.pop(number, None)
            worker.encode(number, window.mel, window.extent, n_known)
        self._windows.pop(number, None)
        self._windows[number] = ref(window)
        empty = np.full(self._n_columns, _EMPTY, np.int64)
        return number, self._columns.setdefault(number, empty)


class CoreMLDecoder:
    """A `Decoder` (streamd/whisper/engine.py): any number of slots on a cache of fixed size.

    A slot of the search is kept in a column of the worker's cache. If the column was lost, because
    the worker was replaced or other tokens needed it, it is computed again when a query wants to
    see the slot: from its token, its position and what it saw, which are all remembered here.
    `runs` are the numbers that `CacheSlots` gave what the slots hold.
    """

    def __init__(self, dims: ModelDimensions, window: CoreMLFeatures, n_slots: int) -> None:
        self.n_vocab, self.n_text_ctx = dims.n_vocab, dims.n_text_ctx
        self.n_slots = n_slots
        self._window = window
        self._n_columns = padded(dims.n_text_ctx)
        self._tokens = np.zeros(n_slots, np.int64)
        self._positions = np.zeros(n_slots, np.int64)
        self._seen = np.zeros((n_slots, n_slots), np.bool_)
        self.runs = np.full(n_slots, _NO_RUN)
        window.engine.cache_slots.add(self)

    def step(
        self,
        tokens: _Indices,
        positions: _Indices,
        slots: _Indices,
        visible: NDArray[np.bool_],
        want: _Indices,
        among: _Indices | None = None,
    ) -> tuple[Logits, Alignment]:
        """Run k tokens as the protocol says, in passes. Raises `EngineError` as `encode` does."""
        engine, extent = self._window.engine, self._window.extent
        self._tokens[slots], self._positions[slots] = tokens, positions
        self._seen[slots], self.runs[slots] = visible, engine.cache_slots.number(len(slots))
        n_keys = extent.n + len(kept_positions(engine.dims.n_audio_ctx)) - extent.first

        def attempt(worker: Worker) -> tuple[Logits, Alignment]:
            cache = engine.cache_slots.take(worker, self._window)
            run: RunStep = partial(worker.step, n_keys=n_keys)
            return self._step(slots, want, cache=cache, run=run)

        logits, alignment = engine.with_worker(attempt)
        return (logits if among is None else logits[:, among]), alignment

    def adopt(self, before: Decoder, n: int) -> bool:
        """Take the first `n` slots of another window's decoder.

        Their columns are found again if this window took over the cache slot of that one.
        """
        if not isinstance(before, CoreMLDecoder):
            return False
        if before._window.engine is not self._window.engine:
            return False
        for mine, other in (
            (self._tokens, before._tokens),
            (self._positions, before._positions),
            (self.runs, before.runs),
            (self._seen[:, :n], before._seen[:, :n]),
        ):
            mine[:n] = other[:n]
        return True

    def _step(
        self, slots: _Indices, want: _Indices, *, cache: tuple[int, _Indices], run: RunStep
    ) -> tuple[Logits, Alignment]:
        logits = np.empty((len(want), self.n_vocab), np.float32)
        alignments = []
        first = 0
        while first < len(slots):
            part = slots[first : first + self._n_fitting(slots[first:])]
            wanted = np.flatnonzero((want >= first) & (want < first + len(part)))
            # The passes before the last one only bring back lost columns.
            for step in self._passes(part, want[wanted] - first, cache):
                found, alignment = run(step)
            logits[wanted] = found
            alignments.append(alignment)
            first += len(part)
        return logits, np.concatenate(alignments)

    def _n_fitting(self, slots: _Indices) -> int:
        """Return how many of these queries fit into a pass, so that the cache holds what they see.

        One always fits: no query sees more slots than the text context has tokens.
        """
        seen = np.zeros(self.n_slots, np.bool_)
        for n, slot in enumerate(slots[:MAX_TOKENS]):
            seen |= self._seen[slot]
            if seen.sum() > self._n_columns and n:
                return n
        return min(len(slots), MAX_TOKENS)

    def _passes(
        self, slots: _Indices, want: _Indices, cache: tuple[int, _Indices]
    ) -> Iterator[Step]:
        """Yield passes that bring back lost columns these slots see, then the pass of the slots."""
        seen = np.asarray(self._seen[slots].any(axis=0), np.bool_)
        before = seen.copy()
        before[slots] = False
        lost = np.flatnonzero(before & (self._columns(cache[1]) == _NOT_CACHED))
        # A token sees only earlier positions, so in this order each pass finds what it needs.
        lost = lost[np.argsort(self._positions[lost], kind="stable")]
        for first in range(0, len(lost), MAX_TOKENS):
            yield self._pass(lost[first : first + MAX_TOKENS], _NONE, cache, keep=seen)
        yield self._pass(slots, want, cache, keep=seen)

    def _pass(
        self,
        slots: _Indices,
        want: _Indices,
        cache: tuple[int, _Indices],
        *,
        keep: NDArray[np.bool_],
    ) -> Step:
        # Each slot gets a free column, the lowest, because functions for a short cache are faster;
        # but the next window may want what another decoder has. If there are too few, slots that
        # are not in `keep` lose theirs.
        number, held = cache
        new = slots[self._columns(held)[slots] == _NOT_CACHED]
        free = np.flatnonzero(~np.isin(held, self.runs))
        if len(free) < len(new):
            free = np.flatnonzero(~np.isin(held, self.runs[keep]))
        is_wanted = np.isin(held[free], self._window.engine.cache_slots.wanted())
        free = free[np.argsort(is_wanted, kind="stable")]
        held[free[: len(new)]] = self.runs[new]
        columns = self._columns(held)
        visible = np.zeros((len(slots), self._n_columns), np.bool_)
        for row, slot in zip(visible, slots, strict=True):
            row[columns[self._seen[slot]]] = True
        return Step(
            cache_slot=number,
            tokens=self._tokens[slots],
            positions=self._positions[slots],
            columns=columns[slots],
            visible=visible,
            want=want,
        )

    def _columns(self, held: _Indices) -> _Indices:
        """Return the column that holds each slot, or `_NOT_CACHED`, (n_slots,)."""
        order = np.argsort(held)
        places = np.searchsorted(held, self.runs, sorter=order)
        columns = order[np.minimum(places, len(held) - 1)]
        return np.where(held[columns] == self.runs, columns, _NOT_CACHED)
