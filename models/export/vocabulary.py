"""Give a model with a part of Whisper's vocabulary the whole of it, as all other programs expect.

Each token goes to the row of its own bytes, the special tokens follow in OpenAI's order. Rows that
the model does not know are the mean of its language tokens, which an English-only training never
shows: they lose against every token that was ever right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions, Weights
from streamd.engine.model import Model
from streamd.engine.vocabulary import openai_vocabulary

EMBEDDING = "decoder.token_embedding.weight"
N_LANGUAGES = 99


@dataclass(frozen=True)
class Whole:
    """A model with OpenAI's token ids. ``tokens[i]`` are the bytes of text token i."""

    dims: ModelDimensions
    weights: Weights
    tokens: list[bytes]
    alignment_heads: tuple[tuple[int, int], ...]

    @property
    def multilingual(self) -> bool:
        """Whether the specials include ``<|transcribe|>`` for several languages."""
        return self.dims.n_vocab >= 51_865


def openai_tokens(*, multilingual: bool) -> list[bytes]:
    """OpenAI's text tokens in the order of their ids."""
    return list(openai_vocabulary(Path("export"), 51_865 if multilingual else 51_864))


def complete(model: Model) -> Whole:
    """Spread the model's token rows over OpenAI's ids.

    Raises
    ------
    ValueError
        The model has text tokens that OpenAI's vocabulary lacks.
    """
    tokens = openai_tokens(multilingual=model.language is None)
    ids = {token: i for i, token in enumerate(tokens)}
    unknown = [token for token in model.vocabulary if token not in ids]
    if unknown:
        raise ValueError(f"{len(unknown)} tokens are not OpenAI's, such as {unknown[0]!r}")
    rows = model.weights[EMBEDDING]
    n_text = len(model.vocabulary)
    never = rows[n_text + 2 : n_text + 2 + N_LANGUAGES].mean(axis=0)
    n_specials = len(rows) - n_text
    whole = np.tile(never, (len(tokens) + n_specials, 1)).astype(np.float32)
    for token, own in model.vocabulary.items():
        whole[ids[token]] = rows[own]
    whole[len(tokens) :] = rows[n_text:]
    dims = replace(model.dims, n_vocab=len(whole))
    return Whole(dims, {**model.weights, EMBEDDING: whole}, tokens, model.alignment_heads)


def half(array: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round to float16, the precision in which the peers' files are shipped."""
    return np.ascontiguousarray(array, dtype=np.float16)
