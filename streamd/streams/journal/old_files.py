"""Brings the journals of earlier versions into the database: files of lines of JSON.

Of each run of a session there were one or more, such as
``talk~20261128T101500000000Z~1a2b3c4d~0.jsonl``, each of which began with a `Head`.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import asdict, replace

from streamd.errors import os_error_as
from streamd.events import Eos, Final, Gap
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.lines import Fed, Head, JournalLine, read_line
from streamd.streams.journal.tables import Run, put_event, put_run

_log = logging.getLogger(__name__)


def old_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each run in a folder, oldest first; there need be no folder."""
    runs: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*~*~*~*.jsonl"), key=lambda file: file.name.split("~")[1]):
        runs.setdefault(file.name.split("~")[2], []).append(file)
    return runs


def import_files(
    folder: Path,
    write: Callable[[Callable[[sqlite3.Cursor], bool]], bool],
    sync: Callable[[], None],
) -> None:
    """Bring the files of a folder into the database, and remove them when they are on the disk.

    `write` and `sync` are those of the database. Files with damage are renamed. Raises
    `JournalError` if anything cannot be read or written; then they are left for the next time.
    """
    with os_error_as(JournalError, f"{folder}: the files of an earlier version cannot be imported"):
        if runs := old_files(folder):
            are_whole = [write(partial(_put, *run)) for run in runs.items()]
            sync()
            for is_whole, files in zip(are_whole, runs.values(), strict=True):
                for file in files:
                    if is_whole:
                        file.unlink()
                    else:
                        file.rename(file.with_suffix(".damaged"))
            _log.info("%s: imported %d runs from files of an earlier version", folder, len(runs))


def _put(epoch: str, files: list[Path], cursor: sqlite3.Cursor) -> bool:
    """Write a run, unless an import that was broken off has; return whether it had no damage."""
    is_there = cursor.execute("SELECT 1 FROM runs WHERE epoch = ?", (epoch,)).fetchone()
    is_whole, run, number = True, None, None
    for line, next_seq, written_s in _with_next(files):
        if line is None or (following := _after(run, line, next_seq)) is None:
            is_whole = False
            continue
        run = following
        if is_there:
            continue
        number = put_run(cursor, number, run, written_s)
        if isinstance(line.event, Final | Gap):
            put_event(cursor, number, line.event, written_s)
    return is_whole


def _with_next(files: list[Path]) -> Iterator[tuple[JournalLine | None, int | None, float]]:
    """Give each line with the number of the final after it, and when its file was written."""
    waiting: list[tuple[JournalLine | None, float]] = []
    for file in files:
        written_s = file.stat().st_mtime
        for line in _lines(file):
            if line is not None and isinstance(line.event, Final):
                yield from ((each, line.event.seq, at_s) for each, at_s in waiting)
                waiting.clear()
            waiting.append((line, written_s))
    yield from ((each, None, at_s) for each, at_s in waiting)


def _lines(path: Path) -> Iterator[JournalLine | None]:
    """Give the lines up to one that a crash has torn; None for one that is damaged."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                return
            try:
                yield read_line(raw)
            except ValueError:
                _log.warning("%s: line %d is damaged and left out", path, number)
                yield None


def _after(run: Run | None, line: JournalLine, next_seq: int | None) -> Run | None:
    """Return what is known of a run after a line of it; None if the line cannot follow.

    `next_seq`: number of the next final. Of a final that comes after a missing one, it must be the
    next number: one wrong number would exclude all finals after it.
    """
    event = line.event
    if isinstance(event, Head):
        run = Run(**asdict(event))
    if run is None:
        return None
    if isinstance(event, Final) and event.seq != run.seq + 1:
        is_likely = event.seq > run.seq and next_seq in (event.seq + 1, None)
        if not is_likely:
            return None
    if isinstance(event, Fed):
        run = replace(run, fed=event)
    elif isinstance(event, Final | Gap):
        run = run.after(event)
    return replace(
        run,
        finalised_ms=max(run.finalised_ms, line.finalised_ms),
        resume_state=line.resume_state or run.resume_state,
        ended=event.reason if isinstance(event, Eos) else "",
    )
