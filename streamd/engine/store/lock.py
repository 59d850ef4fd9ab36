"""One process at a time does what would go wrong in two."""

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def alone(lock: Path, what: str) -> Iterator[None]:
    """Wait until no other process has the lock, and keep it meanwhile.

    Parameters
    ----------
    lock : a file, made if it is not there; it stays
    what : what the other process does, for people

    Raises
    ------
    OSError : the file cannot be made
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process is %s; waiting for it", what)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
