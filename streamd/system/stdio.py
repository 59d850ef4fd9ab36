"""The process's standard streams, log messages on standard error, and the end of the process.

The process may have been started with some of them closed (``streamd >&-``), on a full disk, or
with a reader that leaves. Standard output belongs to the captions.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from threading import Thread
from typing import Literal, TextIO

from streamd.errors import StreamdError

Suspend = Callable[[], AbstractContextManager[None]]
Submit = Callable[[Callable[[logging.LogRecord], None], logging.LogRecord], object]

ENGINE_THREAD = "inference"
"""Begins the names of threads that may be inside the model's runtime when the process ends."""


def open_missing() -> None:
    """Open the null device in place of each standard stream that is closed.

    Otherwise Python has None there, and the next file or socket would get the stream's number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - stays open
            setattr(sys, name, stream)


def put(stream: TextIO, text: str) -> None:
    """Write to standard output and flush.

    Raises `BrokenPipeError` if the reader has gone, which is a reason to end quietly, and
    `StreamdError` for any other failure, such as a full disk.
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StreamdError(f"standard output cannot be written: {error.strerror}") from error


def settle() -> None:
    """Drop output that cannot be written: Python would try again at exit, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Drop what native code writes to standard error in the context, and all else that is written.

    So it is for moments, such as the loading of a library that tells what it has chosen.
    """
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def leave(threads: Sequence[Thread], code: int, *, wait_s: float) -> None:
    """End the process with `code` if one of these threads computes on after `wait_s` seconds.

    It is for the last moment (`atexit`), when all else is written: at its exit Python would free
    the model's runtime under the thread, which crashes ("terminate called without an active
    exception").
    """
    until_s = time.monotonic() + wait_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        settle()
        os._exit(code)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream that it may share with live captions; see `lines_inside`."""

    suspend: Suspend = nullcontext
    submit: Submit | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record above the captions."""
        if self.submit:
            self.submit(self._write, record)
        else:
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        with self.suspend():
            super().emit(record)


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"streamd: {level}{record.getMessage()}"


class _JsonFormatter(logging.Formatter):
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


def log_to(stream: TextIO, *, form: Literal["text", "json"], verbose: int = 0) -> None:
    """Send all log messages of the process to `stream`, and nowhere else.

    `verbose` is -1 for errors only, 0 for information, 1 for details, 2 for the libraries'
    messages, too.
    """
    handler = LogHandler(stream)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    level = {-1: logging.ERROR, 0: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger().setLevel(level if verbose in (-1, 2) else logging.WARNING)
    logging.getLogger("streamd").setLevel(level)


@contextmanager
def lines_inside(suspend: Suspend, submit: Submit) -> Iterator[None]:
    """In the context, write each log line inside `suspend()`, which hides the display.

    Lines come from any thread; `submit` runs a function in the one that draws the captions.
    """
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, LogHandler)]
    for handler in handlers:
        handler.suspend, handler.submit = suspend, submit
    try:
        yield
    finally:
        for handler in handlers:
            handler.suspend, handler.submit = nullcontext, None
