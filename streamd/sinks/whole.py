"""Transcripts of which nothing can be written before the end: docx and eaf.

Their libraries are optional, and imported when a file is made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import MappingProxyType

from streamd.errors import ConfigError, how_to_install
from streamd.events import Item
from streamd.sinks import Format
from streamd.sinks.elan import annotations
from streamd.sinks.word_document import About, word_document

Make = Callable[[Sequence[Item], "About"], bytes]


@dataclass(frozen=True, slots=True)
class WholeFormat:
    """What makes a document, and the module of the library that it needs."""

    make: Make
    needs: str


DOCUMENTS: Mapping[str, WholeFormat] = MappingProxyType(
    {
        "docx": WholeFormat(word_document, "docx"),
        "eaf": WholeFormat(annotations, "pympi"),
    }
)
"""The formats, by name."""


class Document(Format):
    """The format of this name; raises `ConfigError` without its library."""

    at_end = True

    def __init__(self, name: str, about: About) -> None:
        self._form, self._about, self.names = DOCUMENTS[name], about, about.names
        if find_spec(self._form.needs) is None:
            raise ConfigError(f"{name} needs a library: {how_to_install('documents')}")

    def whole(self, said: Sequence[Item]) -> bytes:
        return self._form.make(said, replace(self._about, names=self.names))
