"""Transcripts of which nothing can be written before the end: docx and eaf.

What makes one gets all finals and gaps of a session. Its library is optional, and imported when a
file is made.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from streamd.errors import ConfigError, StreamdError, how_to_install, os_error_as
from streamd.events import EndReason, Eos, Event, Item, SpeakerName
from streamd.labels import renamed
from streamd.sinks.elan import annotations
from streamd.sinks.transcripts import Revised
from streamd.sinks.word_document import About, word_document
from streamd.sinks.writing import OutputError, cut_short

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


def document(events: Iterable[Event], name: str, about: About) -> bytes:
    """Return a document in the format of this name, of a session's events in order.

    Raises `ConfigError` without its library.
    """
    form = _checked(name)
    text = Revised()
    for event in events:
        text.take(event)
    names = {**text.names, **about.names}  # of whoever asks for it, first of all
    return form.make([*text.since(0)], replace(about, names=names))


def _checked(name: str) -> WholeFormat:
    form = DOCUMENTS[name]
    if find_spec(form.needs) is None:
        raise ConfigError(f"{name} needs a library: {how_to_install('documents')}")
    return form


class WholeFile:
    """Writes a document when it is closed; until then, an existing file stays as it was.

    A session that fails or is stopped before its first words leaves no trace. With `whole`, the
    file of one that was stopped before its end gets the name `cut_short`. Raises `OutputError` if
    the file cannot be written, `ConfigError` without the format's library.
    """

    def __init__(self, path: Path, name: str, about: About, *, whole: bool = False) -> None:
        self._form, self._about, self._path = _checked(name), about, path
        self._text, self._whole = Revised(), whole
        self._is_worth_it = self._is_cut = False
        self._problem = f"{path}: cannot be written"
        target = Path(os.path.realpath(path))  # a link stays a link
        if target.exists() and not target.is_file():
            raise OutputError(f"{self._problem}: it is no regular file")
        with os_error_as(OutputError, self._problem):
            if target.exists():
                os.close(os.open(target, os.O_WRONLY))  # fails without permission to write to it
            descriptor, part = tempfile.mkstemp(".part", ".", target.parent)
            os.close(descriptor)
        self._part, self._target = Path(part), target

    def write(self, event: Event) -> None:
        """Remember what is said, and what revises it."""
        self._text.take(event)
        if isinstance(event, SpeakerName):
            self._about = replace(self._about, names=renamed(self._about.names, event))
        if isinstance(event, Eos):
            self._is_cut = event.reason == EndReason.STOP
            self._is_worth_it |= event.reason == EndReason.END
        self._is_worth_it |= isinstance(event, Item)

    def close(self) -> None:
        """Write the document; raises `StreamdError` if that fails."""
        try:
            if self._is_worth_it:
                target = cut_short(self._target) if self._is_cut and self._whole else self._target
                with os_error_as(StreamdError, self._problem):
                    self._part.write_bytes(self._form.make([*self._text.since(0)], self._about))
                    self._part.chmod(_mode(target))
                    os.replace(self._part, target)
        finally:
            self._part.unlink(missing_ok=True)


def _mode(target: Path) -> int:
    """Return the permissions of a file, or those of a new one."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
