"""What can go wrong, sorted by who has to act; each kind has its exit code.

A message is one line that names the culprit and the cure. Anything else that is raised is a bug and
must crash loudly. Exit codes: 0 ok, 1 the engine failed, 2 usage, 3 audio, 4 model, 5 bind,
6 what `watch --until` waits for was not heard, 130 second Ctrl-C.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOMEM
from typing import TypeGuard


class StreamdError(Exception):
    """Something that the user, the machine or the peer can put right."""

    exit_code = 1


def is_bug(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether this is an error that nobody but a developer can put right."""
    return isinstance(error, Exception) and not isinstance(error, StreamdError)


def lacks_memory(error: BaseException | None) -> bool:
    """Whether it says that there is too little memory, which may be otherwise later."""
    is_refused = isinstance(error, OSError) and error.errno == ENOMEM
    return is_refused or isinstance(error, MemoryError | EngineMemoryError)


class EngineError(StreamdError):
    """The inference runtime failed on a model that it had accepted."""


class EngineMemoryError(EngineError):
    """The inference runtime found too little memory for a pass, which may be otherwise later."""


class OneSessionError(EngineError):
    """The runtime failed in one session; the others can go on."""


class ConfigError(StreamdError):
    """An option, a variable or a configuration file says something impossible."""

    exit_code = 2


class SourceError(StreamdError):
    """The audio cannot be had: no such device, unreadable file, wrong format."""

    exit_code = 3


class ModelError(StreamdError):
    """The model's files are missing, damaged or of another architecture."""

    exit_code = 4


class BindError(StreamdError):
    """The server cannot open its port."""

    exit_code = 5


class WireError(StreamdError):
    """The peer sent what the protocol does not allow; only its own connection suffers.

    `code` is the protocol's error code (docs/protocol.md), the message explains it to a person;
    `heard_ms`: how much of the peer's audio was heard, if it has to know that.
    """

    def __init__(self, code: str, message: str, *, heard_ms: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.heard_ms = heard_ms


def for_clients(problem: str, error: BaseException) -> str:
    """Return what a client may know of an error whose message names files of this machine."""
    cause = error if isinstance(error, OSError) else error.__cause__
    reason = cause.strerror if isinstance(cause, OSError) else None
    return f"{problem}: {reason or 'see the log of the server'}"


@contextmanager
def os_error_as(kind: type[StreamdError], problem: str) -> Iterator[None]:
    """Raise an `OSError` of the block as an error of this kind: the problem, and its reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{problem}: {error.strerror}") from error


def how_to_install(extra: str) -> str:
    """Say how to get the libraries of an extra; the package index does not have this package."""
    return f"in a copy of the repository, pip install '.[{extra}]'"
