"""The formats of transcripts, by name, and the sinks that write them to a stream or a file."""

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TextIO

from msgspec import UNSET
from msgspec.structs import replace

from streamd.disk import write_all
from streamd.errors import ConfigError, StreamdError, os_error_as
from streamd.events import EndReason, Eos, Event, Final, Gap, encode
from streamd.options import CueLayout
from streamd.sinks import CaptionSink, Format
from streamd.sinks.documents import Json
from streamd.sinks.subtitles import Lrc, Srt, Vtt
from streamd.sinks.text import (
    RAINBOW,
    Look,
    aligned,
    caption,
    clean,
    clock,
    gap_notice,
    paint,
    rank,
)
from streamd.stdio import put


class Text(Format):
    """One line for each final, and one for each gap, which would otherwise look like silence."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look()

    def _final(self, final: Final) -> str:
        return paint(caption(final, self._look)) + "\n"

    def _gap(self, gap: Gap) -> str:
        return gap_notice(gap) + "\n"


class Jsonl(Format):
    """Events as lines of JSON, in the wire form of docs/protocol.md.

    A file has only the events that last, finals and gaps; with `everything` there are partials and
    all others, too.
    """

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything

    def append(self, event: Event) -> str:
        """Return the event as one line of JSON."""
        if not (self._everything or isinstance(event, Final | Gap)):
            return ""
        return encode(replace(event, details=UNSET) if isinstance(event, Final) else event) + "\n"


class Table(Format):
    """Start and end in ms, and the text.

    With a comma these are whisper.cpp's columns, the text always in quotes (RFC 4180), with a tab
    openai-whisper's, without quotes, since no text contains a tab.
    """

    def __init__(self, separator: str) -> None:
        self.header = separator.join(("start", "end", "text")) + "\n"
        self._separator = separator

    def _final(self, final: Final) -> str:
        text = clean(final.text)
        if text.lstrip()[:1] in "=+-@":
            text = f" {text}"  # keeps spreadsheets from reading a formula
        if self._separator == ",":
            text = '"' + text.replace('"', '""') + '"'
        return self._separator.join((str(final.start_ms), str(final.end_ms), text)) + "\n"


_RULES = "\n".join(
    f".p{i} {{ background: rgb({red} {green} {blue} / 45%) }}"
    for i, (red, green, blue) in enumerate(RAINBOW)
)
_HEAD = f"""\
<!DOCTYPE html>
<html lang="und">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Transcript</title>
<style>
:root {{ color-scheme: light dark }}
body {{ max-width: 42em; margin: 2em auto; padding: 0 1em; font: 1.1em/1.6 system-ui, sans-serif }}
time, .gap, .legend {{ opacity: .7; font-size: .8em }}
time {{ font-variant-numeric: tabular-nums; margin-inline-end: .6em }}
span[title] {{ border-radius: .2em }}
{_RULES}
</style>
</head>
<body>
"""
_SCALE = "".join(f'<span class="p{i}">&nbsp;&nbsp;</span>' for i in range(len(RAINBOW)))


class Html(Format):
    """A web page of one file: a paragraph for each final, its words coloured by probability.

    HTML lets the last paragraph, the body and the page end with the file, so the page is valid at
    any time although it only grows.
    """

    header = f'{_HEAD}<p class="legend">doubtful {_SCALE} sure</p>\n'

    def _final(self, final: Final) -> str:
        shown, at = "", 0
        for start, end, word in aligned(final.text, final.words):
            mark = f'<span class="p{rank(word.prob)}" title="{word.prob:.0%}">'
            shown += f"{_html(final.text[at:start])}{mark}{_html(final.text[start:end])}</span>"
            at = end
        shown += _html(final.text[at:])
        time = f'<time datetime="PT{final.start_ms / 1000}S">{clock(final.start_ms)}</time>'
        return f'<p>{time}<bdi lang="{escape(final.language)}" dir="auto">{shown}</bdi></p>\n'

    def _gap(self, gap: Gap) -> str:
        return f'<p class="gap">{_html(gap_notice(gap))}</p>\n'


def _html(text: str) -> str:
    return escape(clean(text))


FORMATS: Mapping[str, Callable[[CueLayout], Format]] = {
    "txt": lambda layout: Text(),
    "srt": Srt,
    "vtt": Vtt,
    "lrc": Lrc,
    "csv": lambda layout: Table(","),
    "tsv": lambda layout: Table("\t"),
    "json": lambda layout: Json(),
    "json-full": lambda layout: Json(full=True),
    "jsonl": lambda layout: Jsonl(),
    "html": lambda layout: Html(),
}

SEGMENTED = frozenset({"csv", "tsv", "json", "json-full", "jsonl"})
"""Formats for programs, which get a model's segments as they are; people get sentences."""


def suffix(name: str) -> str:
    """Return the ending of file names in this format."""
    return ".full.json" if name == "json-full" else f".{name}"


class StreamSink(CaptionSink):
    """Writes a format to a text stream that is not a terminal; raises as `stdio.put` does.

    Nothing is written of a session that fails before its first words: no document without text.
    """

    def __init__(self, stream: TextIO, form: Format) -> None:
        self._stream, self._form, self._begun = stream, form, False

    def write(self, event: Event) -> None:
        """Append the text of `event` and flush it."""
        text = self._form.append(event)
        has_ended = isinstance(event, Eos) and event.reason != EndReason.ERROR
        if not self._begun and (text or has_ended):
            self._begun = True
            text = self._form.header + text
        if text:
            put(self._stream, text)

    def close(self) -> None:
        """Write the end of the format."""
        if self._begun and (end := self._form.end(complete=True)):
            put(self._stream, end)


class FileSink:
    """Writes a transcript file, which is complete and valid whenever the process dies.

    Each final is added in one unbuffered write; the next one overwrites the tail of the format. An
    existing file stays as it is until the first final, or until a session without finals ends
    normally; a session that fails or is stopped before leaves no trace.

    With `whole` a regular file appears only when it is closed; until then it is ``.NAME.part``
    beside it. Raises `ConfigError` if the file cannot be written.
    """

    def __init__(self, path: Path, form: Format, *, whole: bool = False) -> None:
        self._path, self._form = path, form
        self._end = 0  # offset of the tail
        self._tail = b""
        self._begun = self._failed = False
        self._target = Path(os.path.realpath(path))  # a link stays a link
        self._is_new = not path.exists()
        may_be_replaced = self._is_new or path.is_file()
        part = self._target.with_name(f".{self._target.name}.part")
        self._part = part if whole and may_be_replaced else None
        self._problem = f"{path}: cannot be written"
        with os_error_as(ConfigError, self._problem):
            # Unbuffered: a later close() has nothing left to write that could fail.
            descriptor = os.open(self._part or path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115  # closed by `close`
            if self._part and not self._is_new:
                os.close(os.open(path, os.O_WRONLY))  # fails without permission to write to it
                shutil.copymode(path, self._part)

    def write(self, event: Event) -> None:
        """Append the text of `event`; after a `StreamdError` the file is as it was before."""
        is_text = isinstance(event, Final | Gap)
        is_whole = isinstance(event, Eos) and event.reason == EndReason.END
        if not self._begun and (is_text or is_whole):
            self._begun = True
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate()
            self._put(self._form.header)
        if is_text:
            self._put(self._form.append(event))

    def close(self) -> None:
        """Complete and close the file; raises as `write` does, unless that has failed before."""
        with self._file:
            try:
                if self._begun and not self._failed:
                    self._put("", complete=True)
                    if self._part:
                        with os_error_as(StreamdError, self._problem):
                            os.replace(self._part, self._target)
            finally:
                unused = self._part or (self._path if self._is_new and not self._begun else None)
                if unused:
                    unused.unlink(missing_ok=True)

    def _put(self, added: str, *, complete: bool = False) -> None:
        tail = self._form.end(complete=complete)
        body, new_tail = (part.encode(errors="replace") for part in (added, tail))
        # The new text must cover all of the old tail: there is no moment to truncate the file in.
        new_tail = new_tail.ljust(len(self._tail) - len(body))
        with os_error_as(StreamdError, self._problem):
            try:
                self._write(body + new_tail)
            except OSError:
                self._failed = True
                with suppress(OSError):  # only the first failure is reported
                    self._write(self._tail)
                    self._file.truncate(self._end + len(self._tail))
                raise
        self._end, self._tail = self._end + len(body), new_tail

    def _write(self, data: bytes) -> None:
        if self._tail:  # without a tail there is no need to seek, which a named pipe cannot
            self._file.seek(self._end)
        write_all(self._file.fileno(), data)
