"""Transcripts of one line for each final: txt, jsonl, csv, tsv. Pure; `files` writes them."""

from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import Event, Final, Gap, encode
from streamd.sinks.look import Look, caption, gap_notice, paint
from streamd.sinks.text import clean


class Text:
    """One line for each final, and one for each gap, so that nobody takes a hole for silence."""

    header = tail = end = ""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look()

    def append(self, event: Event) -> str:
        """The event's line."""
        if isinstance(event, Final) and event.text:
            return paint(caption(event, self._look)) + "\n"
        if isinstance(event, Gap):
            return gap_notice(event.duration_ms, event.why) + "\n"
        return ""


class Jsonl:
    """The events that last, finals and gaps, in the wire form of docs/protocol.md."""

    header = tail = end = ""

    def append(self, event: Event) -> str:
        """The event as one line of JSON."""
        return _wire(event) if isinstance(event, Final | Gap) else ""


class Wire:
    """The wire form of every event, partials included."""

    header = tail = end = ""

    def append(self, event: Event) -> str:
        """The event as one line of JSON."""
        return _wire(event)


def _wire(event: Event) -> str:
    return encode(replace(event, details=UNSET) if isinstance(event, Final) else event) + "\n"


class Csv:
    """whisper.cpp's columns: start and end in ms, and the text, always in quotes (RFC 4180)."""

    header = "start,end,text\n"
    tail = end = ""

    def append(self, event: Event) -> str:
        """The final's row."""
        if not isinstance(event, Final) or not event.text:
            return ""
        quoted = _cell(event.text).replace('"', '""')
        return f'{event.start_ms},{event.end_ms},"{quoted}"\n'


class Tsv:
    """openai-whisper's columns, the same without quotes: nothing but a tab ends a field."""

    header = "start\tend\ttext\n"
    tail = end = ""

    def append(self, event: Event) -> str:
        """The final's row."""
        if not isinstance(event, Final) or not event.text:
            return ""
        return f"{event.start_ms}\t{event.end_ms}\t{_cell(event.text)}\n"


def _cell(text: str) -> str:
    """One line that no spreadsheet takes for a formula: such a one gets a blank in front."""
    line = clean(text)
    return f" {line}" if line.lstrip()[:1] in "=+-@" else line
