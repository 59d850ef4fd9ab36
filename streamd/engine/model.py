"""A model as it lies on disk, and what is known of Whisper models whose files do not say it.

Sources: openai/whisper ``__init__.py`` and ``model.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from streamd.engine import ModelDimensions, Weights

Heads = tuple[tuple[int, int], ...]
"""(decoder layer, head) pairs, sorted."""

N_SPECIALS = (1608, 1609)
"""Special tokens behind the text tokens: 8, 99 or (large-v3) 100 languages, 1501 timestamps."""
MIN_AUDIO_CTX = 384
"""Below that, OpenAI's models fall apart."""

_FIRST_MULTILINGUAL = 51_865
"""Tokens of the smallest vocabulary with languages; OpenAI's English-only models have one less."""

_OFFICIAL_HEADS = {
    "tiny.en": "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    "tiny": "2.2 3.0 3.2 3.3 3.4 3.5",
    "base.en": "3.3 4.7 5.1 5.5 5.7",
    "base": "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    "small.en": "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2"
    " 11.4",
    "small": "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    "medium.en": "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3"
    " 20.9 20.14 21.12",
    "medium": "13.15 15.4 15.15 16.1 20.0 23.4",
    "large-v1": "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15",
    "large-v2": "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3"
    " 22.9 22.12 23.5 23.7 23.13 25.5 26.1 26.12 27.15",
    "large-v3": "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    "large-v3-turbo": "2.4 2.11 3.3 3.6 3.11 3.14",
}
"""Layer.head of the heads that follow the audio in OpenAI's models."""
_N_LAYERS_HEADS = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16)}
_ALSO_CALLED = {"large": "large-v3", "turbo": "large-v3-turbo"}


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


def usual_heads(path: Path, dims: ModelDimensions) -> Heads:
    """The alignment heads of a model whose files name none.

    Those of OpenAI's model that `path` is called after, if it has that model's decoder; else, as
    openai-whisper does it, all heads in the upper half of the decoder.
    """
    name = path.stem if path.is_file() else path.name
    name = name.removeprefix("ggml-").removeprefix("whisper-").partition("-q")[0]
    name = _ALSO_CALLED.get(name, name)
    layers_heads = _N_LAYERS_HEADS.get(name.partition(".")[0], (32, 20))
    if name == "large-v3-turbo":
        layers_heads = (4, 20)
    if name in _OFFICIAL_HEADS and layers_heads == (dims.n_text_layer, dims.n_text_head):
        pairs = (pair.split(".") for pair in _OFFICIAL_HEADS[name].split())
        return tuple((int(layer), int(head)) for layer, head in pairs)
    upper = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in upper for head in range(dims.n_text_head))
