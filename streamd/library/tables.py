"""The database of a library: a journal, an index of its words, and files that wait.

The index is written by triggers, in the transaction of the final. It holds scripts without blanks
between words as single letters: so any part of a sentence is found, also one of two letters, which
SQLite's trigrams do not find.
"""

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from operator import methodcaller
from pathlib import Path

from streamd.errors import os_error_as
from streamd.events import Correction, Final
from streamd.library.space import shrink, sweep
from streamd.options import JournalOptions
from streamd.sinks.transcripts import corrected
from streamd.streams.journal.database import Database, place
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.tables import (
    JOURNAL,
    SCHEMA,
    Lasting,
    StoreLayout,
    cause_of,
    connected,
    event_of,
    failed,
)
from streamd.system.disk import user_folder

NAME = "library.sqlite"
SOUNDS = "audio"
"""The folder of the audio, in that of the library."""
_MERGED_PAGES = 100
"""In a step, which took 0.14 s at most in a library of 200 hours."""
UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff])")
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
TO_COMPACT = 1
"""``application_id`` of a database that is to be written anew, without what was deleted."""
_JOBS = """
    CREATE TABLE IF NOT EXISTS jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        epoch TEXT NOT NULL UNIQUE, -- of the session that it becomes
        job TEXT NOT NULL -- a `QueuedFile` in JSON
    );
"""
_NOTES = "CREATE INDEX IF NOT EXISTS notes ON events (run) WHERE seq IS NULL"
"""To find names of speakers without reading all finals."""
_TABLES = f"""
    {_JOBS}
    CREATE TABLE sounds (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        file TEXT NOT NULL,
        start_ms INTEGER NOT NULL, -- in the session
        at_ms INTEGER NOT NULL -- in the file
    );
    CREATE INDEX sounds_of_run ON sounds (run);
    CREATE VIRTUAL TABLE search USING fts5 (
        text, tokenize = "unicode61 remove_diacritics 2", prefix = "2 3"
    );
    CREATE TRIGGER index_final AFTER INSERT ON events WHEN new.seq IS NOT NULL BEGIN
        INSERT INTO search (rowid, text) VALUES (new.id, searchable(new.event));
    END;
    CREATE TRIGGER index_correction AFTER INSERT ON events WHEN new.seq IS NULL BEGIN
        UPDATE search SET text = text || char(10) || (
            SELECT meant(event, new.event) FROM events WHERE id = search.rowid
        ) WHERE rowid = (
            SELECT id FROM events WHERE run = new.run AND seq = corrected_seq(new.event)
        );
    END;
    CREATE TRIGGER forget_words AFTER DELETE ON events WHEN old.seq IS NOT NULL BEGIN
        DELETE FROM search WHERE rowid = old.id;
    END;
    CREATE TRIGGER forget_run AFTER DELETE ON runs BEGIN
        DELETE FROM sounds WHERE run = old.id;
    END;
"""

_log = logging.getLogger(__name__)


def spaced(text: str) -> str:
    """Return a text as it is indexed and searched."""
    return UNSPACED.sub(r" \1 ", text)


def _event(data: object) -> Lasting | None:
    return event_of(data.encode() if isinstance(data, str) else data)


def _searchable(data: object) -> str:
    event = _event(data)
    return spaced(event.text) if isinstance(event, Final) else ""


def _corrected_seq(data: object) -> int:
    event = _event(data)
    return event.seq if isinstance(event, Correction) else 0


def _meant(final: object, correction: object) -> str:
    """Return a final's text with a correction; what the model said is found, too."""
    before, event = _event(final), _event(correction)
    if not (isinstance(before, Final) and isinstance(event, Correction)):
        return ""
    return spaced(corrected(before, [event]).text)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.create_function("searchable", 1, _searchable, deterministic=True)
    connection.create_function("corrected_seq", 1, _corrected_seq, deterministic=True)
    connection.create_function("meant", 2, _meant, deterministic=True)


_COPIED = (
    *JOURNAL.copied,
    ("sounds", "run, file, start_ms, at_ms"),
    ("jobs", "epoch, job"),
)
_END = "PRAGMA user_version"
LAYOUT = StoreLayout(NAME, SCHEMA.replace(_END, f"{_TABLES} {_END}"), _prepare, _COPIED)


def folder_of(wanted: str | None, environ: Mapping[str, str]) -> Path:
    """Return the folder of a library: that which is `wanted`, or the user's own."""
    own = user_folder("data", environ) / "library"
    return place(wanted, environ) if wanted and wanted != "auto" else own


def opened(
    folder: Path, *, days: int = 0, most_bytes: int = 0, clock: Callable[[], float] = time.time
) -> Database:
    """Return the library in a folder, to write sessions into it; a context manager.

    Of audio it has `most_bytes`, apart from that of sessions which go on; 0: no limit. Raises as
    `Database`: one process writes a library at a time.
    """

    def attach(
        cursor: sqlite3.Cursor, run: int | None, file: str, start_ms: int, at_ms: int
    ) -> None:
        row = run, file, start_ms, at_ms
        cursor.execute("INSERT INTO sounds (run, file, start_ms, at_ms) VALUES (?, ?, ?, ?)", row)

    def tidy(n_removed: int) -> None:
        with os_error_as(JournalError, f"{folder}: old audio cannot be removed"):
            if most_bytes:
                shrink(folder / NAME, folder / SOUNDS, most_bytes)
            if days:
                sweep(folder / NAME, folder / SOUNDS)
        if days and n_removed:
            with written(folder / NAME) as connection:
                merge(connection)

    options = JournalOptions(days=days)
    database = Database(folder, options, clock=clock, layout=LAYOUT, option="--keep", tidy=tidy)
    database.attach = attach
    for added in (_JOBS, _NOTES):  # libraries of before do not have them
        database.write(methodcaller("execute", added))
    if database.select("PRAGMA application_id") == [(TO_COMPACT,)]:
        _log.info("%s is written anew, without what was deleted", database.path)
        with written(folder / NAME) as connection:
            compact(connection)
    return database


def compact(connection: sqlite3.Connection, *, is_whole: bool = True) -> None:
    """Remove the words of deleted rows from the index, and copies from a database if it `is_whole`.

    The latter takes as much space again meanwhile. If either fails, the next start does both.
    """
    try:
        merge(connection)
        if is_whole:
            connection.execute("VACUUM")
            connection.execute("PRAGMA application_id = 0")
    except sqlite3.Error as error:
        what = "copies of what was deleted stay in the library until the next start"
        _log.warning("%s: %s", what, error)


@contextmanager
def written(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect to a library that others may write, too. Raises `JournalError` if that fails."""
    try:
        with closing(connected(path, is_new=False, layout=LAYOUT)) as connection:
            connection.execute("PRAGMA busy_timeout = 20000")
            yield connection
    except sqlite3.Error as error:
        raise failed(path, cause_of(error)) from error


def merge(connection: sqlite3.Connection) -> None:
    """Merge the parts of the index: until then, it keeps the words of deleted rows.

    It is done in steps, between which a daemon stores its finals.
    """
    n_pages, before = -_MERGED_PAGES, -2
    while connection.total_changes - before > 1:  # https://sqlite.org/fts5.html#the_merge_command
        before = connection.total_changes
        connection.execute("INSERT INTO search (search, rank) VALUES ('merge', ?)", (n_pages,))
        n_pages = _MERGED_PAGES
