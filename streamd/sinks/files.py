"""A format written to a file or a pipe, event by event."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from streamd.errors import ConfigError, StreamdError
from streamd.events import EndReason, Eos, Event, Final, Gap
from streamd.sinks.formats import Format
from streamd.stdio import put


class StreamSink:
    """A format written to a text stream that is no terminal, such as a pipe.

    Nothing is written of a session that fails before its first words: no document without text.

    Raises
    ------
    BrokenPipeError, StreamdError : as `streamd.stdio.put`, from all methods as well
    """

    def __init__(self, stream: TextIO, form: Format) -> None:
        self._stream = stream
        self._form = form
        self._begun = False

    def write(self, event: Event) -> None:
        """Append what `event` adds, at once."""
        text = self._form.append(event)
        if not self._begun and (
            text or (isinstance(event, Eos) and event.reason != EndReason.ERROR)
        ):
            self._begun = True
            text = self._form.header + text
        if text:
            put(self._stream, text)

    def redraw(self) -> None:
        """Nothing can be redrawn."""

    @contextmanager
    def above(self) -> Iterator[None]:
        """Other output does not disturb."""
        yield

    def close(self) -> None:
        """Write what the format ends with; all else was flushed."""
        if self._begun and self._form.end:
            put(self._stream, self._form.end)


class FileSink:
    """A transcript file; one of that name is replaced, but not before there is something to say.

    Each final is added in one unbuffered write, so that ``tail -f`` sees it and the file is whole
    and valid whenever the process dies. What a format ends with is written over by the next final.
    The file that was there stays as it is until the first final, or until a session without any
    ends by itself; a session that fails or is stopped before leaves no trace.

    Parameters
    ----------
    path : where to; its folder must exist
    form : the format
    whole : the file appears only when it is closed; until then it is ``.NAME.part`` beside it. Of
        no consequence for what is no regular file, such as a named pipe.

    Raises
    ------
    ConfigError
        The file cannot be made.
    """

    def __init__(self, path: Path, form: Format, *, whole: bool = False) -> None:
        self._path = path
        self._form = form
        self._end = 0  # of what will stay
        self._tail = b""
        self._begun = self._failed = False
        self._target = Path(os.path.realpath(path))  # a link stays one
        self._is_new = not path.exists()
        may_be_replaced = self._is_new or path.is_file()
        part = self._target.with_name(f".{self._target.name}.part")
        self._part = part if whole and may_be_replaced else None
        try:
            # Without buffer: nothing is left behind that a later close() would fail to write.
            descriptor = os.open(self._part or path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115  # closed by `close`
            if self._part and not self._is_new:
                os.close(os.open(path, os.O_WRONLY))  # refused if one may not write to it
                shutil.copymode(path, self._part)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error

    def write(self, event: Event) -> None:
        """Append what `event` adds, at once.

        Raises
        ------
        StreamdError
            The file cannot be written any more, such as on a full disk; it is as it was before.
        """
        is_text = isinstance(event, Final | Gap)
        if not self._begun and (
            is_text or (isinstance(event, Eos) and event.reason == EndReason.END)
        ):
            self._begun = True
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate()
            self._put(self._form.header, self._form.tail)
        if is_text:
            self._put(self._form.append(event), self._form.tail)

    def close(self) -> None:
        """Complete and close the file; raises as `write` does, unless that has failed before."""
        with self._file:
            try:
                if self._begun and not self._failed:
                    self._put("", self._form.end)
                    if self._part:
                        self._replace(self._part)
            finally:
                unused = self._part or (self._path if self._is_new and not self._begun else None)
                if unused:
                    unused.unlink(missing_ok=True)

    def _replace(self, part: Path) -> None:
        try:
            os.replace(part, self._target)
        except OSError as error:
            raise StreamdError(f"{self._path}: cannot be written: {error.strerror}") from error

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
