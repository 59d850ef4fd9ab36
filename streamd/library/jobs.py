"""Files that wait to be transcribed into a library: rows of its database, and the files beside it.

A row has the epoch of the session that its file becomes. After a crash, that tells whether the file
was transcribed: a session of this epoch that has not ended well is begun again.
"""

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from streamd.errors import os_error_as
from streamd.events import EndReason
from streamd.library.shelf import Shelf
from streamd.library.tables import written
from streamd.server.rest import Wanted
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.tables import run_of
from streamd.system.disk import flush

UPLOADS = "uploads"
"""The folder of the files, in that of the library."""


class QueuedFile(Struct, frozen=True, kw_only=True):
    """A file that waits, is transcribed, or could not be, for the reason that `error` says.

    `epoch` is that of its session, once that has begun; `id` grows in the order in which the files
    came.
    """

    id: int = 0
    epoch: str
    name: str
    size: int
    wanted: Wanted
    state: Literal["waiting", "running", "failed"] = "waiting"
    error: str = ""


_job = msgspec.json.Decoder(QueuedFile)


class Jobs:
    """The files that wait in the library of a `shelf`. Raises `JournalError` if that fails.

    Each method may block.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.folder = shelf, shelf.folder / UPLOADS

    def new_file(self) -> Path:
        """Return where a file is received; `add` it when it is whole."""
        with os_error_as(JournalError, f"{self.folder}: cannot be made"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder / f"{secrets.token_hex(8)}.part"

    def add(self, received: Path, name: str, wanted: Wanted, key: str = "") -> int:
        """Put a file that was received behind all others; then no crash loses it.

        Returns its number. Of files with the same `key`, which becomes their epoch, only the first
        is kept; if that is no longer in the queue, its number is 0.
        """
        epoch = key or received.stem
        with (
            os_error_as(JournalError, f"{received}: cannot be kept"),
            written(self.shelf.path) as connection,
        ):
            flush(received)  # which may take long: nobody else waits for it
            connection.execute("BEGIN IMMEDIATE")
            known = "SELECT id FROM jobs WHERE epoch = ? UNION ALL "
            known += "SELECT 0 FROM runs WHERE epoch = ?"
            for (number,) in connection.execute(known, (epoch, epoch)).fetchall():
                received.unlink()
                return int(number)
            size = received.stat().st_size
            received.rename(self.path(epoch))
            flush(self.folder)
            job = QueuedFile(epoch=epoch, name=name, size=size, wanted=wanted)
            row = epoch, msgspec.json.encode(job).decode()
            put = connection.execute("INSERT INTO jobs (epoch, job) VALUES (?, ?)", row)
            connection.execute("COMMIT")
        return put.lastrowid or 0

    def listed(self) -> list[QueuedFile]:
        """Return all jobs, the oldest first."""
        found = []
        for number, data in self._rows("SELECT id, job FROM jobs ORDER BY id"):
            with suppress(ValueError):  # damaged, or of a newer version
                found.append(replace(_job.decode(data), id=number))
        return found

    def next(self) -> QueuedFile | None:
        """Return the oldest job that is to be done, or None; forget those that are done."""
        for job in self.listed():
            if job.state == "failed":
                continue
            if any(ended == EndReason.END for _, ended in self._sessions(job)):
                self.remove(job)
            elif self.path(job.epoch).is_file():
                return job
            else:
                self.change(replace(job, state="failed", error="the file is gone: send it again"))
        return None

    def change(self, job: QueuedFile) -> None:
        """Write what is known of a job, unless somebody has removed it."""
        data = msgspec.json.encode(job).decode()
        self._rows("UPDATE jobs SET job = ? WHERE id = ?", data, job.id)

    def remove(self, job: QueuedFile) -> None:
        """Forget a job and its file; its session stays."""
        self._rows("DELETE FROM jobs WHERE id = ?", job.id)
        self.path(job.epoch).unlink(missing_ok=True)

    def forget_session(self, job: QueuedFile) -> None:
        """Delete the session that a job has begun, with its audio."""
        for number, _ in self._sessions(job):
            self.shelf.delete(number)

    def sweep(self) -> None:
        """Remove files of which no job knows: of uploads that broke off."""
        known = {self.path(job.epoch).name for job in self.listed()}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name not in known:
                path.unlink(missing_ok=True)

    def session(self, job: QueuedFile) -> int:
        """Return the number of the session that a job has begun; 0 if it has not."""
        return next((number for number, _ in self._sessions(job)), 0)

    def _sessions(self, job: QueuedFile) -> list[tuple[int, str]]:
        found = []
        for number, data in self._rows("SELECT id, run FROM runs WHERE epoch = ?", job.epoch):
            with suppress(ValueError):
                found.append((number, run_of(data).ended))
        return found

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with written(self.shelf.path) as connection:
            return connection.execute(query, values).fetchall()

    def path(self, epoch: str) -> Path:
        """Return where the file of a job is."""
        return self.folder / epoch
