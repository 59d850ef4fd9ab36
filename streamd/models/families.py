"""Models of other families than Whisper that can be named, out of ``families.toml``.

transcribe.cpp runs them (the extra `families`); `engines.families` is what calls it.
"""

from importlib.util import find_spec
from pathlib import Path

import msgspec

from streamd.errors import ConfigError, how_to_install
from streamd.options import ModelOptions

LIBRARY = "transcribe_cpp"


class PublishedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file on the hub, in the repository ``owner/name``; `families.toml` describes the fields."""

    name: str = ""
    repository: str
    file: str
    bytes: int
    sha256: str
    languages: tuple[str, ...]
    streams: bool = False
    licence: str
    terms: str = ""
    wer: float
    like: str = ""

    @property
    def license_line(self) -> str:
        """The licence with the address of its terms, for who is about to download the model."""
        return f"{self.licence}{self.terms and f', {self.terms}'}"


def _read() -> tuple[PublishedModel, ...]:
    rows = msgspec.toml.decode(
        Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, PublishedModel]
    )
    return tuple(msgspec.structs.replace(each, name=name) for name, each in rows.items())


FAMILY_MODELS = _read()
"""The most accurate one first."""


def family_entry(name: str) -> PublishedModel | None:
    """Return the model of that name or repository."""
    return next((each for each in FAMILY_MODELS if name in (each.name, each.repository)), None)


def suits_family(model: PublishedModel, wanted: ModelOptions) -> bool:
    """Return whether a model can do the task in the languages; ``auto`` needs several."""
    if wanted.task != "transcribe":
        return False
    if wanted.language == "auto":
        return len(model.languages) > 1
    return {*(wanted.language or "en").split(",")} <= {*model.languages}


def has_library() -> bool:
    """Return whether what runs such models is installed."""
    return find_spec(LIBRARY) is not None


def check_library(name: str) -> None:
    """Raise `ConfigError` if what runs such models is not installed."""
    if not has_library():
        install = how_to_install("families")
        raise ConfigError(f"{name} is run by transcribe-cpp, which is not installed: {install}")
