"""The decoder of one window on Core ML: any number of slots on a cache of fixed size.

A slot of the search lies in a place of the worker's cache. What is not there any more, because the
worker is another one or because other slots needed the place, is computed again when a query wants
to see it: from a slot's token, its position and what it saw, all of which are remembered here. So a
worker that dies in the middle of a window costs time, and no slot that the search can name is one
too many.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions
from streamd.engine.coreml.package import padded
from streamd.engine.coreml.runtime.messages import Step
from streamd.engine.coreml.runtime.passes import MOST
from streamd.search import Alignment, Logits

Pass = Callable[[Step], tuple[Logits, Alignment]]

_NOWHERE = -1
_Indices = NDArray[np.int64]
_NONE: _Indices = np.zeros(0, np.int64)


class Window(Protocol):
    """The window that is decoded, as some worker has it."""

    def decode(
        self, decoder: "CoreMLDecoder", attempt: Callable[[int, Pass], tuple[Logits, Alignment]]
    ) -> tuple[Logits, Alignment]:
        """Call `attempt` with the window's seat in a worker, and what runs passes there.

        That is done again with another worker, should this one be lost. The decoder is told to
        `forget` what is in the cache if that is not, or no longer, its own.
        """
        ...


class CoreMLDecoder:
    """A `Decoder` (streamd/search/__init__.py) on Core ML."""

    def __init__(self, dims: ModelDimensions, window: Window, n_slots: int) -> None:
        self.n_vocab, self.n_text_ctx = dims.n_vocab, dims.n_text_ctx
        self.n_slots = n_slots
        self._window = window
        self._n_places = padded(dims.n_text_ctx)
        self._tokens = np.zeros(n_slots, np.int64)
        self._positions = np.zeros(n_slots, np.int64)
        self._seen = np.zeros((n_slots, n_slots), np.bool_)
        self._place = np.full(n_slots, _NOWHERE)

    def step(
        self,
        tokens: _Indices,
        positions: _Indices,
        slots: _Indices,
        visible: NDArray[np.bool_],
        want: _Indices,
    ) -> tuple[Logits, Alignment]:
        """Run k tokens, in passes of what Core ML takes at once, as the protocol says.

        Raises
        ------
        EngineError
            Core ML failed again and again.
        """
        self._tokens[slots], self._positions[slots] = tokens, positions
        self._seen[slots] = visible
        return self._window.decode(
            self, lambda seat, run: self._step(slots, want, seat=seat, run=run)
        )

    def forget(self) -> None:
        """The cache holds nothing of this decoder's any more."""
        self._place[:] = _NOWHERE

    def _step(
        self, slots: _Indices, want: _Indices, *, seat: int, run: Pass
    ) -> tuple[Logits, Alignment]:
        logits = np.empty((len(want), self.n_vocab), np.float32)
        alignments = []
        first = 0
        while first < len(slots):
            part = slots[first : first + self._n_fitting(slots[first:])]
            wanted = np.flatnonzero((want >= first) & (want < first + len(part)))
            passes = self._passes(part, want[wanted] - first, seat)
            for step in passes:
                found, alignment = run(step)
            logits[wanted] = found
            alignments.append(alignment)
            first += len(part)
        return logits, np.concatenate(alignments)

    def _n_fitting(self, slots: _Indices) -> int:
        """How many of these queries, from the first on, make a pass: the cache holds what they see.

        One always does: no query sees more slots than the text context has tokens.
        """
        seen = np.zeros(self.n_slots, np.bool_)
        for n, slot in enumerate(slots[:MOST]):
            seen |= self._seen[slot]
            if seen.sum() > self._n_places and n:
                return n
        return min(len(slots), MOST)

    def _passes(self, slots: _Indices, want: _Indices, seat: int) -> Iterator[Step]:
        """The pass for these slots, and before it those that bring back what they see."""
        seen = np.asarray(self._seen[slots].any(axis=0), np.bool_)
        before = seen.copy()
        before[slots] = False
        lost = np.flatnonzero(before & (self._place == _NOWHERE))
        lost = lost[np.argsort(self._positions[lost], kind="stable")]
        for first in range(0, len(lost), MOST):
            yield self._pass(lost[first : first + MOST], _NONE, seat, keep=seen)
        yield self._pass(slots, want, seat, keep=seen)

    def _pass(self, slots: _Indices, want: _Indices, seat: int, *, keep: NDArray[np.bool_]) -> Step:
        self._settle(slots, keep)
        visible = np.zeros((len(slots), self._n_places), np.bool_)
        for row, slot in zip(visible, slots, strict=True):
            row[self._place[self._seen[slot]]] = True
        return Step(
            seat=seat,
            tokens=self._tokens[slots],
            positions=self._positions[slots],
            places=self._place[slots],
            visible=visible,
            want=want,
        )

    def _settle(self, slots: _Indices, keep: NDArray[np.bool_]) -> None:
        """Give each slot one of the first free places; slots not in `keep` may lose theirs.

        Low places are worth having: there are functions for a short cache, too.
        """
        homeless = slots[self._place[slots] == _NOWHERE]
        free = np.setdiff1d(np.arange(self._n_places), self._place)
        if len(free) < len(homeless):
            self._place[~keep] = _NOWHERE
            free = np.setdiff1d(np.arange(self._n_places), self._place)
        self._place[homeless] = free[: len(homeless)]
