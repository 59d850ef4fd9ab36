"""Finals in SQLite (`tables`): they survive `kill -9` and a restart of the daemon.

Of each run of a session there is a row with what another process needs to go on with it, and one
for each final and gap. A final and what follows from it are written in one transaction, before the
final is published. One process writes a folder at a time.

A transaction is first in ``journal.db-wal``, where it survives the process. Once a second a thread
forces that to the disk, where it survives a power failure. When there is much of it, the thread
copies it into the database (https://sqlite.org/wal.html). The next transaction then waits for the
disk, so this is done rarely. All files stay open, since there may be no free descriptor later.
"""

import asyncio
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from streamd.errors import ConfigError, StreamdError
from streamd.events import Final, Note, SessionEvent
from streamd.options import JournalOptions
from streamd.streams.journal.journals import JournalError, Journals, Moved, Release
from streamd.streams.journal.lines import Fed, contradiction
from streamd.streams.journal.tables import (
    JOURNAL,
    VERSION,
    Lasting,
    Run,
    StoreLayout,
    cause_of,
    connected,
    copy,
    event_of,
    failed,
    is_busy,
    is_damage,
    put_event,
    put_run,
    revise_event,
    run_of,
)
from streamd.system.disk import flush, force, lock_file, user_folder

AUTO = "auto"
"""Stands for the system's folder for such files."""
_DAY_S, _HOUR_S = 86_400, 3600
_WAL_BYTES = 4 << 20
"""Size from which ``journal.db-wal`` is copied into the database, and to which it shrinks again."""
_MOST_WAL_PAGES = 4096
"""Size from which a transaction copies it itself, since the thread never comes to the end."""
_PATIENCE_S = 20.0
"""How long another program may write, before all sessions end. Before that, SQLite waits 5 s each
time; systemd would end a process that does nothing else for 30 s (``WatchdogSec=``)."""
_BATCH = 100
"""Finals that are read at once: readers may be slow, and an open query would keep all of the
journal's later transactions in ``journal.db-wal``."""

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class DatabaseJournal:
    """The journal of one run of a session; `Database` makes it.

    `number` is that of its row, None if it is to be begun, or is gone. Raises `JournalError` if it
    cannot be written.
    """

    moves, lag_ms = False, 0

    def __init__(self, database: "Database", run: Run, number: int | None = None) -> None:
        self._database, self.number = database, number
        self.finalised_ms, self.resume_state = run.finalised_ms, run.resume_state
        self.closed = bool(run.ended)
        self._take(run)
        if number is None:
            self._write(run)
        database.known.add(self)
        if not self.closed:
            database.writing.add(self)

    @property
    def first(self) -> int:
        query = "SELECT min(seq) FROM events WHERE run = ?"
        ((first,),) = self._database.select(query, self.number)
        return self.seq + 1 if first is None else int(first)

    def store(self, event: SessionEvent, release: Release) -> None:
        if isinstance(event, Lasting):
            self._write(self._run.after(event), event)
        release(event)

    def revise(self, final: Final) -> None:
        self._database.write(lambda cursor: revise_event(cursor, self.number, final))

    def notes(self) -> Iterator[Note]:
        query = "SELECT event FROM events WHERE run = ? AND seq IS NULL ORDER BY id"
        for (data,) in self._database.select(query, self.number):
            event = event_of(data)
            if isinstance(event, Note):
                yield event

    def joined(self, relay: Callable[[Fed | SessionEvent], None], moved: Moved) -> None:
        """There are no other nodes."""

    def attach(self, sound: str, start_ms: int, at_ms: int) -> None:
        if (attach := self._database.attach) is not None:
            self._database.write(lambda cursor: attach(cursor, self.number, sound, start_ms, at_ms))

    def feed(self, fed: Fed) -> None:
        if fed != self.fed:
            self._write(replace(self._run, fed=fed))

    def mark(self) -> None:
        if self.resume_state is not None and self.resume_state.start_ms > self.kept_ms:
            self._write(self._run)

    def restore(self) -> None:
        """Find the row of the run in another database; if it has not ended, write it there."""
        row = self._database.select("SELECT id FROM runs WHERE epoch = ?", self.epoch)
        # A row may be lost while its events are not. But its number may also be that of another
        # session's run by now, whose text nobody must read here.
        query = "SELECT 1 FROM runs WHERE id = ?"
        if not row and (self.closed or self._database.select(query, self.number)):
            self.number = None
        elif row:
            ((self.number,),) = row
        if not self.closed:
            self._write(self._run)

    def end(self, reason: str) -> None:
        self._write(replace(self._run, ended=reason))
        self.close()

    def close(self) -> None:
        self.closed = True
        self._database.writing.discard(self)

    def read(self, after: int, upto: int) -> Iterator[Final]:
        query = "SELECT seq, event FROM events WHERE run = ? AND seq > ? AND seq <= ? "
        query += f"ORDER BY seq LIMIT {_BATCH}"
        while rows := self._database.select(query, self.number, after, upto):
            before = after
            for seq, data in rows:
                event = event_of(data)
                if isinstance(event, Final) and event.seq == seq > after:  # or it is damaged
                    yield event
                    after = seq
            after = max(after, rows[-1][0])
            if after == before:
                return

    def _write(self, run: Run, event: Lasting | None = None) -> None:
        """Write all or, if `JournalError` is raised, nothing."""
        now_s = self._database.clock()
        run = replace(run, finalised_ms=self.finalised_ms, resume_state=self.resume_state)

        def put(cursor: sqlite3.Cursor) -> int:
            number = put_run(cursor, self.number, run, now_s)
            if event is not None:
                put_event(cursor, number, event, now_s)
            return number

        self.number = self._database.write(put)
        self._take(run)

    def _take(self, run: Run) -> None:
        self._run, self.epoch, self.started = run, run.epoch, run.started
        self.seq, self.seg, self.end_ms = run.seq, run.seg, run.end_ms
        self.fed, self.ended = run.fed, run.ended
        self.kept_ms = run.resume_state.start_ms if run.resume_state else 0


def place(wanted: str, environ: Mapping[str, str]) -> Path:
    """Return the folder `wanted`; `AUTO` is systemd's, or else the user's own (XDG)."""
    if wanted != AUTO:
        return Path(wanted).expanduser()
    if state := environ.get("STATE_DIRECTORY"):
        return Path(state.partition(":")[0]) / "journal"
    return user_folder("state", environ) / "journal"


class Database(Journals):
    """The journals of all sessions of a daemon; a context manager, which locks their folder.

    If `folder` does not exist, it is made, readable only by its owner. Its file has the tables of
    `layout`; `option` names it in errors, and `tidy` is called, once an hour, with the number of
    old rows that were removed. When the database turns out to be damaged, it is replaced by what
    can be read of it, and kept beside that. Raises `ConfigError` if the folder cannot be written,
    or another process writes it.
    """

    def __init__(
        self,
        folder: Path,
        options: JournalOptions | None = None,
        *,
        clock: Callable[[], float] = time.time,
        layout: StoreLayout = JOURNAL,
        option: str = "--journal",
        tidy: Callable[[int], object] = int,
    ) -> None:
        self.folder, self.path, self.clock = folder, folder / layout.name, clock
        self._layout, self._tidy = layout, tidy
        self._recovered = self.path.with_name(f"{layout.name}.recovered")
        self.writing: set[DatabaseJournal] = set()
        """The journals of runs that have not ended."""
        self.attach: Callable[[sqlite3.Cursor, int | None, str, int, int], object] | None = None
        """Writes which file has the audio of a run: see `Journal.attach`."""
        self.known: WeakSet[DatabaseJournal] = WeakSet()
        """All journals that somebody may read or write."""
        self._options = options or JournalOptions()
        self._expired_s = self._checked_s = 0.0  # by the clock, and since the machine started
        self._is_unsynced = True
        self._is_to_copy = False  # what was deleted is in the database until then
        self._files = ExitStack()
        self._in_use = threading.Lock()
        """Held while another thread uses the files, or they are closed."""
        try:
            self._lock = self._new_lock()
        except BlockingIOError:
            raise ConfigError(f"{option}: another streamd writes {folder}") from None
        except OSError as error:
            raise ConfigError(f"{option}: cannot write {folder}: {error.strerror}") from None
        try:
            self._connect()
            self.expire()
        except (StreamdError, OSError, sqlite3.Error) as error:
            self._disconnect()
            os.close(self._lock)
            is_ours = isinstance(error, StreamdError)
            why = error if is_ours else failed(self.path, cause_of(error))
            raise ConfigError(f"{option}: {why}") from None

    def _new_lock(self) -> int:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return lock_file(self.folder / ".lock")

    def _connect(self) -> None:
        """Open the database and, for `sync`, its files."""
        is_copy = self._put_recovered()
        self._cursor = self._files.enter_context(
            closing(connected(self.path, layout=self._layout))
        ).cursor()
        ((version,),) = self.select("PRAGMA user_version")
        if version > VERSION:
            raise JournalError(f"a newer streamd has written {self.path}")
        self.select("PRAGMA auto_vacuum = INCREMENTAL")  # before there is a table
        self.select("PRAGMA journal_mode = WAL")
        self.select(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        self.select(f"PRAGMA wal_autocheckpoint = {_MOST_WAL_PAGES}")
        level = "FULL" if self._options.fsync == "always" else "NORMAL"
        self.select(f"PRAGMA synchronous = {level}")
        if version == 0:
            self._do(lambda cursor: cursor.executescript(self._layout.schema))
        self._copier = self._files.enter_context(closing(connected(self.path, is_new=False)))
        self._copier.execute("PRAGMA wal_checkpoint").fetchall()  # it opens its files with that
        flush(self.folder)  # SQLite itself forces the new names of its files to the disk later
        self._wal = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CLOEXEC)
        self._files.callback(os.close, self._wal)
        self._inode = os.stat(self.path).st_ino
        for journal in [*self.known]:
            journal.restore()
        if is_copy:  # events of runs that are lost; another run may get their number
            orphans = "DELETE FROM events WHERE run NOT IN (SELECT id FROM runs)"
            self.write(lambda cursor: cursor.execute(orphans))

    def _disconnect(self) -> None:
        self._inode = 0  # which another file may get now
        with self._in_use:
            self._files.close()

    async def run(self) -> None:
        """Force to the disk, once a second, what was written; remove what is too old."""
        while True:
            await asyncio.sleep(1)
            self.renew_if_removed()
            if self._is_unsynced:
                self._is_unsynced = False
                await asyncio.to_thread(self.sync)
            if abs(self.clock() - self._expired_s) >= _HOUR_S:
                self.expire()

    def renew_if_removed(self) -> None:
        """Begin a new database if somebody has removed it: what is written would be lost.

        Its folder may be gone, too. Raises `JournalError`.
        """
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                return
        _log.warning("%s has been removed; a new one begins", self.path)
        self._disconnect()
        try:
            if not (self.folder / ".lock").exists():
                removed, self._lock = self._lock, self._new_lock()
                os.close(removed)
            self._connect()
        except (sqlite3.Error, OSError) as error:
            cause = cause_of(error)
            raise failed(self.path, cause) from cause

    def sync(self) -> None:
        """Force to the disk what was written. Any thread may call it; it may block.

        Raises `JournalError`.
        """
        try:
            with self._in_use:
                force(self._wal)
                if self._is_to_copy or os.fstat(self._wal).st_size > _WAL_BYTES:
                    self._is_to_copy = False
                    self._copier.execute("PRAGMA wal_checkpoint").fetchall()
        except (sqlite3.Error, OSError) as error:
            if is_busy(error):
                self._is_unsynced = True
            elif not is_damage(error):  # which the next call finds that reads or writes
                cause = cause_of(error)
                raise failed(self.path, cause) from cause

    def open(self, session: str) -> DatabaseJournal:
        journal = self.recall(session)
        return self.begin(session) if journal is None or journal.ended else journal

    def begin(
        self, session: str, *, epoch: str = "", started: datetime | None = None
    ) -> DatabaseJournal:
        """Return the journal of a new run of a session; `epoch` names it, unless it is empty.

        It has `started` now, unless that is given. Raises as `open`.
        """
        started = started or datetime.fromtimestamp(self.clock(), UTC)
        return DatabaseJournal(
            self, Run(session=session, epoch=epoch or secrets.token_hex(4), started=started)
        )

    def recall(self, session: str) -> DatabaseJournal | None:
        newest = "SELECT ifnull(max(seq), 0) FROM events WHERE run = runs.id"
        query = f"SELECT id, run, ({newest}) FROM runs WHERE session = ? ORDER BY id DESC LIMIT 1"
        for number, data, seq in self.select(query, session):
            try:
                run = run_of(data)
                why = contradiction(run.fed, run.resume_state, run.finalised_ms)
                if not isinstance(seq, int) or seq > run.seq:
                    why = f"its last final is {run.seq}, but there is {seq!r}"
                if not why:
                    return DatabaseJournal(self, run, number)
            except ValueError as error:
                why = str(error)
            _log.warning("%s: session %s: %s; it starts over", self.path, session, why)
        return None

    def audio_ms(self, session: str, epoch: str) -> int | None:
        query = "SELECT run FROM runs WHERE session = ? AND epoch = ?"
        with suppress(ValueError):
            for (data,) in self.select(query, session, epoch):
                run = run_of(data)
                return run.finalised_ms if run.ended else None
        return None

    def select(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows that a query finds. Raises `JournalError`."""
        return self._do(lambda cursor: cursor.execute(query, values).fetchall())

    def write(self, put: Callable[[sqlite3.Cursor], ResultT]) -> ResultT:
        """Call in a transaction; if it raises `JournalError`, nothing is left of it."""

        def transact(cursor: sqlite3.Cursor) -> ResultT:
            with cursor.connection:
                cursor.execute("BEGIN IMMEDIATE")
                return put(cursor)

        result = self._do(transact)
        self._is_unsynced = True
        return result

    def expire(self) -> None:
        """Remove what is older than the user wants; of runs that have not ended, only the events.

        If the clock was put forward by more than that, as at the start of a machine without a clock
        of its own, the events of these runs count as written now.
        """
        keep_s, now_s, ran_s = self._options.days * _DAY_S, self.clock(), time.monotonic()
        leap_s = now_s - self._expired_s - (ran_s - self._checked_s)
        was_put_forward = self._expired_s > 0 and leap_s > keep_s
        self._expired_s, self._checked_s = now_s, ran_s
        running = [(now_s, journal.number) for journal in self.writing]

        def remove(cursor: sqlite3.Cursor) -> int:
            if was_put_forward:
                cursor.executemany("UPDATE events SET written = ? WHERE run = ?", running)
            cursor.executemany("UPDATE runs SET written = ? WHERE id = ?", running)
            old = (now_s - keep_s,)
            n_removed = cursor.execute("DELETE FROM events WHERE written < ?", old).rowcount
            is_empty = "NOT EXISTS (SELECT 1 FROM events WHERE run = runs.id)"
            query = f"DELETE FROM runs WHERE written < ? AND {is_empty}"
            return n_removed + cursor.execute(query, old).rowcount

        n_removed = self.write(remove) if keep_s else 0
        self._is_to_copy |= n_removed > 0
        self._tidy(n_removed)
        if keep_s:
            self._do(lambda cursor: cursor.executescript("PRAGMA incremental_vacuum"))

    def _do(self, work: Callable[[sqlite3.Cursor], ResultT]) -> ResultT:
        """Call, and again if the database was damaged. Raises `JournalError`.

        While another program writes the database, all wait for it.
        """
        began_s, is_told = time.monotonic(), False
        try:
            while True:
                try:
                    return work(self._cursor)
                except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                    if is_busy(error) and time.monotonic() - began_s < _PATIENCE_S:
                        if not is_told:
                            what = "another program writes it; all streams wait"
                            _log.warning("%s: %s", self.path, what)
                        is_told = True
                        time.sleep(0.05)  # SQLite does not wait in all cases
                        continue
                    if not is_damage(error):
                        raise
                    self._replace(error)
                    return work(self._cursor)
        except (sqlite3.Error, OSError) as error:
            cause = cause_of(error)
            raise failed(self.path, cause) from cause

    def _replace(self, error: Exception) -> None:
        """Go on with a new database, which has what can be read of this one."""
        what = "what can be read of it is copied into a new one"
        _log.warning("%s is damaged: %s; %s", self.path, error, what)
        self._disconnect()
        new = self.folder / "new.db"
        copy(self.path, new, self._layout)
        os.replace(new, self._recovered)
        self._connect()

    def _put_recovered(self) -> bool:
        """Put a whole copy in the place of the damaged database; return whether there is one.

        The process may have died on the way, so the name of the damaged one follows from the copy.
        """
        if is_there := self._recovered.exists():
            now = datetime.fromtimestamp(self._recovered.stat().st_mtime, UTC)
            old = self.folder / f"damaged-{now:%Y%m%dT%H%M%S%f}.db"
            # The log comes first: it must not be taken for a part of the copy.
            for suffix in ("-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{old}{suffix}")
            os.replace(self._recovered, self.path)
            _log.warning("%s: the damaged database is kept as %s", self.path, old)
        return is_there

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for journal in [*self.writing]:
            journal.close()
        self._disconnect()
        os.close(self._lock)
