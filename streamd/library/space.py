"""Which recordings of a library go: those of sessions that are gone, and the oldest ones."""

import logging
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

_BEGUN_S = 3600
"""A recording may have been written to within this time of the last final, so it goes on."""

_log = logging.getLogger(__name__)


def shrink(database: Path, sounds: Path, most_bytes: int) -> None:
    """Remove the oldest recordings of a library until it has `most_bytes` of them; log how many.

    What was written in the last hour stays. Raises `OSError` if a file cannot be removed.
    """
    files, newest_s = _known(database, sounds)
    known = {file: file.stat() for file in files if file.is_file()}
    n_bytes, n_removed = sum(each.st_size for each in known.values()), 0
    for file, stat in known.items():
        if n_bytes <= most_bytes:
            break
        if stat.st_mtime > newest_s - _BEGUN_S:
            continue
        with suppress(FileNotFoundError):  # somebody deletes it at the same time
            file.unlink()
        n_bytes -= stat.st_size
        n_removed += 1
    if n_removed:
        limit = f"journal.keep_gb={most_bytes / 1e9:g}"
        what = f"the oldest {n_removed} recordings were removed for {limit}; their text stays"
        _log.warning("%s: %s", sounds.parent, what)
    if n_bytes > most_bytes:
        _log.warning("%s: has more than %.3g GB of the last hour", sounds, most_bytes / 1e9)


def sweep(database: Path, sounds: Path) -> None:
    """Remove the recordings of sessions that are gone. Raises `OSError` if one cannot be."""
    files, newest_s = _known(database, sounds)
    for path in {*sounds.glob("*")} - {*files}:
        # One that has just begun is not known yet.
        with suppress(FileNotFoundError):  # somebody deletes it at the same time
            if path.stat().st_mtime < newest_s - _BEGUN_S:
                path.unlink()


def _known(database: Path, sounds: Path) -> tuple[list[Path], float]:
    """Return the recordings of sessions, the oldest first, and when the last final was written."""
    query = "SELECT file FROM sounds JOIN runs ON runs.id = sounds.run ORDER BY runs.id, start_ms"
    with closing(sqlite3.connect(database)) as connection:
        files = [sounds / file for (file,) in connection.execute(query)]
        return files, connection.execute("SELECT max(written) FROM runs").fetchone()[0] or 0
