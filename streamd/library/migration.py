"""The sessions of a journal, brought into a library."""

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from streamd.events import Final
from streamd.streams.journal.database import Database
from streamd.streams.journal.tables import Lasting, Run, events_of, put_event, put_run, runs


def imported(library: Database, journal: Path) -> Iterator[Run]:
    """Write the runs of a journal's folder that a library does not have, and yield each.

    What they have was written when it was said. A run that goes on comes as it is now. Raises
    `JournalError` if either cannot be read or written; a run is written whole or not at all.
    """
    for number, run in runs(journal):
        if library.select("SELECT 1 FROM runs WHERE epoch = ?", run.epoch):
            continue
        events = [*events_of(journal, number)]
        if events:
            library.write(partial(_put, run, events))
            yield run


def _put(run: Run, events: list[Lasting], cursor: sqlite3.Cursor) -> None:
    began_s = now_s = run.started.timestamp()
    number = put_run(cursor, None, run, began_s + run.end_ms / 1000)
    for event in events:
        if isinstance(event, Final):
            now_s = began_s + event.end_ms / 1000
        put_event(cursor, number, event, now_s)
