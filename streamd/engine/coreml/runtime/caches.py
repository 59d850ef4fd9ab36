"""The caches of one window's decoder, in Core ML's memory or in ours.

A *seat* is room for one window's caches. It is used for one window after the other: what lies in it
from before is masked, so it need not be cleared, but it must be numbers.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.package import MASKED, Form, Function, Meta
from streamd.engine.coreml.runtime.library import Array, State


class Seat:
    """Caches of keys and values of one window."""

    def __init__(self, meta: Meta, form: Form, make_state: Callable[[], State]) -> None:
        """`make_state`: of the decoder's package; not called where it has no states."""
        self.n_ctx = 0
        self._cross_mask = np.full((1, 1, 1, meta.n_keys), MASKED, np.float32)
        self._form = form
        self.state: State = None if form == "io" else make_state()
        text = (meta.dims.n_text_layer, meta.dims.n_text_head, meta.d_head)
        self._cross = {} if form == "state" else _pair("cross", (*text, meta.n_keys))
        self._own = {
            n_slots: _pair("self", (*text, n_slots))
            for n_slots in (() if form == "state" else meta.slots(form))
        }

    def take(self, n_ctx: int, run: Callable[[State], Mapping[str, Array]]) -> None:
        """Make it the seat of a window of `n_ctx` positions.

        `run` makes keys and values of what was encoded: it runs "load", which writes them into the
        state, or "cross", which returns them and has no state.
        """
        self.n_ctx = n_ctx
        self._cross_mask[...] = MASKED
        self._cross_mask[..., :n_ctx] = 0
        if self._form == "state":
            run(self.state)
            return
        for name, found in run(None).items():
            cache = self._cross[name]
            cache[..., : found.shape[-1]] = found
            if self._form == "mix":
                self.state.write_state(name, cache)

    def inputs(self, function: Function) -> Mapping[str, Array]:
        """The caches that go into a "step" or "align"."""
        given = {"cross_mask": self._cross_mask}
        if self._own:
            given |= self._own[function.n_slots]
        return given | self._cross if self._form == "io" else given

    def keep(self, found: Mapping[str, Array], places: NDArray[np.int64]) -> None:
        """Write a pass's new columns where the graph has not done it itself."""
        k = len(places)
        for n_slots, own in self._own.items():
            short = places < n_slots
            for part in "kv":
                new = found[f"new_{part}"][..., :k]
                own[f"self_{part}"][..., places[short]] = new[..., short]


def _pair(which: str, shape: tuple[int, ...]) -> dict[str, Array]:
    return {f"{which}_{part}": np.zeros(shape, np.float32) for part in "kv"}
