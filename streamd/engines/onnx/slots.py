"""The cache slots of a decoder's graph.

The graph reads and writes the slots in place, in memory that a `Pool` owns. It writes the keys and
values of a pass into consecutive slots and reads none after them, which is what greedy search and
draft verification need. Any other pass is written after all slots that were ever used, and then
moved to its own slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import IOBinding, OrtValue

from streamd.models import ModelDimensions
from streamd.system.pages import zeros

_POOL_STEP = 512
"""The memory grows by this many slots, of which only those in use take any: one step for a whole
text. While it grows it is there twice: with sixteen windows of large-v3-turbo, 0.2 GB more."""
LEAST_ROWS = 2
"""A single token is run as two rows, of which the second is ignored.

ONNX Runtime multiplies a single row in another order than several rows, and rounding to int8
enlarges the difference in the last bit. With two rows, a token's logits are bit for bit those of a
pass of many tokens, so a verified draft is the text that decoding step by step would have given.
"""


def no_slots(dims: ModelDimensions, n_windows: int) -> NDArray[np.float32]:
    """Return an empty array of slots, as `Pool.array`, for several windows."""
    d_head = dims.n_text_state // dims.n_text_head
    shape = (dims.n_text_layer, 2, n_windows, dims.n_text_head, 0, d_head)
    return np.zeros(shape, np.float32)


def bind_pool(io: IOBinding, pool: NDArray[np.float32]) -> None:
    """Have a decoder's graph read and write these slots."""
    for layer, (keys, values) in enumerate(pool):
        for kind, array in (("key", keys), ("value", values)):
            bind_in_place(io, f"{kind}_{layer}", array)


def bind_in_place(io: IOBinding, name: str, array: NDArray[Any]) -> None:
    """Have a graph read and write an array, its input `name`, where it is."""
    shared = OrtValue.ortvalue_from_numpy(array)  # shares our memory
    io.bind_ortvalue_input(name, shared)
    io.bind_ortvalue_output(f"new_{name}", shared)


class Pool:
    """Keys and values of cache slots, `array` (n_text_layer, 2, 1, n_head, n_slots, d_head).

    It becomes larger where that is needed, unless whoever gave it has made room before.
    """

    def __init__(self, array: NDArray[np.float32]) -> None:
        self.array = array
        self._n_used = 0

    def n_used_with(self, slots: NDArray[np.int64]) -> int:
        """Return the end of the slots in use once these are; a pass may be written after it."""
        return max(self._n_used, int(slots.max()) + 1)

    def place(self, slots: NDArray[np.int64], visible: NDArray[np.bool_], rows: int) -> "Place":
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
        return Place(slots, first, rows, in_place, inputs, overwritten)

    def settle(self, place: "Place") -> None:
        """Move the keys and values of a pass to their slots."""
        k, first = len(place.slots), place.first
        self.array[..., first + k : first + place.rows, :] = place.overwritten
        if not place.in_place:
            self.array[..., place.slots, :] = self.array[..., first : first + k, :]

    def adopt(self, before: "Pool", n: int) -> None:
        """Take the first `n` slots of another one."""
        self._make_room(n)
        self.array[..., :n, :] = before.array[..., :n, :]
        self._n_used = n

    def _make_room(self, n_slots: int) -> None:
        if n_slots > self.array.shape[-2]:
            self.move_to(larger(self.array, n_slots))

    def move_to(self, array: NDArray[np.float32]) -> None:
        """Move to a larger array of zeros; only the slots in use are copied."""
        array[..., : self._n_used, :] = self.array[..., : self._n_used, :]
        self.array = array


def larger(pool: NDArray[np.float32], n_slots: int) -> NDArray[np.float32]:
    """Return zeros in the shape of `pool`, with at least `n_slots` slots."""
    *outer, _, d_head = pool.shape
    shape = (*outer, -(-n_slots // _POOL_STEP) * _POOL_STEP, d_head)
    return zeros(shape, np.dtype(np.float32))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pass is in the pool: from slot `first` on, `rows` of them, the graph writes.

    These are `slots` if it is `in_place`. `overwritten` is what was there behind the pass.
    """

    slots: NDArray[np.int64]
    first: int
    rows: int
    in_place: bool
    inputs: Mapping[str, NDArray[Any]]
    overwritten: NDArray[np.float32]
