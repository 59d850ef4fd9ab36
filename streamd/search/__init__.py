"""From logits to words: what turns a decoder into a transcript.

The decoder's key/value cache is a pool of *slots*: a hypothesis is a path of slots, and `visible`
says which slots each query of a pass may attend to. Greedy is one query at a time, draft
verification a chain of queries, beam search one query per beam on a shared tree, prompt prefill one
pass. No cache is ever copied or reordered, and every backend shares every line of the search.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""(k, n_vocab)."""
Alignment = NDArray[np.float32]
"""(k, n_heads, n_ctx): raw scaled query-key scores of the alignment heads, before the softmax."""


class Decoder(Protocol):
    """A model's decoder, bound to the features of one window.

    A new decoder has no live slots. It is used by one search, from one thread, then dropped.
    """

    n_vocab: int
    n_text_ctx: int
    n_slots: int
    """How many slots the pool has; slot numbers are 0..n_slots-1."""

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
        slots : (k,) distinct free slots into which this pass writes keys and values
        visible : (k, n_slots), True where a query attends; includes the query's own slot, and the
            slots of earlier queries of the same pass where it continues them
        want : (m,) which of the k rows to project to logits (the vocabulary is the dear part)

        Returns
        -------
        logits (m, n_vocab) float32 in the order of `want`, alignment (k, n_heads, n_ctx) float32;
        both are the caller's to keep
        """
        ...
