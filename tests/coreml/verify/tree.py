"""Tokens that a decoder is fed in one pass, as search would: hypotheses that share a cache."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import MASKED, BuiltModel, Function
from streamd.whisper.engine import Decoder

Array = NDArray[np.float32]

_N_BEFORE = 6
"""Tokens in the cache before the pass."""
_REACH = 4
"""A token continues one of so many before it."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Tokens with their places; `seen` (n_tokens, n_slots) says who attends to which slot.

    The last `n` make the pass; those before are in the cache already.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    seen: NDArray[np.bool_]
    n: int

    @classmethod
    def grown(cls, tokens: NDArray[np.int64], *, n: int, n_slots: int) -> "Tree":
        """A chain in the cache, and behind it a tree of `n` tokens; slots in no order."""
        random, n_all = np.random.default_rng(n), _N_BEFORE + n
        slots = random.permutation(n_slots)[:n_all]
        positions = np.zeros(n_all, np.int64)
        seen = np.zeros((n_all, n_slots), np.bool_)
        for i in range(n_all):
            first = i - 1 if i <= _N_BEFORE else max(_N_BEFORE - 1, i - _REACH)
            if i:
                parent = int(random.integers(first, i))
                positions[i] = positions[parent] + 1
                seen[i] = seen[parent]
            seen[i, slots[i]] = True
        return cls(np.resize(tokens, n_all), positions, slots, seen, n)

    @property
    def before(self) -> slice:
        """Those that are in the cache."""
        return slice(0, len(self.tokens) - self.n)

    @property
    def passed(self) -> slice:
        """Those of the pass."""
        return slice(len(self.tokens) - self.n, None)

    def feed(self, decoder: Decoder, part: slice) -> tuple[Array, Array]:
        """Run a part through a decoder: logits and alignment of each token."""
        tokens, positions = self.tokens[part], self.positions[part]
        every = np.arange(len(tokens))
        return decoder.step(tokens, positions, self.slots[part], self.seen[part], every)

    def inputs(self, function: Function, built: BuiltModel) -> dict[str, Array]:
        """What a "step" or "align" gets, but caches: its mask, its tokens and where they go."""
        shapes = {tensor.name: tensor.shape for tensor in function.inputs}
        inputs = {"mask": np.full(shapes["mask"], MASKED, np.float32)}
        mask, slots, seen = inputs["mask"][0, 0], self.slots[self.passed], self.seen[self.passed]
        mask[self.n :, : function.n_slots] = 0
        inputs["x"] = np.empty(shapes["x"], np.float32)
        x = built.embedding[self.tokens].astype(np.float32) + built.positions[self.positions]
        inputs["x"][0, :, 0, : self.n] = x[self.passed].T
        inputs["x"][0, :, 0, self.n :] = x[self.passed][:1].T
        if "put" in shapes:
            inputs["put"] = np.zeros(shapes["put"], np.float32)
            inputs["put"][0, 0, np.arange(self.n), slots] = 1
            mask[: self.n][seen] = 0
            return inputs
        cached = seen.copy()
        cached[:, slots] = False  # these are not in the cache, but behind it
        mask[: self.n, : function.n_slots][cached] = 0
        mask[: self.n, function.n_slots :][:, : self.n][seen[:, slots]] = 0
        return inputs
