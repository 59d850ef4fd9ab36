"""A model as its files describe it, and facts about Whisper models that files leave out.

Sources: openai/whisper ``__init__.py`` and ``model.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from streamd.engine import ModelDimensions, Weights
from streamd.engine.padding import Bank
from streamd.errors import ModelError

Heads = tuple[tuple[int, int], ...]
"""(decoder layer, head) pairs, sorted."""

N_SPECIALS = (1608, 1609)
"""Number of special tokens: 8, 99 or (large-v3) 100 languages, 1501 timestamps."""

_FIRST_MULTILINGUAL = 51_865
"""Size of the smallest multilingual vocabulary; OpenAI's English-only one has a token less."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as loaded from its files.

    `vocabulary` maps a token's bytes to its id (tiktoken's ranks), without the special tokens.
    `language` is the only language of a model without language tokens, else None. `bank` are the
    encoder's states of silence, if they are known. The decoder must never write `suppress_tokens`
    and not begin with `begin_suppress_tokens`; None stands for openai-whisper's choice:
    annotations, and a blank or the end.
    """

    name: str
    dims: ModelDimensions
    weights: Weights
    vocabulary: Mapping[bytes, int]
    alignment_heads: Heads
    language: str | None
    bank: Bank | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """What a model's files tell without its weights; `language` as in `Model`."""

    dims: ModelDimensions
    language: str | None


def check_dimensions(path: Path, dims: ModelDimensions, *, usual: bool = True) -> None:
    """Raise `ModelError` unless a Whisper of these dimensions can exist and fit into memory.

    `path` is the file that has them; `usual` whether all else that it says suits Whisper.
    """
    possible = (
        all(0 < n <= 1_000_000 for n in astuple(dims))
        and max(dims.n_audio_layer, dims.n_text_layer) <= 1000
        and dims.n_audio_state == dims.n_text_state
        and dims.n_audio_state % dims.n_audio_head == 0
        and dims.n_text_state % dims.n_text_head == 0
    )
    if not (possible and usual):
        raise ModelError(f"{path}: describes no Whisper model; get the model's files again")


def have_heads(dims: ModelDimensions, heads: Iterable[tuple[int, int]]) -> bool:
    """Return whether the decoder has all of these (layer, head) pairs."""
    return all(
        0 <= layer < dims.n_text_layer and 0 <= head < dims.n_text_head for layer, head in heads
    )


def only_language(dims: ModelDimensions) -> str | None:
    """Return "en" if the vocabulary is too small for language tokens, else None."""
    return "en" if dims.n_vocab < _FIRST_MULTILINGUAL else None


def below(end: int, tokens: Iterable[int] | None) -> tuple[int, ...] | None:
    """Return the tokens below `end`, sorted, or None if there is no list of tokens."""
    return None if tokens is None else tuple(sorted(token for token in tokens if 0 <= token < end))
