"""A format written to a file or a pipe, event by event."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from streamd.errors import ConfigError, StreamdError
from streamd.events import Event, Final, Gap
from streamd.sinks.formats import Format
from streamd.stdio import put


class StreamSink:
    """A format written to a text stream that is no terminal, such as a pipe.

    Raises
    ------
    BrokenPipeError, StreamdError : as `streamd.stdio.put`, from all methods as well
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
        """Write what the format ends with; all else was flushed."""
        if self._form.end:
            put(self._stream, self._form.end)


class FileSink:
    """A transcript file; one of that name is replaced.

    Each final is added in one unbuffered write, so that ``tail -f`` sees it and the file is whole
    and valid whenever the process dies. What a format ends with is written over by the next final.

    Parameters
    ----------
    path : where to; its folder must exist
    form : the format

    Raises
    ------
    ConfigError
        The file cannot be made.
    """

    def __init__(self, path: Path, form: Format) -> None:
        self._path = path
        self._form = form
        self._end = 0  # of what will stay
        self._tail = b""
        self._failed = False
        try:
            # Unbuffered: nothing is left behind that a later close() would fail to write.
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        self._put(form.header, form.tail)

    def write(self, event: Event) -> None:
        """Append what `event` adds, at once.

        Raises
        ------
        StreamdError
            The file cannot be written any more, such as on a full disk; it is as it was before.
        """
        if isinstance(event, Final | Gap):
            self._put(self._form.append(event), self._form.tail)

    def close(self) -> None:
        """Complete and close the file; raises as `write` does, unless that has failed before."""
        try:
            if not self._failed:
                self._put("", self._form.end)
        finally:
            self._file.close()

    def _put(self, added: str, ending: str) -> None:
        body, tail = (part.encode(errors="replace") for part in (added, ending))
        if len(body) + len(tail) < len(self._tail):  # which is to be written over, all of it
            tail = tail.ljust(len(self._tail) - len(body))
        try:
            self._write(body + tail)
        except OSError as error:
            self._failed = True
            with suppress(OSError):  # the first failure is the one to tell
                self._write(self._tail)
                self._file.truncate(self._end + len(self._tail))
            raise StreamdError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._end, self._tail = self._end + len(body), tail

    def _write(self, data: bytes) -> None:
        if self._tail:  # without, there is no need to seek, which a named pipe cannot
            self._file.seek(self._end)
        while data:
            data = data[self._file.write(data) :]
