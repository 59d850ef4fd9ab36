"""Finals on disk: they survive `kill -9` and a restart of the daemon.

Each session has files of its own with one JSON object per line, which is written before the final
is published. One process writes a folder at a time.
"""

import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from streamd.disk import lock_file, user_folder
from streamd.errors import ConfigError
from streamd.events import Eos
from streamd.journal.files import (
    FileIndex,
    Head,
    JournalError,
    head_of,
    last_run,
    lines,
    runs,
    transcript,
)
from streamd.journal.journal import Journal, JournalPolicy, sync

__all__ = [
    "AUTO",
    "Folder",
    "Head",
    "Journal",
    "JournalError",
    "JournalPolicy",
    "place",
    "runs",
    "sync",
    "transcript",
]


AUTO = "auto"
"""Stands for the system's folder for such files."""

_log = logging.getLogger(__name__)


def place(wanted: str, environ: Mapping[str, str]) -> Path:
    """Return the folder `wanted`; `AUTO` is systemd's, or else the user's own (XDG)."""
    if wanted != AUTO:
        return Path(wanted).expanduser()
    if state := environ.get("STATE_DIRECTORY"):
        return Path(state.partition(":")[0]) / "journal"
    return user_folder("state", environ) / "journal"


class Folder:
    """The folder of all journals of a daemon; a context manager, which locks it.

    If `path` does not exist, it is made, readable only by its owner. Raises `ConfigError` if it
    cannot be written, or another process writes it.
    """

    def __init__(self, path: Path, policy: JournalPolicy | None = None) -> None:
        self._policy = policy or JournalPolicy()
        self._open: list[Journal] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock_file(path / ".lock")
        except BlockingIOError:
            raise ConfigError(f"--journal: another streamd writes {path}") from None
        except OSError as error:
            raise ConfigError(f"--journal: cannot write {path}: {error.strerror}") from None
        self._index = FileIndex(path)
        self._expires_s = 0.0
        self._expire()

    def open(self, session: str) -> Journal:
        """Return the journal of a session: resumed if its last run did not end, else a new one.

        A run whose files are damaged is not resumed; the files are kept. Raises `JournalError` if
        it cannot be written.
        """
        self._expire()
        journal = self.recall(session)
        if journal is None or journal.ended:
            started = datetime.fromtimestamp(self._policy.clock(), UTC)
            head = Head(session=session, epoch=secrets.token_hex(4), started=started)
            journal = Journal(self._index, (), head, self._policy)
            self._open.append(journal)
        return journal

    def recall(self, session: str) -> Journal | None:
        """Return the journal of a session's last run, or None; of a run that ended it is closed.

        Raises `JournalError` if it cannot be written.
        """
        self._open = [journal for journal in self._open if not journal.closed]
        while files := self._index.of(session):
            run = last_run(files)
            path = run[-1].path
            try:
                if (head := head_of(path)) is not None:
                    journal = Journal(self._index, run, head, self._policy)
                    if journal.ended:
                        journal.close()
                    else:
                        self._open.append(journal)
                    return journal
            except JournalError as error:
                _log.warning("%s; the session starts over", error)
                return None
            with suppress(FileNotFoundError):
                if b"\n" in path.read_bytes():
                    _log.warning("%s: its first line is missing; the session starts over", path)
                    return None
                path.unlink()  # a crash left it without even its first line
        return None

    def audio_ms(self, session: str, epoch: str) -> int | None:
        """Return the length of a run that has ended; None if it has not, or is unknown."""
        run = [file for file in self._index.of(session) if file.epoch == epoch]
        newest = max(run, key=lambda file: file.seq, default=None)
        last = [line for _, line in lines(newest.path)][-1:] if newest else []
        return last[0].settled_ms if last and isinstance(last[0].event, Eos) else None

    def unsynced(self) -> list[int]:
        """Return the descriptors to be given to `sync`, in a thread, about once a second."""
        if self._policy.options.fsync == "never":
            return []
        return [file for journal in self._open for file in journal.unsynced()]

    def _expire(self) -> None:
        """Remove files that are too old, at most once an hour, because there may be many."""
        if self._policy.clock() >= self._expires_s:
            self._expires_s = self._policy.clock() + 3600
            self._policy.expire(self._index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for journal in self._open:
            journal.close()
        os.close(self._lock)
