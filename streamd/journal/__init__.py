"""What was final, on disk: it survives `kill -9` and a restart of the daemon.

Each session has files of its own, one JSON object per line, written with one `write` before anybody
hears of the final. A line that was torn when the process died is cut off when the journal is opened
again. Nothing here knows who listens. One process writes a folder at a time.
"""

import fcntl
import logging
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from streamd.errors import ConfigError
from streamd.events import Eos
from streamd.journal.files import (
    Entry,
    Head,
    JournalError,
    Run,
    entries,
    runs,
    transcript,
)
from streamd.journal.index import Index
from streamd.journal.journal import Journal, Rules, sync

__all__ = [
    "AUTO",
    "Folder",
    "Journal",
    "JournalError",
    "Rules",
    "Run",
    "place",
    "runs",
    "sync",
    "transcript",
]


AUTO = "auto"
"""Stands for the folder that the system means for such files."""

_log = logging.getLogger(__name__)


def place(wanted: str, environ: Mapping[str, str]) -> Path:
    """The folder that a user means; `AUTO` is systemd's, or else the user's own (XDG)."""
    if wanted != AUTO:
        return Path(wanted).expanduser()
    if state := environ.get("STATE_DIRECTORY"):
        return Path(state.partition(":")[0]) / "journal"
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "streamd" / "journal"


class Folder:
    """The folder of all journals of a daemon; a context manager, which locks it.

    Parameters
    ----------
    path : made if need be, for its owner's eyes only

    Raises
    ------
    ConfigError : the folder cannot be made, or another process writes it
    """

    def __init__(self, path: Path, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._open: list[Journal] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--journal: cannot write {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"--journal: another streamd writes {path}") from None
        self._index = Index(path)
        self._expires_s = 0.0
        self._expire()

    def open(self, session: str) -> Journal:
        """The journal of a session: continued if its last run did not end, or else a new one.

        Files that are damaged are kept, but not gone on with.

        Raises
        ------
        JournalError : it cannot be written
        """
        self._expire()
        journal = self.recall(session)
        if journal is None or journal.ended:
            started = datetime.fromtimestamp(self._rules.clock(), UTC)
            head = Head(session=session, epoch=secrets.token_hex(4), started=started)
            journal = Journal(self._index, (), head, self._rules)
            self._open.append(journal)
        return journal

    def _expire(self) -> None:
        """Remove what is too old, if nobody has looked within the hour: there may be many files."""
        if self._rules.clock() >= self._expires_s:
            self._expires_s = self._rules.clock() + 3600
            self._rules.expire(self._index)

    def heard_ms(self, session: str, epoch: str) -> int | None:
        """How much was heard in a run of a session that is over; None if it is not, or unknown."""
        run = [file for file in self._index.of(session) if file.epoch == epoch]
        for file in sorted(run, key=lambda file: file.seq)[-1:]:
            for _, last in [*entries(file.path)][-1:]:
                return last.settled_ms if isinstance(last.event, Eos) else None
        return None

    def recall(self, session: str) -> Journal | None:
        """The journal of a session's last run, if there is one; of a run that ended it is closed.

        Raises
        ------
        JournalError : it cannot be written
        """
        self._open = [journal for journal in self._open if not journal.closed]
        while files := self._index.of(session):
            run = sorted((f for f in files if f.epoch == files[-1].epoch), key=lambda f: f.seq)
            path = run[-1].path
            try:
                _, first = next(entries(path), (0, Entry()))
                if isinstance(first.event, Head):
                    journal = Journal(self._index, run, first.event, self._rules)
                    if journal.ended:
                        journal.close()
                    else:
                        self._open.append(journal)
                    return journal
            except JournalError as error:
                _log.warning("%s; the session begins anew", error)
                return None
            path.unlink(missing_ok=True)  # it was torn before it began
        return None

    def unsynced(self) -> list[int]:
        """Files to be given to `sync`, in a thread, from time to time."""
        if self._rules.fsync == "never":
            return []
        return [file for journal in self._open for file in journal.unsynced()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for journal in self._open:
            journal.close()
        os.close(self._lock)
