"""Brings the journals of earlier versions into the database: files of lines of JSON.

Of each run of a session there were one or more, such as
``talk~20261128T101500000000Z~1a2b3c4d~0.jsonl``, whose last number is that of the final before it.
Each began with a `Head`.
"""

import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import asdict, replace

from streamd.errors import os_error_as
from streamd.events import Eos, Final, Gap
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.lines import Fed, Head, JournalLine, read_line
from streamd.streams.journal.tables import Run, put_event, put_run

_NAME = re.compile(r"(?P<session>[\w.-]+)~(?P<start>\w+)~(?P<epoch>\w+)~(?P<seq>\d+)\.jsonl")

_log = logging.getLogger(__name__)


class OldFile(NamedTuple):
    """One file; those of a session sort by age."""

    session: str
    start: str
    epoch: str
    seq: int
    path: Path


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
        runs = _runs_in(folder)
        whole = [write(partial(_put, run)) for run in runs]
        if runs:
            sync()
            _log.info("%s: imported %d runs from files of an earlier version", folder, len(runs))
        for is_whole, run in zip(whole, runs, strict=True):
            for file in run:
                if is_whole:
                    file.path.unlink()
                else:
                    file.path.rename(file.path.with_suffix(".damaged"))


def has_files(folder: Path) -> bool:
    """Whether there is anything to import."""
    return folder.is_dir() and bool(_runs_in(folder))


def _runs_in(folder: Path) -> list[list[OldFile]]:
    named = ((path, _NAME.fullmatch(path.name)) for path in folder.iterdir())
    files = sorted(
        OldFile(name["session"], name["start"], name["epoch"], int(name["seq"]), path)
        for path, name in named
        if name
    )
    begun = {file.epoch: file.start for file in reversed(files)}
    files.sort(key=lambda file: (begun[file.epoch], file.epoch, file.seq))
    return [list(run) for _, run in groupby(files, key=lambda file: file.epoch)]


def _put(files: list[OldFile], cursor: sqlite3.Cursor) -> bool:
    """Write a run, unless an import that was broken off has; return whether it had no damage."""
    known = cursor.execute("SELECT 1 FROM runs WHERE epoch = ?", (files[0].epoch,)).fetchone()
    is_whole, run, number = True, None, None
    for file in [] if known else files:
        written_s = file.path.stat().st_mtime
        for line in _lines(file.path):
            event = line and line.event
            follows = isinstance(event, Head) or run is not None
            if isinstance(event, Final) and run is not None and event.seq <= run.seq:
                follows = False  # its number is damaged
            if line is None or not follows:
                is_whole = False
                continue
            run = _after(run, line)
            number = number or put_run(cursor, None, run, written_s)
            if isinstance(event, Final | Gap):
                put_event(cursor, number, event, written_s)
        if run is not None:
            put_run(cursor, number, run, written_s)
    return is_whole


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


def _after(run: Run | None, line: JournalLine) -> Run:
    """Return what is known of a run after a line of it, which is a head if it is the first."""
    event = line.event
    if isinstance(event, Head):
        run = Run(**{**(asdict(run) if run else {}), **asdict(event)})
    assert run is not None
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
