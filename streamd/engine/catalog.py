"""The Whisper models that have a short name, best first.

The order is the one in which streamd prefers what is there when no model is named. It is that of
accuracy, but that large-v3-turbo and distil-large-v3 come before the models that they were made
from: they lose little and are several times as fast.

Sizes are those of ``model.safetensors`` and the small files in the repository, rounded; OpenAI's
are float32 up to large-v2, float16 from large-v3 on. Sources: the repositories' file lists and
model cards on huggingface.co. Licences are those of the cards.
"""

from dataclasses import dataclass
from typing import Self

from streamd.engine import ModelDimensions
from streamd.engine.model import Outline
from streamd.errors import ConfigError

ENGLISH, MANY, MANY_AND_CANTONESE = 1, 99, 100
"""How many languages a model knows."""
_WITH_CANTONESE = 51_866
"""Tokens of large-v3's vocabulary."""

_MIN_SHORT_CTX = 64


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions that decide how good a model is, and how fast."""

    n_audio_layer: int
    n_audio_state: int
    n_text_layer: int
    n_mels: int = 80

    @classmethod
    def of(cls, outline: Outline) -> Self:
        """That of a model whose files are here."""
        d = outline.dims
        return cls(d.n_audio_layer, d.n_audio_state, d.n_text_layer, d.n_mels)

    @property
    def is_distilled(self) -> bool:
        """Whether the decoder is that of distil-whisper's models, which learned only English."""
        return self.n_text_layer <= 2 < self.n_audio_layer

    @property
    def translates(self) -> bool:
        """Whether it was taught to; models with a cut decoder were not (openai/whisper, README)."""
        return self.n_text_layer == self.n_audio_layer


_TINY, _BASE = Size(4, 384, 4), Size(6, 512, 6)
_SMALL, _MEDIUM = Size(12, 768, 12), Size(24, 1024, 24)
_LARGE, _LARGE_V3 = Size(32, 1280, 32), Size(32, 1280, 32, 128)
_SIZES = {
    "tiny": _TINY,
    "base": _BASE,
    "small": _SMALL,
    "medium": _MEDIUM,
    "large-v2": _LARGE,
    "large-v3": _LARGE_V3,
    "large-v3-turbo": Size(32, 1280, 4, 128),
    "distil-large-v3": Size(32, 1280, 2, 128),
    "distil-large-v2": Size(32, 1280, 2),
    "distil-medium": Size(24, 1024, 2),
    "distil-small": Size(12, 768, 4),
}


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One model.

    `repository` is its ``owner/name`` on the hub; `n_bytes` about what is downloaded; one language
    is English. `size` is that of its layers. `min_audio_ctx` is the shortest encoder context, in
    frames, that it was trained for, or None for that of any Whisper.
    """

    name: str
    repository: str
    n_bytes: int
    n_languages: int
    licence: str
    size: Size
    min_audio_ctx: int | None = None


def _openai(
    size: str, megabytes: int, n_languages: int, licence: str = "Apache-2.0"
) -> CatalogModel:
    repository, n_bytes = f"openai/whisper-{size}", megabytes * 1_000_000
    return CatalogModel(size, repository, n_bytes, n_languages, licence, _size(size))


def _distilled(size: str, megabytes: int) -> CatalogModel:
    name = f"distil-{size}"
    repository, n_bytes = f"distil-whisper/{name}", megabytes * 1_000_000
    return CatalogModel(name, repository, n_bytes, ENGLISH, "MIT", _size(name))


def _short(size: str, megabytes: int, n_languages: int) -> CatalogModel:
    """Tuned for short encoder contexts: github.com/futo-org/whisper-acft."""
    repository = f"futo-org/acft-whisper-{size}"
    n_bytes = megabytes * 1_000_000
    name, licence = f"acft-{size}", "Apache-2.0"
    return CatalogModel(
        name, repository, n_bytes, n_languages, licence, _size(size), _MIN_SHORT_CTX
    )


def _size(name: str) -> Size:
    return _SIZES[name.removesuffix(".en")]


CATALOG = (
    _openai("large-v3-turbo", 1_621, MANY_AND_CANTONESE, "MIT"),
    _distilled("large-v3", 1_515),
    _openai("large-v3", 3_090, MANY_AND_CANTONESE),
    _openai("large-v2", 6_176, MANY),
    CatalogModel("large-v1", "openai/whisper-large", 6_176_000_000, MANY, "Apache-2.0", _LARGE),
    _distilled("large-v2", 1_515),
    _openai("medium.en", 3_058, ENGLISH),
    _openai("medium", 3_058, MANY),
    _distilled("medium.en", 792),
    _openai("small.en", 969, ENGLISH),
    _openai("small", 969, MANY),
    _distilled("small.en", 335),
    _short("small.en", 1_127, ENGLISH),
    _short("small", 1_127, MANY),
    _openai("base.en", 293, ENGLISH),
    _openai("base", 293, MANY),
    _short("base.en", 397, ENGLISH),
    _short("base", 397, MANY),
    _openai("tiny.en", 153, ENGLISH),
    _openai("tiny", 154, MANY),
    _short("tiny.en", 232, ENGLISH),
    _short("tiny", 232, MANY),
)

ALSO_CALLED = {"large": "large-v3", "turbo": "large-v3-turbo"}
"""OpenAI's other names."""

_OFFERED = ("base.en", "base")


def suits(size: Size, n_languages: int, *, language: str, translate: bool) -> bool:
    """Whether the model can write what is asked for; `language` is a code or "auto"."""
    if translate:
        return n_languages > ENGLISH and size.translates
    return n_languages > ENGLISH or language == "en"


def quality(size: Size, n_languages: int) -> tuple[int, ...]:
    """What is greater for the better model: the order of `CATALOG`, for models of other names."""
    encoder = size.n_audio_layer * size.n_audio_state**2
    fast = size.n_mels == _LARGE_V3.n_mels and not size.translates
    return (encoder, size.n_mels, fast, size.n_text_layer, n_languages == ENGLISH)


def languages(outline: Outline) -> int:
    """How many languages a model knows, as far as its layers and its vocabulary tell."""
    if outline.language is not None or Size.of(outline).is_distilled:
        return ENGLISH
    return MANY_AND_CANTONESE if outline.dims.n_vocab >= _WITH_CANTONESE else MANY


def offered(*, language: str, translate: bool) -> CatalogModel:
    """What is offered to whoever has no model that `suits`."""
    return next(
        each
        for each in CATALOG
        if each.name in _OFFERED
        and suits(each.size, each.n_languages, language=language, translate=translate)
    )


def entry(name: str) -> CatalogModel | None:
    """The model of that name or other name, or of that repository."""
    name = ALSO_CALLED.get(name, name)
    return next((each for each in CATALOG if name in (each.name, each.repository)), None)


def dimensions(name: str) -> ModelDimensions:
    """Return the dimensions of one of OpenAI's models, such as ``base.en``.

    Raises
    ------
    ConfigError : OpenAI has no such model
    """
    found = next(
        (e for e in CATALOG if e.name == name and e.repository.startswith("openai/")), None
    )
    if found is None:
        known = ", ".join(e.name for e in CATALOG if e.repository.startswith("openai/"))
        raise ConfigError(f"OpenAI has no model {name}: use one of {known}")
    size, n_head = found.size, found.size.n_audio_state // 64
    n_vocab = {ENGLISH: 51_864, MANY: 51_865, MANY_AND_CANTONESE: _WITH_CANTONESE}
    return ModelDimensions(
        n_mels=size.n_mels,
        n_audio_ctx=1500,
        n_audio_state=size.n_audio_state,
        n_audio_head=n_head,
        n_audio_layer=size.n_audio_layer,
        n_vocab=n_vocab[found.n_languages],
        n_text_ctx=448,
        n_text_state=size.n_audio_state,
        n_text_head=n_head,
        n_text_layer=size.n_text_layer,
    )
