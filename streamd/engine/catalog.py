"""Facts about Whisper models: names, sizes, where they are on the hub, alignment heads.

Without ``--model``, streamd uses the first model of `CATALOG` that is on the machine. They are
sorted by accuracy, except that large-v3-turbo and distil-large-v3 come before the models that they
were made from, because they lose little and are several times as fast. Megabytes are those of
``model.safetensors`` and the small files; OpenAI's are float32 up to large-v2, float16 from
large-v3 on. Sources: the repositories' file lists and model cards on huggingface.co.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from streamd.engine import ModelDimensions
from streamd.engine.model import Heads, Outline, only_language
from streamd.errors import ConfigError
from streamd.options import ModelOptions

ENGLISH, MANY, MANY_AND_CANTONESE = 1, 99, 100
"""How many languages a model knows."""
_WITH_CANTONESE, _MANY_MELS = 51_866, 128
"""Tokens and mel bands of large-v3."""

_N_AUDIO_CTX, _N_TEXT_CTX = 1500, 448

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
"""``layer.head`` of the heads that follow the audio (openai/whisper ``__init__.py``)."""


_SIZES = {
    "tiny": (4, 384, 4),
    "base": (6, 512, 6),
    "small": (12, 768, 12),
    "medium": (24, 1024, 24),
    "large-v1": (32, 1280, 32),
    "large-v2": (32, 1280, 32),
    "large-v3": (32, 1280, 32),
    "large-v3-turbo": (32, 1280, 4),
    "distil-large-v3": (32, 1280, 2),
    "distil-large-v2": (32, 1280, 2),
    "distil-medium": (24, 1024, 2),
    "distil-small": (12, 768, 4),
}
"""Layers of the encoder, width, layers of the decoder."""


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model on the hub, in the repository ``owner/name``; about `n_bytes` are downloaded."""

    name: str
    repository: str
    n_bytes: int
    outline: Outline


def _on_hub(name: str, megabytes: int) -> CatalogModel:
    if name.startswith("acft-"):  # tuned for --audio-ctx: github.com/futo-org/whisper-acft
        repository = name.replace("acft-", "futo-org/acft-whisper-")
    elif name.startswith("distil-"):
        repository = f"distil-whisper/{name}"
    else:
        repository = f"openai/whisper-{name.removesuffix('-v1')}"
    n_audio_layer, width, n_text_layer = _SIZES[name.removeprefix("acft-").removesuffix(".en")]
    third = "large-v3" in name
    dims = ModelDimensions(
        n_mels=_MANY_MELS if third else 80,
        n_audio_ctx=_N_AUDIO_CTX,
        n_audio_state=width,
        n_audio_head=width // 64,
        n_audio_layer=n_audio_layer,
        n_vocab=_WITH_CANTONESE if third else 51_864 if name.endswith(".en") else 51_865,
        n_text_ctx=_N_TEXT_CTX,
        n_text_state=width,
        n_text_head=width // 64,
        n_text_layer=n_text_layer,
    )
    outline = Outline(dims, only_language(dims))
    return CatalogModel(name, repository, megabytes * 1_000_000, outline)


CATALOG = (
    _on_hub("large-v3-turbo", 1_621),
    _on_hub("distil-large-v3", 1_515),
    _on_hub("large-v3", 3_090),
    _on_hub("large-v2", 6_176),
    _on_hub("large-v1", 6_176),
    _on_hub("distil-large-v2", 1_515),
    _on_hub("medium.en", 3_058),
    _on_hub("medium", 3_058),
    _on_hub("distil-medium.en", 792),
    _on_hub("small.en", 969),
    _on_hub("small", 969),
    _on_hub("distil-small.en", 335),
    _on_hub("acft-small.en", 1_127),
    _on_hub("acft-small", 1_127),
    _on_hub("base.en", 293),
    _on_hub("base", 293),
    _on_hub("acft-base.en", 397),
    _on_hub("acft-base", 397),
    _on_hub("tiny.en", 153),
    _on_hub("tiny", 154),
    _on_hub("acft-tiny.en", 232),
    _on_hub("acft-tiny", 232),
)

ALSO_CALLED = {"large": "large-v3", "turbo": "large-v3-turbo"}
"""OpenAI's other names."""

_OFFERED = ("base.en", "base")


def suits(outline: Outline, wanted: ModelOptions) -> bool:
    """Return whether a model can do the task in the language; without one, English is enough."""
    multilingual = languages(outline) > ENGLISH
    if wanted.task == "translate":
        return multilingual and _translates(outline)
    return multilingual or wanted.language in ("", "en")


def quality(outline: Outline) -> tuple[int, ...]:
    """Return a key that sorts any model as `CATALOG` is sorted, but with the best one last."""
    d = outline.dims
    encoder = d.n_audio_layer * d.n_audio_state**2
    fast = d.n_mels == _MANY_MELS and not _translates(outline)
    return (encoder, d.n_mels, fast, d.n_text_layer, languages(outline) == ENGLISH)


def languages(outline: Outline) -> int:
    """Return how many languages a model knows, as far as its layers and vocabulary show."""
    # With as short a decoder, it is one of distil-whisper's, which know only English.
    is_distilled = outline.dims.n_text_layer <= 2 < outline.dims.n_audio_layer
    if outline.language is not None or is_distilled:
        return ENGLISH
    return MANY_AND_CANTONESE if outline.dims.n_vocab >= _WITH_CANTONESE else MANY


def _translates(outline: Outline) -> bool:
    # Models with a cut decoder did not learn to (openai/whisper, README).
    return outline.dims.n_text_layer == outline.dims.n_audio_layer


def offered(wanted: ModelOptions) -> CatalogModel:
    """Return the model to offer to a user who has none that `suits`."""
    return next(each for each in CATALOG if each.name in _OFFERED and suits(each.outline, wanted))


def entry(name: str) -> CatalogModel | None:
    """Return the model of that name, other name or repository."""
    name = ALSO_CALLED.get(name, name)
    return next((each for each in CATALOG if name in (each.name, each.repository)), None)


def dimensions(name: str) -> ModelDimensions:
    """Return the dimensions of a model of the catalog, such as ``base.en``.

    Raises `ConfigError` if there is none of that name.
    """
    if found := entry(name):
        return found.outline.dims
    names = ", ".join(each.name for each in CATALOG)
    raise ConfigError(f"no model {name} is in the catalog: use one of {names}")


def heads(listed: Iterable[tuple[int, int]] | None, path: Path, dims: ModelDimensions) -> Heads:
    """Return the alignment heads that the model's files list, or else the `usual_heads`.

    Lists that name heads that do not exist are ignored: distilled models may have the list of the
    deeper model that they were made from. So is a list of the whole upper half of the decoder,
    which converters write if they know no list.
    """
    pairs = tuple(sorted(set(listed or ())))
    exist = all(
        0 <= layer < dims.n_text_layer and 0 <= head < dims.n_text_head for layer, head in pairs
    )
    known = pairs and exist and pairs != _upper_half(dims)
    return pairs if known else usual_heads(path, dims)


def usual_heads(path: Path, dims: ModelDimensions) -> Heads:
    """Return the alignment heads of a model whose files list none.

    They are those of OpenAI's model with the same dimensions, or else, as in openai-whisper, all
    heads in the upper half of the decoder. Of large-v1 and large-v2, which have the same
    dimensions, the name of `path` decides.
    """
    usual = replace(dims, n_audio_ctx=_N_AUDIO_CTX, n_text_ctx=_N_TEXT_CTX)
    names = [name for name in _OFFICIAL_HEADS if dimensions(name) == usual]
    name = names[0] if names else None
    if len(names) > 1:
        version = re.search(r"large-(v[12])(?![0-9])", path.name)
        name = f"large-{version[1]}" if version else None
    if name in _OFFICIAL_HEADS:
        pairs = (pair.split(".") for pair in _OFFICIAL_HEADS[name].split())
        return tuple((int(layer), int(head)) for layer, head in pairs)
    return _upper_half(dims)


def _upper_half(dims: ModelDimensions) -> Heads:
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))
