"""From logits to words: everything that turns a decoder into a transcript.

The decoder's key/value cache is a pool of *slots*: a hypothesis is a path of slots, and `visible`
says which slots each query of a pass attends to. Greedy search is one query at a time, a draft is
verified by a chain of queries, beam search is one query per beam on a shared tree, and a prompt is
one pass. No cache is copied or reordered, and all backends share the whole search.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""(k, n_vocab)."""
Alignment = NDArray[np.float32]
"""(k, n_heads, n_ctx): raw scaled query-key scores of the alignment heads, before the softmax."""


class Decoder(Protocol):
    """A model's decoder with the features of one window; for one search, from one thread."""

    n_vocab: int
    n_text_ctx: int
    n_slots: int
    """Slots in the pool, 0..n_slots-1; all of them are free at first."""

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
    ) -> tuple[Logits, Alignment]:
        """Run k tokens through the decoder in one pass.

        Parameters
        ----------
        tokens : (k,) token ids
        positions : (k,) places in the text context, 0-based
        slots : (k,) distinct free slots, into which the pass writes keys and values
        visible : (k, n_slots), True where a query attends: its past, its own slot, and the slots of
            earlier queries of the same pass that it continues
        want : (m,) which of the k rows to project to logits (the vocabulary is most of the work)

        Returns
        -------
        logits (m, n_vocab) float32 in the order of `want`, alignment (k, n_heads, n_ctx) float32;
        the caller may keep both
        """

    def adopt(self, before: "Decoder", n: int) -> bool:
        """Take the first `n` slots of another window's decoder; False if this one cannot."""
        ...


def run_in_order(
    decoder: Decoder, tokens: Sequence[int], first: int, want: Sequence[int] | None = None
) -> tuple[Logits, Alignment]:
    """Run a part of a text that begins with token `first`; each token sees all before it.

    `want` and the result are as in `Decoder.step`; None wants all.
    """
    order = np.arange(first, first + len(tokens))
    visible = np.arange(decoder.n_slots) <= order[:, None]
    rows = np.asarray(range(len(tokens)) if want is None else want, np.int64)
    return decoder.step(np.asarray(tokens, np.int64), order, order, visible, rows)
