"""A model as it lies on disk, and what is known of Whisper models whose files do not say it.

Sources: openai/whisper ``__init__.py`` and ``model.py``.
"""

import re
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
_LARGE = "large"
_NAMES = {
    **{
        (n_layer, n_layer, 64 * n_head, n_head, n_vocab, 80): f"{size}{ending}"
        for size, n_layer, n_head in (
            ("tiny", 4, 6),
            ("base", 6, 8),
            ("small", 12, 12),
            ("medium", 24, 16),
        )
        for ending, n_vocab in ((".en", 51_864), ("", 51_865))
    },
    (32, 32, 1280, 20, 51_865, 80): _LARGE,
    (32, 32, 1280, 20, 51_866, 128): "large-v3",
    (32, 4, 1280, 20, 51_866, 128): "large-v3-turbo",
}
"""Layers of the encoder and the decoder, the decoder's width and heads, vocabulary, mel bands."""


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


def heads(listed: Iterable[tuple[int, int]] | None, path: Path, dims: ModelDimensions) -> Heads:
    """The alignment heads that the model's files list, or else the `usual_heads`.

    Distilled models may come with the list of their teacher, whose decoder was deeper. A list of
    the whole upper half of the decoder is what converters write that know none.
    """
    pairs = tuple(sorted(set(listed or ())))
    known = pairs and have_heads(dims, pairs) and pairs != _upper_half(dims)
    return pairs if known else usual_heads(path, dims)


def usual_heads(path: Path, dims: ModelDimensions) -> Heads:
    """The alignment heads of a model whose files name none.

    Those of OpenAI's model of the same dimensions, of which a fine-tune keeps them; else, as
    openai-whisper does it, all heads in the upper half of the decoder. large-v1 and large-v2 differ
    in nothing but their weights: there the name of `path` decides.
    """
    name = _official_name(path, dims)
    if name in _OFFICIAL_HEADS:
        pairs = (pair.split(".") for pair in _OFFICIAL_HEADS[name].split())
        return tuple((int(layer), int(head)) for layer, head in pairs)
    return _upper_half(dims)


def _upper_half(dims: ModelDimensions) -> Heads:
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))


def _official_name(path: Path, dims: ModelDimensions) -> str | None:
    """The model of OpenAI's that has these dimensions."""
    layers = (dims.n_audio_layer, dims.n_text_layer)
    name = _NAMES.get((*layers, dims.n_text_state, dims.n_text_head, dims.n_vocab, dims.n_mels))
    if name != _LARGE:
        return name
    version = re.search(r"large-(v[12])(?![0-9])", path.name)
    return f"{_LARGE}-{version[1]}" if version else None


def below(end: int, tokens: Iterable[int] | None) -> tuple[int, ...] | None:
    """The tokens below `end`, sorted; None if there is no list of them."""
    return None if tokens is None else tuple(sorted(token for token in tokens if 0 <= token < end))
