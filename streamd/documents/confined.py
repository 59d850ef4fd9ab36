"""Reads a document in a process of its own, which can do nothing else.

A few kilobytes of a PDF or of a zip can stand for gigabytes, and a library that reads them may have
bugs. The process gets the document's descriptor, and gives up all else before it reads from it.
"""

import logging
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from threading import Timer
from typing import IO

from streamd.documents.texts import LIBRARIES, MOST_CHARACTERS, kind_of, prepare, text_of
from streamd.errors import ConfigError, how_to_install
from streamd.system.sandbox import child_command, child_environment, confine, limit_cpu

MOST_BYTES = 50 << 20
"""Of a document: slides with many pictures."""
_MAX_BYTES = 512 << 20
"""What the process may allocate besides what its libraries take: a document of `MOST_BYTES`, and
what is unpacked of it."""
_CPU_S = 30
"""CPU time of the process. A PDF of 400 pages of text takes a few seconds."""
_WALL_S = 120.0
"""After which it is ended, whatever it does."""
_TEXT, _REFUSED = b"t", b"e"


class DocumentError(ConfigError):
    """A document cannot be read; the message says why, and does not name it."""


def read_document(file: IO[bytes], name: str) -> str:
    """Return the text of a document whose `name` says what it is; it may take a minute.

    `file` has a descriptor, of which all is read. Raises `DocumentError`.
    """
    kind = kind_of(name)
    if kind in LIBRARIES and find_spec(LIBRARIES[kind]) is None:
        raise DocumentError(f"{kind} needs libraries: {how_to_install('context')}")
    file.seek(0, os.SEEK_END)
    if file.tell() > MOST_BYTES:
        raise DocumentError(f"it has more than {MOST_BYTES >> 20} MB: save it without pictures")
    file.seek(0)
    with subprocess.Popen(
        child_command(__name__, kind),
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
        start_new_session=True,  # Ctrl-C is for the daemon
    ) as process:
        assert process.stdout is not None
        timer = Timer(_WALL_S, process.kill)
        timer.start()
        try:
            # A process that was taken over may write without end; UTF-8 has up to 4 bytes.
            answer = process.stdout.read(4 * MOST_CHARACTERS + 1)
            process.stdout.close()
            process.wait()
        finally:
            timer.cancel()
            process.kill()
    text = answer[1:].decode(errors="replace")
    if answer[:1] == _TEXT and process.returncode == 0:
        return text
    if answer[:1] == _REFUSED:
        raise DocumentError(text[:200])
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise DocumentError("reading it takes too long: save it as plain text")
    raise DocumentError("it is damaged: save it as plain text")


# -- in the process -------------------------------------------------------------------------------


def _answer(kind: str) -> bytes:
    try:
        return _TEXT + text_of(sys.stdin.buffer.read(), kind).encode(errors="replace")
    except MemoryError:
        return _REFUSED + b"it takes too much memory: save it as plain text"
    except ValueError as error:
        return _REFUSED + f"it cannot be read: {error}".encode()
    except Exception as error:  # noqa: BLE001 - libraries raise anything for what is damaged
        why = f"it is damaged, or no {kind} ({type(error).__name__}): save it as plain text"
        return _REFUSED + f"it cannot be read: {why}".encode()


def _main() -> None:
    kind = sys.argv[1]
    limit_cpu(_CPU_S)
    prepare(kind)
    confine(_MAX_BYTES)
    logging.disable()
    sys.stdout.buffer.write(_answer(kind))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
