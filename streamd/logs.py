"""Log messages, on standard error: standard output belongs to the captions."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Literal, TextIO

Room = Callable[[], AbstractContextManager[None]]
Submit = Callable[[Callable[[logging.LogRecord], None], logging.LogRecord], object]


def _at_once(write: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    write(record)


_LEVELS = (logging.INFO, logging.DEBUG, logging.DEBUG)
"""By how often -v was said. The libraries' own messages need the last."""


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream which it may share with live captions."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.share()

    def share(self, room: Room = nullcontext, submit: Submit = _at_once) -> None:
        """From now on, write each line inside `room()`, by way of `submit`.

        Parameters
        ----------
        room : what makes room on the terminal where captions are drawn
        submit : runs a function in the thread that draws them, such as an executor's method; a line
            may come from any thread
        """
        self._room = room
        self._submit = submit

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, above whatever is drawn."""
        self._submit(self._write, record)

    def _write(self, record: logging.LogRecord) -> None:
        with self._room():
            super().emit(record)


class _TextFormatter(logging.Formatter):
    """``streamd: warning: text``: what an error of the program looks like, too."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"streamd: {level}{record.getMessage()}"


class _JsonFormatter(logging.Formatter):
    """One object per line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def log_to(
    stream: TextIO, *, form: Literal["text", "json"], verbose: int = 0, quiet: bool = False
) -> LogHandler:
    """Send all log messages of the process to `stream`, and nowhere else.

    Parameters
    ----------
    stream : where to
    form : lines for people or for programs
    verbose : 0 what a person should know, 1 details, 2 the libraries' messages too
    quiet : errors only, whatever `verbose` says
    """
    handler = LogHandler(stream)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    level = logging.ERROR if quiet else _LEVELS[verbose]
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger().setLevel(level if quiet or verbose == 2 else logging.WARNING)
    logging.getLogger("streamd").setLevel(level)
    return handler


@contextmanager
def lines_inside(room: Room, submit: Submit) -> Iterator[None]:
    """Meanwhile, write the process's log lines as `LogHandler.share` says."""
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, LogHandler)]
    for handler in handlers:
        handler.share(room, submit)
    try:
        yield
    finally:
        for handler in handlers:
            handler.share()
