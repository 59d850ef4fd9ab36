"""A pass of the decoder as one function of a built model wants it: padded, one-hot, masked."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.package import MASKED, STEPS, Function
from streamd.engine.coreml.runtime.messages import Step

Array = NDArray[np.float32]


OF_THE_SEAT = ("cross_mask", "self_k", "self_v", "cross_k", "cross_v")
"""Inputs of a "step" or "align" that belong to a window, not to a pass."""


def new_inputs(function: Function) -> dict[str, Array]:
    """Arrays for the inputs of the function, to be filled again and again, but the seat's.

    Core ML lets go of its inputs later, in a thread of its own, without Python's lock: an array
    that nobody else holds by then takes the process down (apple/coremltools #2827). These are kept.
    """
    return {
        tensor.name: np.zeros(tensor.shape, np.float32)
        for tensor in function.inputs
        if tensor.name not in OF_THE_SEAT
    }


def choose(built: tuple[Function, ...], step: Step) -> Function:
    """The smallest function that runs the pass: few tokens, a short cache, logits if wanted.

    `built` are the "step" and "align" functions of the decoder's form.
    """
    k, n_places = len(step.tokens), reach(step)
    fitting = [
        f
        for f in built
        if f.k >= k and f.n_slots >= n_places and (f.kind == "step" or not len(step.want))
    ]
    return min(fitting, key=lambda f: (f.k, f.n_slots, f.kind == "step"))


def reach(step: Step) -> int:
    """How many places of the cache the pass reads or writes, from the first on."""
    seen = np.flatnonzero(step.visible.any(axis=0))
    return 1 + int(max(step.places.max(), seen.max(initial=0)))


def fill(inputs: Mapping[str, Array], function: Function, step: Step, x: Array) -> None:
    """Put the pass into the function's inputs; `x` is (k, n_state), embedded tokens.

    No query is without something to see: those that only fill up see what is there.
    """
    k, n_slots = len(step.tokens), function.n_slots
    inputs["x"][...] = 0
    inputs["x"][0, :, 0, :k] = x.T
    mask, visible = inputs["mask"][0, 0], step.visible[:, :n_slots]
    mask[...] = 0
    if "put" in inputs:
        put = inputs["put"][0, 0]
        put[...] = 0
        put[np.arange(k), step.places] = 1
        mask[:k] = _hide(visible)
        return
    in_cache = visible.copy()
    in_cache[:, step.places] = False  # what was there is dead; the pass brings its own
    mask[:k, :n_slots] = _hide(in_cache)
    mask[:k, n_slots : n_slots + k] = _hide(step.visible[:, step.places])
    mask[:k, n_slots + k :] = MASKED
    mask[k:, n_slots + function.k :] = MASKED  # there is nothing at all


def _hide(visible: NDArray[np.bool_]) -> Array:
    return np.where(visible, np.float32(0), np.float32(MASKED))


MOST = STEPS[-1]
"""Tokens in a pass, at most."""
