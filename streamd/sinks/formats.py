"""The formats that a transcript can be written in, by name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from streamd.events import Event
from streamd.sinks.cues import Layout
from streamd.sinks.documents import Json
from streamd.sinks.html import Html
from streamd.sinks.lines import Csv, Jsonl, Text, Tsv
from streamd.sinks.subtitles import Lrc, Srt, Vtt


class Format(Protocol):
    """Turns the events of one stream, in order, into the text of one file."""

    @property
    def header(self) -> str:
        """What the file begins with."""
        ...

    @property
    def tail(self) -> str:
        """What the file ends with while more may come, which is written anew with each event."""
        ...

    @property
    def end(self) -> str:
        """What the file ends with when it is complete."""
        ...

    def append(self, event: Event) -> str:
        """What `event` adds to the file; empty if nothing."""
        ...


FORMATS: Mapping[str, Callable[[Layout], Format]] = {
    "txt": lambda layout: Text(),
    "srt": Srt,
    "vtt": Vtt,
    "lrc": Lrc,
    "csv": lambda layout: Csv(),
    "tsv": lambda layout: Tsv(),
    "json": lambda layout: Json(),
    "json-full": lambda layout: Json(full=True),
    "jsonl": lambda layout: Jsonl(),
    "html": lambda layout: Html(),
}


def suffix(name: str) -> str:
    """What names of files in this format end with."""
    return ".full.json" if name == "json-full" else f".{name}"
