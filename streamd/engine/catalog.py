"""The Whisper models that have a short name, best first.

The order is the one in which streamd prefers what is there when no model is named. It is that of
accuracy, but that large-v3-turbo and distil-large-v3 come before the models that they were made
from: they lose little and are several times as fast.

Sizes are those of ``model.safetensors`` and the small files in the repository, rounded; OpenAI's
are float32 up to large-v2, float16 from large-v3 on. Sources: the repositories' file lists and
model cards on huggingface.co. Licences are those of the cards.
"""

from dataclasses import dataclass

ENGLISH, MANY, MANY_AND_CANTONESE = 1, 99, 100
"""How many languages a model knows."""

_MIN_SHORT_CTX = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One model.

    `repository` is its ``owner/name`` on the hub; `n_bytes` about what is downloaded; one language
    is English. `min_audio_ctx` is the shortest encoder context, in frames, that it was trained
    for, or None for that of any Whisper.
    """

    name: str
    repository: str
    n_bytes: int
    n_languages: int
    licence: str
    min_audio_ctx: int | None = None


def _openai(size: str, megabytes: int, n_languages: int, licence: str = "Apache-2.0") -> Entry:
    return Entry(size, f"openai/whisper-{size}", megabytes * 1_000_000, n_languages, licence)


def _distilled(size: str, megabytes: int) -> Entry:
    name = f"distil-{size}"
    return Entry(name, f"distil-whisper/{name}", megabytes * 1_000_000, ENGLISH, "MIT")


def _short(size: str, megabytes: int, n_languages: int) -> Entry:
    """Tuned for short encoder contexts: github.com/futo-org/whisper-acft."""
    repository = f"futo-org/acft-whisper-{size}"
    n_bytes = megabytes * 1_000_000
    return Entry(f"acft-{size}", repository, n_bytes, n_languages, "Apache-2.0", _MIN_SHORT_CTX)


CATALOG = (
    _openai("large-v3-turbo", 1_621, MANY_AND_CANTONESE, "MIT"),
    _distilled("large-v3", 1_515),
    _openai("large-v3", 3_090, MANY_AND_CANTONESE),
    _openai("large-v2", 6_176, MANY),
    Entry("large-v1", "openai/whisper-large", 6_176_000_000, MANY, "Apache-2.0"),
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


def suits(each: Entry, *, language: str, translate: bool) -> bool:
    """Whether the model can write what is asked for; `language` is a code or "auto"."""
    if translate:  # large-v3-turbo was not taught to translate (openai/whisper, README)
        return each.n_languages > ENGLISH and each.name != "large-v3-turbo"
    return each.n_languages > ENGLISH or language == "en"


def offered(*, language: str, translate: bool) -> Entry:
    """What is offered to whoever has no model that `suits`."""
    return next(
        each
        for each in CATALOG
        if each.name in _OFFERED and suits(each, language=language, translate=translate)
    )


def entry(name: str) -> Entry | None:
    """The model of that name or other name, or of that repository."""
    name = ALSO_CALLED.get(name, name)
    return next((each for each in CATALOG if name in (each.name, each.repository)), None)


def megabytes(n_bytes: int) -> str:
    """A size for people: ``75 MB``, ``1.62 GB``."""
    if n_bytes >= 999_500_000:
        return f"{n_bytes / 1e9:.2f} GB"
    return f"{n_bytes / 1e6:.{1 if n_bytes < 9_950_000 else 0}f} MB"
