"""Transcripts as files: txt, srt, vtt, jsonl.

Each final is appended in one unbuffered write, so that ``tail -f`` sees it and the file is valid
whenever the process dies. The formats are pure and also serve standard output.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from streamd.errors import ConfigError, StreamdError
from streamd.events import Event, Final, Gap, encode
from streamd.sinks.cues import Cue, cues
from streamd.sinks.look import Look, caption, gap_notice, paint
from streamd.stdio import put


class Format(Protocol):
    """Turns the events of one stream, in order, into the text of one file."""

    header: str
    """What the file begins with."""

    def append(self, event: Event) -> str:
        """What `event` adds to the file; empty if nothing."""


class Text:
    """One line for each final, and one for each gap, so that nobody takes a hole for silence."""

    header = ""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look()

    def append(self, event: Event) -> str:
        """The event's line."""
        if isinstance(event, Final) and event.text:
            return paint(caption(event, self._look)) + "\n"
        if isinstance(event, Gap):
            return gap_notice(event.duration_ms, event.why) + "\n"
        return ""


class Srt:
    """SubRip. It has no comments, so gaps are not in it."""

    header = ""

    def __init__(self) -> None:
        self._n_cues = 0
        self._end_ms = 0

    def append(self, event: Event) -> str:
        """The event's cues, numbered from 1."""
        text = ""
        for cue in _cues(event, self._end_ms):
            self._n_cues += 1
            self._end_ms = cue.end_ms
            times = f"{_time(cue.start_ms, ',')} --> {_time(cue.end_ms, ',')}"
            text += "\n".join((str(self._n_cues), times, *cue.lines)) + "\n\n"
        return text


class Vtt:
    """WebVTT (https://www.w3.org/TR/webvtt1/). Gaps are notes, which players do not show."""

    header = "WEBVTT\n\n"

    def __init__(self) -> None:
        self._end_ms = 0

    def append(self, event: Event) -> str:
        """The event's cues."""
        if isinstance(event, Gap):
            notice = _vtt_escaped(gap_notice(event.duration_ms, event.why))
            return f"NOTE {_time(event.t_ms, '.')} {notice}\n\n"
        text = ""
        for cue in _cues(event, self._end_ms):
            self._end_ms = cue.end_ms
            times = f"{_time(cue.start_ms, '.')} --> {_time(cue.end_ms, '.')}"
            text += "\n".join((times, *map(_vtt_escaped, cue.lines))) + "\n\n"
        return text


class Jsonl:
    """The wire form of the events that last: finals and gaps."""

    header = ""

    def append(self, event: Event) -> str:
        """The event as one line of JSON."""
        return encode(event) + "\n" if isinstance(event, Final | Gap) else ""


class Wire:
    """The wire form of every event, partials included."""

    header = ""

    def append(self, event: Event) -> str:
        """The event as one line of JSON."""
        return encode(event) + "\n"


FORMATS: Mapping[str, Callable[[], Format]] = {
    ".txt": Text,
    ".srt": Srt,
    ".vtt": Vtt,
    ".jsonl": Jsonl,
}
"""What a file's suffix says about its format."""


def _cues(event: Event, not_before_ms: int) -> Iterator[Cue]:
    if isinstance(event, Final):
        yield from cues(event, not_before_ms)


def _time(t_ms: int, point: str) -> str:
    seconds, ms = divmod(t_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def _vtt_escaped(text: str) -> str:
    # Escaping ">" as well takes care of "-->", which may stand nowhere in a cue.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class StreamSink:
    """A format written to a text stream that is no terminal, such as a pipe.

    Raises
    ------
    BrokenPipeError, StreamdError : as `streamd.stdio.put`, from `write` as well
    """

    def __init__(self, stream: TextIO, form: Format) -> None:
        self._stream = stream
        self._form = form
        put(stream, form.header)

    def write(self, event: Event) -> None:
        """Append what `event` adds, at once."""
        if text := self._form.append(event):
            put(self._stream, text)

    def redraw(self) -> None:
        """Nothing can be redrawn."""

    @contextmanager
    def above(self) -> Iterator[None]:
        """Other output does not disturb."""
        yield

    def close(self) -> None:
        """Nothing is left to do: every write was flushed."""


class FileSink:
    """A transcript file, in the format that its suffix names; a file of that name is replaced.

    Parameters
    ----------
    path : where to; its folder must exist

    Raises
    ------
    ConfigError
        The suffix is unknown or the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        form = FORMATS.get(path.suffix.lower())
        if form is None:
            known = " ".join(FORMATS)
            raise ConfigError(f"{path}: unknown suffix; a transcript is one of {known}")
        self._path = path
        self._form = form()
        try:
            # Unbuffered: nothing is left behind that a later close() would fail to write.
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        self._put(self._form.header)

    def write(self, event: Event) -> None:
        """Append what `event` adds, at once.

        Raises
        ------
        StreamdError
            The file cannot be written any more, such as on a full disk.
        """
        self._put(self._form.append(event))

    def close(self) -> None:
        """Close the file; it was complete before, too."""
        self._file.close()

    def _put(self, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise StreamdError(f"{self._path}: cannot be written: {error.strerror}") from error
