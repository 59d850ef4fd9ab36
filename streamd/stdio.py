"""The process's standard streams, usable however the process was started.

It may have been started without some of them (``streamd >&-``), on a full disk, or before a reader
who leaves. Nothing here knows what is written.
"""

import os
import sys
from typing import TextIO

from streamd.errors import StreamdError


def open_missing() -> None:
    """Let a standard stream that is closed be an empty one.

    Python has None in its place, and the next file or socket that is opened would get its number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - for good
            setattr(sys, name, stream)


def put(stream: TextIO, text: str) -> None:
    """Write to standard output, at once.

    Raises
    ------
    BrokenPipeError : the reader has gone: end quietly then
    StreamdError : it cannot be written, such as on a full disk
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StreamdError(f"standard output cannot be written: {error.strerror}") from error


def settle() -> None:
    """Give up what could not be written: Python would try again at exit, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
