"""Transcripts of which nothing can be written before the end: docx and eaf.

Their libraries are optional, and imported when a file is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import MappingProxyType

from streamd.errors import ConfigError, how_to_install
from streamd.events import Item
from streamd.sinks import About, Format

DOCUMENTS: Mapping[str, str] = MappingProxyType({"docx": "docx", "eaf": "pympi"})
"""The formats, and the modules of the libraries that they need."""


class Document(Format):
    """The format of this name; raises `ConfigError` without its library."""

    at_end = True

    def __init__(self, name: str, about: About) -> None:
        self._name, self._about, self.names = name, about, about.names
        if find_spec(DOCUMENTS[name]) is None:
            raise ConfigError(f"{name} needs a library: {how_to_install('documents')}")

    def whole(self, said: Sequence[Item]) -> bytes:
        about = replace(self._about, names=self.names)
        if self._name == "docx":
            from streamd.sinks.word_document import word_document

            return word_document(said, about)
        from streamd.sinks.elan import annotations

        return annotations(said, about)
