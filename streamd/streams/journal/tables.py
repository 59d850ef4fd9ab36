"""The SQLite database of a folder of journals, and who only reads it, as `streamd export`.

It can be read while a daemon writes it. A page of the file that is damaged costs only the rows
that are on it.
"""

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from streamd.errors import os_error_as
from streamd.events import Final, Gap, Note
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.lines import Head
from streamd.types import ResumeState

NAME = "journal.db"
VERSION = 1
"""``user_version`` of the database: a later version of streamd may add tables and columns."""
SCHEMA = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        epoch TEXT NOT NULL UNIQUE,
        run TEXT NOT NULL, -- a `Run` in JSON
        written REAL NOT NULL -- in seconds since 1970
    );
    CREATE INDEX runs_of_session ON runs (session);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        seq INTEGER, -- of a final
        event TEXT NOT NULL, -- in JSON, as listeners get it
        written REAL NOT NULL
    );
    CREATE UNIQUE INDEX events_of_run ON events (run, seq);
    CREATE INDEX events_by_age ON events (written);
    CREATE TRIGGER forget_events AFTER DELETE ON runs BEGIN
        DELETE FROM events WHERE run = old.id;
    END;
    PRAGMA user_version = {VERSION};
    COMMIT;
"""
_PUT_RUN = """
    INSERT INTO runs (id, session, epoch, run, written) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET run = excluded.run, written = excluded.written
"""  # again, if somebody else has removed it
_PUT_EVENT = "INSERT INTO events (run, seq, event, written) VALUES (?, ?, ?, ?)"
_MOST_FAILURES = 2_000
"""Failures in sequence after which no more rows are looked for: with these steps, 20,000 rows."""
_REASONS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The file of a database, its tables, and what a connection needs that writes them.

    `copied` are the tables that are copied when it is damaged, with their columns besides ``id``.
    """

    name: str = NAME
    schema: str = SCHEMA
    prepare: Callable[[sqlite3.Connection], object] = lambda connection: None
    copied: tuple[tuple[str, str], ...] = (
        ("runs", "session, epoch, run, written"),
        ("events", "run, seq, event, written"),
    )


JOURNAL = StoreLayout()


class Run(Head, frozen=True, kw_only=True, tag="run"):
    """A run of a session, and what another process needs to go on with it.

    `ended`: the reason why it is over; empty while it is not.
    """

    finalised_ms: int = 0
    resume_state: ResumeState | None = None
    ended: str = ""

    def after(self, event: "Lasting") -> "Run":
        """Return what is known after an event."""
        if isinstance(event, Note):
            return self
        if isinstance(event, Final):
            end_ms = max(self.end_ms, event.end_ms)
            return replace(self, seq=event.seq, seg=event.seg, end_ms=end_ms)
        return replace(self, end_ms=max(self.end_ms, event.t_ms + event.duration_ms))


Lasting = Final | Gap | Note
"""The events that are stored."""

_run = msgspec.json.Decoder(Run)
_event: msgspec.json.Decoder[Lasting] = msgspec.json.Decoder(Lasting)


def run_of(data: object) -> Run:
    """Decode a run. Raises `ValueError`."""
    try:
        return _run.decode(data if isinstance(data, bytes) else b"")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def event_of(data: object) -> Lasting | None:
    """Decode an event; None if it is damaged, or of a kind that only a newer version knows."""
    try:
        return _event.decode(data if isinstance(data, bytes) else b"")
    except (ValueError, RecursionError):
        return None


def put_run(cursor: sqlite3.Cursor, number: int | None, run: Run, now_s: float) -> int:
    """Write a run, a new one if it has no number yet; return that."""
    row = number, run.session, run.epoch, _encode(run).decode(), now_s
    written = cursor.execute(_PUT_RUN, row).lastrowid
    return written or 0 if number is None else number


def put_event(cursor: sqlite3.Cursor, number: int, event: Lasting, now_s: float) -> None:
    """Write an event of the run with this number."""
    seq = event.seq if isinstance(event, Final) else None
    cursor.execute(_PUT_EVENT, (number, seq, _encode(event).decode(), now_s))


def revise_event(cursor: sqlite3.Cursor, number: int | None, final: Final) -> None:
    """Replace a final of the run with this number."""
    query = "UPDATE events SET event = ? WHERE run = ? AND seq = ?"
    cursor.execute(query, (_encode(final).decode(), number, final.seq))


def connected(
    path: Path, *, is_new: bool = True, layout: StoreLayout = JOURNAL
) -> sqlite3.Connection:
    """Open a database to write it; it need not exist if it `is_new`. Any thread may use it."""
    if is_new:
        path.touch(mode=0o600)  # SQLite gives its other files the permissions of this one
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes  # what is no UTF-8 concerns only its row
    layout.prepare(connection)
    # Zeros over what is deleted; on macOS, fsync alone lets data stay in the disk's cache.
    connection.executescript(
        "PRAGMA secure_delete = ON; PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON"
    )
    return connection


def _surviving(
    path: Path, table: str, columns: str, where: str = "", *, warns: bool = True
) -> Iterator[tuple[Any, ...]]:
    """Give the rows one by one, their numbers first, but for those that cannot be read.

    Raises `JournalError` if none can. With `warns`, the log says that the file is damaged.
    """
    query = f"SELECT id, {columns} FROM {table} NOT INDEXED WHERE id > ? {where} "
    after = n_failed = 0
    is_alone = not (os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists())
    # In a folder that is read-only, SQLite cannot make the files by which it shares this one.
    uri = f"{path.absolute().as_uri()}?{'immutable=1' if is_alone else 'mode=ro'}"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.text_factory = bytes
        while n_failed < _MOST_FAILURES:
            try:
                row = connection.execute(f"{query} ORDER BY id LIMIT 1", (after,)).fetchone()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not is_damage(error):
                    cause = cause_of(error)
                    raise failed(path, cause, "read") from cause
                if warns and not n_failed:
                    _log.warning("%s is damaged: %s; the rest of it is read", path, error)
                n_failed += 1
                after += 1 + n_failed // 100  # the first row may have any number
                continue
            if row is None:
                return
            if row[0] > after:  # where pages refer to wrong ones, it need not be
                n_failed = 0
                yield row
            else:
                n_failed += 1
            after = max(after + 1, row[0])


def copy(damaged: Path, whole: Path, layout: StoreLayout = JOURNAL) -> None:
    """Copy what can be read of a damaged database into a new one."""
    whole.unlink(missing_ok=True)
    with closing(connected(whole, layout=layout)) as target:
        target.executescript(f"PRAGMA auto_vacuum = INCREMENTAL; {layout.schema} BEGIN;")
        for table, columns in layout.copied:
            places = ", ".join("?" for _ in ("id", *columns.split(",")))
            put = f"INSERT OR IGNORE INTO {table} (id, {columns}) VALUES ({places})"
            for row in _surviving(damaged, table, columns, warns=False):
                as_text = (x.decode(errors="replace") if isinstance(x, bytes) else x for x in row)
                target.execute(put, (*as_text,))
        target.execute("COMMIT")


def runs(folder: Path) -> list[tuple[int, Run]]:
    """Return every run of every session in a folder, with its number. Raises `JournalError`."""
    path, found = folder / NAME, []
    with os_error_as(JournalError, f"{path}: cannot be read"):
        if not path.exists():
            return []
    for number, data in _surviving(path, "runs", "run"):
        try:
            found.append((number, run_of(data)))
        except ValueError as error:
            _log.warning("%s: run %d is damaged: %s", path, number, error)
    return found


def transcript(folder: Path, session: str) -> Iterator[Lasting]:
    """Give the events of a session's last run, in order; the log names damaged ones.

    Raises `JournalError` if the folder has no such session, and while it is read if that fails.
    """
    numbers = [number for number, run in runs(folder) if run.session == session]
    if not numbers:
        raise JournalError(f"{folder} holds no session {session!r}; streamd export lists them")
    return events_of(folder, numbers[-1])


def events_of(folder: Path, run: int) -> Iterator[Lasting]:
    """Give the events of the run with this number; see `transcript`."""
    path = folder / NAME
    for number, data in _surviving(path, "events", "event", f"AND run = {run}"):
        if (event := event_of(data)) is not None:
            yield event
        else:
            _log.warning("%s: event %d is damaged and left out", path, number)


def is_damage(error: Exception) -> bool:
    """Whether it says that the file is damaged, or its tables are others: no query is wrong."""
    if isinstance(error, UnicodeDecodeError):  # in a name that the message repeats
        return True
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def is_busy(error: Exception) -> bool:
    """Whether it says that another program writes the database."""
    return _code(error) == sqlite3.SQLITE_BUSY


def cause_of(error: Exception) -> Exception:
    """Return the error of the system that SQLite has met, or its own."""
    number = _REASONS.get(_code(error))
    return error if number is None else OSError(number, os.strerror(number))


def failed(path: Path, cause: Exception, what: str = "written") -> JournalError:
    """Return an error that names the file and the cause."""
    reason = cause.strerror if isinstance(cause, OSError) else cause
    return JournalError(f"{path}: cannot be {what}: {reason}")


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
