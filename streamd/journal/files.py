"""The files of a journal: their names, their lines, and how to read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from streamd.errors import StreamdError
from streamd.events import Eos, Final, Gap

# "~" is in no session's name, and no name here can be "." or "..".
_NAME = re.compile(r"(?P<session>[\w.-]+)~(?P<start>\w+)~(?P<epoch>\w+)~(?P<seq>\d+)\.jsonl")


class JournalError(StreamdError):
    """The journal cannot be written any more; nothing may be published that is not in it."""


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="journal"):
    """First line of each file: which session it is, and where it stood before."""

    session: str
    epoch: str
    started: datetime
    seq: int = 0
    seg: int = 0
    end_ms: int = 0


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. `settled_ms`: audio before this time of the session is not needed any more."""

    settled_ms: int = 0
    event: Head | Final | Gap | Eos | None = None


_decode = msgspec.json.Decoder(Entry).decode


@dataclass(frozen=True, slots=True, order=True)
class File:
    """One file of a journal; they sort by age within a session."""

    session: str
    start: str
    epoch: str
    seq: int
    """Of the last final before this file."""
    path: Path


def files_in(folder: Path, session: str | None = None) -> list[File]:
    """The files of a session, or of all, oldest first."""
    found = (file_of(path) for path in folder.iterdir())
    return sorted(file for file in found if file and session in (None, file.session))


def file_of(path: Path) -> File | None:
    """What the name of a file says, if it is one of a journal's."""
    name = _NAME.fullmatch(path.name)
    return name and File(name["session"], name["start"], name["epoch"], int(name["seq"]), path)


def entries(path: Path) -> Iterator[tuple[int, Entry]]:
    """The lines of a file, each with the offset behind it, up to one that is torn.

    There are none if the file has been removed meanwhile.

    Raises
    ------
    JournalError : a line in the middle is damaged, which no crash explains
    """
    offset = 0
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        return
    with opened as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # torn, or another process is just writing it
            try:
                entry: Entry | None = _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                entry = None
            if entry is None:
                if file.read(1):
                    raise JournalError(f"{path}: damaged at byte {offset}")
                return
            offset += len(line)
            yield offset, entry


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a session, and when it began."""

    session: str
    epoch: str
    started: datetime


def runs(folder: Path) -> list[Run]:
    """Every run of every session of which there is anything left."""
    found = {}
    for file in files_in(folder) if folder.is_dir() else ():
        _, first = next(entries(file.path), (0, Entry()))
        if isinstance(first.event, Head):
            head = first.event
            found[head.epoch] = Run(head.session, head.epoch, head.started)
    return list(found.values())


def transcript(folder: Path, session: str, epoch: str = "") -> Iterator[Final | Gap]:
    """What a journal holds of a session, of its last run unless `epoch` names another.

    Raises
    ------
    JournalError : there is none, or (while it is read) it is damaged
    """
    files = files_in(folder, session) if folder.is_dir() else []
    wanted = epoch or (files[-1].epoch if files else "")
    run = sorted((file for file in files if file.epoch == wanted), key=lambda file: file.seq)
    if not run:
        raise JournalError(f"{folder} holds no session {session!r}{epoch and f' of {epoch}'}")
    return (
        entry.event
        for file in run
        for _, entry in entries(file.path)
        if isinstance(entry.event, Final | Gap)
    )


def finals(path: Path, offset: int, *, after: int, upto: int) -> Iterator[Final]:
    """The finals behind `after` up to `upto` of a file, none if it expired meanwhile."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            final = _decode(line).event
            if isinstance(final, Final) and final.seq > after:
                if final.seq > upto:
                    return
                yield final
