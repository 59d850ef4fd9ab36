"""Facts about Whisper models, out of ``catalog.toml``: sizes, heads, where they are on the hub."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from streamd.errors import ConfigError
from streamd.models import ModelDimensions
from streamd.models.model import Heads, Outline, only_language
from streamd.options import ModelOptions

ENGLISH, MANY, MANY_AND_CANTONESE = 1, 99, 100
"""How many languages a model knows."""
_WITH_CANTONESE, _MANY_MELS = 51_866, 128
"""Tokens and mel bands of large-v3."""

_N_AUDIO_CTX, _N_TEXT_CTX = 1500, 448


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    repository: str
    megabytes: int
    size: tuple[int, int, int]
    mels: int
    vocabulary: int
    heads: Heads = ()
    wer: float = 0.0


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model on the hub, in the repository ``owner/name``; about `n_bytes` are downloaded.

    `heads` follow the audio, according to OpenAI; there are none for other people's models. `wer`
    is the % of words that are wrong (`catalog.toml`), or 0 where that was not published.
    """

    name: str
    repository: str
    n_bytes: int
    outline: Outline
    heads: Heads
    wer: float = 0.0


def _model(name: str, facts: _Facts) -> CatalogModel:
    n_audio_layer, width, n_text_layer = facts.size
    audio = _N_AUDIO_CTX, width, width // 64, n_audio_layer
    text = _N_TEXT_CTX, width, width // 64, n_text_layer
    dims = ModelDimensions(facts.mels, *audio, facts.vocabulary, *text)
    outline = Outline(dims, only_language(dims))
    n_bytes = facts.megabytes * 1_000_000
    return CatalogModel(name, facts.repository, n_bytes, outline, facts.heads, facts.wer)


_FILE = Path(__file__).with_suffix(".toml").read_bytes()
CATALOG = tuple(
    _model(*each) for each in msgspec.toml.decode(_FILE, type=dict[str, _Facts]).items()
)
"""All models that can be named without their owner, sorted as the file says."""

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
    """Return the model to offer to a user who has no suitable one (`suits`)."""
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


def published_wer(name: str) -> float:
    """Return the % of words that a model of this name gets wrong; 0 if that is not known."""
    found = entry(name)
    return found.wer if found else 0.0


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
    same = [each for each in CATALOG if each.heads and each.outline.dims == usual]
    if len(same) > 1:
        version = re.search(r"large-(v[12])(?![0-9])", path.name)
        same = [each for each in same if version and each.name == f"large-{version[1]}"]
    return same[0].heads if same else _upper_half(dims)


def _upper_half(dims: ModelDimensions) -> Heads:
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))
