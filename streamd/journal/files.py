"""The files of a journal: their names, their lines, an index of them, and how to read them.

A file holds JSON lines. The first one is a `Head`, the others are `JournalLine`.
"""

import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from streamd.errors import StreamdError
from streamd.events import Eos, Final, Gap

# "~" is in no session's name, and no name here can be "." or "..".
_NAME = re.compile(r"(?P<session>[\w.-]+)~(?P<start>\w+)~(?P<epoch>\w+)~(?P<seq>\d+)\.jsonl")


class JournalError(StreamdError):
    """The journal cannot be read or written; nothing may be published that is not in it."""


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="journal"):
    """The session of a file, and its last numbers and time before this file."""

    session: str
    epoch: str
    started: datetime
    seq: int = 0
    seg: int = 0
    end_ms: int = 0


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event. Audio before `settled_ms`, in the session's time, is no longer needed."""

    settled_ms: int = 0
    event: Head | Final | Gap | Eos | None = None


_decode = msgspec.json.Decoder(JournalLine).decode


@dataclass(frozen=True, slots=True, order=True)
class File:
    """One file of a journal; files of a session sort by age. `seq`: of the last final before it."""

    session: str
    start: str
    epoch: str
    seq: int
    path: Path


class FileIndex:
    """The files of `folder` by session, without reading the folder each time.

    A client may ask for any session as often as it likes, and the folder may hold thousands of
    files. Only the `Folder` that owns the index adds files; anybody may remove some at any time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writing: dict[str, Path] = {}
        """The newest file of each open run, by the run's epoch."""
        self._checked = 0.0, math.inf
        # Only names, since a daemon keeps those of every session that it has served.
        self._names: dict[str, tuple[str, ...]] = {}
        for file in files_in(folder):
            self.add(file)

    def of(self, session: str) -> list[File]:
        """Return the files of a session that still exist, oldest first."""
        existing = [file for file in self._noted(session) if file.path.exists()]
        self._names[session] = tuple(file.path.name for file in existing)
        if not existing:
            del self._names[session]
        return existing

    def add(self, file: File) -> None:
        """Add a new file."""
        self._names[file.session] = (*self._names.get(file.session, ()), file.path.name)

    def newest(self, session: str) -> str:
        """Return the start in the name of the session's newest file; empty if there is none."""
        return max((file.start for file in self._noted(session)), default="")

    def expire(self, now_s: float, *, keep_s: float) -> None:
        """Remove the files that were last written `keep_s` before `now_s`, in seconds since 1970.

        The files that are being written stay. If the clock was put forward, as at the start of a
        machine without a clock of its own, the other files of open runs count as written now.
        """
        before_s, self._checked = self._checked, (now_s, time.monotonic())
        was_put_forward = now_s - before_s[0] - (self._checked[1] - before_s[1]) > keep_s
        for session in list(self._names):
            for file in self._noted(session):
                with suppress(FileNotFoundError):  # another program removed it first
                    if was_put_forward and file.epoch in self.writing:
                        os.utime(file.path, (now_s, now_s))
                    elif file.path == self.writing.get(file.epoch):
                        continue
                    elif file.path.stat().st_mtime < now_s - keep_s:
                        file.path.unlink()
            self.of(session)

    def _noted(self, session: str) -> list[File]:
        """Return the files of a session, whether they still exist or not, oldest first."""
        found = (_parsed(self.folder / name) for name in self._names.get(session, ()))
        return sorted(file for file in found if file)


def files_in(folder: Path, session: str | None = None) -> list[File]:
    """Return the files of a session, or of all sessions, oldest first."""
    found = (_parsed(path) for path in folder.iterdir())
    return sorted(file for file in found if file and session in (None, file.session))


def _parsed(path: Path) -> File | None:
    name = _NAME.fullmatch(path.name)
    return name and File(name["session"], name["start"], name["epoch"], int(name["seq"]), path)


def lines(path: Path, offset: int = 0) -> Iterator[tuple[int, JournalLine]]:
    """Give the lines from `offset` on, each with the offset of its end, up to an incomplete one.

    There are none if the file no longer exists. Raises `JournalError` if a line in the middle is
    damaged, which no crash explains.
    """
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from error
    with opened as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                return  # torn by a crash, or another process is writing it now
            try:
                line: JournalLine | None = _decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                line = None
            if line is None:
                if file.read(1):
                    raise JournalError(f"{path}: damaged at byte {offset}")
                return
            offset += len(raw)
            yield offset, line


def head_of(path: Path) -> Head | None:
    """Return the head of a file; None if the file ends before it or no longer exists."""
    _, first = next(lines(path), (0, JournalLine()))
    return first.event if isinstance(first.event, Head) else None


def runs(folder: Path) -> list[Head]:
    """Return the head of every run of every session that has files left."""
    heads = (head_of(file.path) for file in files_in(folder)) if folder.is_dir() else ()
    return list({head.epoch: head for head in heads if head}.values())


def last_run(files: Sequence[File]) -> list[File]:
    """Return those of a session's files, sorted by age, that belong to its last run, in order."""
    return sorted((f for f in files if f.epoch == files[-1].epoch), key=lambda file: file.seq)


def transcript(folder: Path, session: str) -> Iterator[Final | Gap]:
    """Give the finals and gaps of a session's last run.

    Raises `JournalError` if the folder has no such session, and while it is read if a file is
    damaged.
    """
    files = files_in(folder, session) if folder.is_dir() else []
    if not files:
        raise JournalError(f"{folder} holds no session {session!r}")
    return (
        line.event
        for file in last_run(files)
        for _, line in lines(file.path)
        if isinstance(line.event, Final | Gap)
    )
