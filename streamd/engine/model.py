"""A model as it lies on disk, and what is known of Whisper models whose files do not say it.

Sources: openai/whisper ``__init__.py`` and ``model.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

from streamd.engine import ModelDimensions, Weights

Heads = tuple[tuple[int, int], ...]
"""(decoder layer, head) pairs, sorted."""

N_SPECIALS = (1608, 1609)
"""Special tokens behind the text tokens: 8, 99 or (large-v3) 100 languages, 1501 timestamps."""
MIN_AUDIO_CTX = 384
"""Below that, OpenAI's models fall apart."""

_FIRST_MULTILINGUAL = 51_865
"""Tokens of the smallest vocabulary with languages; OpenAI's English-only models have one less."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model before any runtime has seen it.

    `vocabulary` maps a token's bytes to its id (tiktoken's ranks), without the special tokens.
    `alignment_heads` are (decoder layer, head) pairs. `language` is the only language of a model
    without language tokens, else None.
    `min_audio_ctx` is the shortest encoder context, in frames, on which the model is usable.
    `suppress_tokens` are never to be written, `begin_suppress_tokens` not first; None: the usual,
    annotations, and a blank or the end.
    """

    name: str
    dims: ModelDimensions
    weights: Weights
    vocabulary: Mapping[bytes, int]
    alignment_heads: Heads
    language: str | None
    min_audio_ctx: int = MIN_AUDIO_CTX
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """What a model is, as far as it shows without reading its weights.

    `language` is the only language of a model without language tokens, else None.
    """

    dims: ModelDimensions
    language: str | None


def is_whisper(dims: ModelDimensions) -> bool:
    """Whether there can be a Whisper of these dimensions, and one that a machine can hold."""
    return (
        all(0 < n <= 1_000_000 for n in astuple(dims))
        and max(dims.n_audio_layer, dims.n_text_layer) <= 1000
        and dims.n_audio_state == dims.n_text_state
        and dims.n_audio_state % dims.n_audio_head == 0
        and dims.n_text_state % dims.n_text_head == 0
    )


def have_heads(dims: ModelDimensions, heads: Iterable[tuple[int, int]]) -> bool:
    """Whether the decoder has all of these (layer, head) pairs."""
    return all(
        0 <= layer < dims.n_text_layer and 0 <= head < dims.n_text_head for layer, head in heads
    )


def only_language(dims: ModelDimensions) -> str | None:
    """English for the sizes of vocabulary that OpenAI's English-only models have, else None."""
    return "en" if dims.n_vocab < _FIRST_MULTILINGUAL else None


def below(end: int, tokens: Iterable[int] | None) -> tuple[int, ...] | None:
    """The tokens below `end`, sorted; None if there is no list of them."""
    return None if tokens is None else tuple(sorted(token for token in tokens if 0 <= token < end))
