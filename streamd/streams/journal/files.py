"""Finals on disk: they survive `kill -9` and a restart of the daemon.

Each session has files of its own with one JSON object per line, which is written before the final
is published: a `JournalLine`, of which the first has a `Head`. One process writes a folder at a
time.
"""

import asyncio
import logging
import math
import os
import re
import secrets
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from streamd.errors import ConfigError, os_error_as
from streamd.events import Eos, Final, Gap, SessionEvent
from streamd.options import JournalOptions
from streamd.streams.journal import (
    Claimant,
    Fed,
    Head,
    JournalError,
    JournalLine,
    Lost,
    Release,
    contradiction,
    read_line,
)
from streamd.system.disk import is_nearly_full, lock_file, user_folder, write_all
from streamd.types import ResumeState

AUTO = "auto"
"""Stands for the system's folder for such files."""
_DAY_S = 86_400
_STAMP = "%Y%m%dT%H%M%S%fZ"
# "~" is in no session's name, and no name here can be "." or "..".
_NAME = re.compile(r"(?P<session>[\w.-]+)~(?P<start>\w+)~(?P<epoch>\w+)~(?P<seq>\d+)\.jsonl")

_log = logging.getLogger(__name__)


_encode = msgspec.json.Encoder().encode


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
        self._checked = math.inf, 0.0  # by the clock, and since the machine started
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


def lines(
    path: Path, offset: int = 0, *, damaged: Callable[[str], None] | None = None
) -> Iterator[tuple[int, JournalLine]]:
    """Give the lines from `offset` on, each with the offset of its end, up to an incomplete one.

    There are none if the file no longer exists. A damaged line is an empty one, since the others
    do not need it; `damaged` gets a message that names it. Raises `JournalError` if the file cannot
    be read.
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
                line = read_line(raw)
            except ValueError:
                line = JournalLine()
                if damaged is not None:
                    damaged(f"{path}: the line at byte {offset} is damaged and left out")
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
    """Give the finals and gaps of a session's last run; the log names damaged lines.

    Raises `JournalError` if the folder has no such session, and while it is read if a file cannot
    be read.
    """
    files = files_in(folder, session) if folder.is_dir() else []
    if not files:
        raise JournalError(f"{folder} holds no session {session!r}; streamd export lists them")
    return (
        line.event
        for file in last_run(files)
        for _, line in lines(file.path, damaged=_log.warning)
        if isinstance(line.event, Final | Gap)
    )


@dataclass(frozen=True, slots=True)
class JournalPolicy:
    """The options of journals and the clock, which gives the seconds since 1970."""

    options: JournalOptions = field(default_factory=JournalOptions)
    clock: Callable[[], float] = time.time

    def stamp(self) -> str:
        """The time, for the name of a file."""
        return datetime.fromtimestamp(self.clock(), UTC).strftime(_STAMP)

    def expire(self, index: FileIndex) -> None:
        """Remove the files that are too old."""
        if self.options.days:
            index.expire(self.clock(), keep_s=self.options.days * _DAY_S)


class FileJournal:
    """The journal of one run of a session; `Folder.open` makes it.

    Of `files`, those of the run, oldest first, the newest is continued; an incomplete line at its
    end is cut off. If there are none, a file is made. `head` is that of the newest file, or of the
    one to be made. Raises `JournalError` if a file contradicts itself, or if one cannot be read or
    written.
    """

    def __init__(
        self, index: FileIndex, files: Sequence[File], head: Head, policy: JournalPolicy
    ) -> None:
        self.session, self.epoch, self.started = head.session, head.epoch, head.started
        self.seq, self.seg, self.end_ms = head.seq, head.seg, head.end_ms
        self.fed = head.fed
        self.ended = ""
        self.finalised_ms = self.kept_ms = 0
        self.resume_state: ResumeState | None = None
        self.is_shared, self.lag_ms = False, 0
        self._index, self._files, self._policy = index, tuple(files), policy
        self._file = -1
        self._size = 0
        self._offsets: list[tuple[int, int]] = []  # number and place of the newest file's finals
        self._dirty = False
        self._day = files[-1].start[:8] if files else ""  # of the newest file
        if files:
            self._recover()
        else:
            self._continue_in(*self._create_file())

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more; finals can still be read."""
        return self._file < 0

    @property
    def first(self) -> int:
        """Number of the oldest final that is kept."""
        return next((f.seq for f in self._files if f.path.exists()), self.seq) + 1

    def joined(self, relay: Callable[[Fed | SessionEvent], None], lost: Lost) -> None:
        """Do nothing: there is no other node."""

    def store(self, event: SessionEvent, release: Release) -> None:
        """Write a final or a gap, then release the event; see `Journal.store`."""
        if isinstance(event, Final):
            self.append(event)
        elif isinstance(event, Gap):
            self.note(event)
        release(event)

    def append(self, final: Final) -> None:
        """Write the next final; it may be published when this returns.

        Raises `JournalError` if it could not be written; then the file holds nothing of it.
        """
        offset = self._write(final)
        self._offsets.append((final.seq, offset))
        self.seq, self.seg = final.seq, final.seg
        self.end_ms = max(self.end_ms, final.end_ms)

    def note(self, gap: Gap) -> None:
        """Write a gap. Raises as `append` does."""
        self._write(gap)
        self.end_ms = max(self.end_ms, gap.t_ms + gap.duration_ms)

    def feed(self, fed: Fed) -> None:
        """Write who feeds the session now, if that is new. Raises as `append` does."""
        if fed != self.fed:
            self._write(fed)
            self.fed = fed

    def mark(self) -> None:
        """Write the progress if less audio is needed then. Raises as `append` does."""
        if self.resume_state is not None and self.resume_state.start_ms > self.kept_ms:
            self._write(None)

    def end(self, reason: str) -> None:
        """Write that the session is over; its name begins another run next time."""
        self._write(Eos(seq=self.seq, reason=reason))
        self.ended = reason
        self.close()

    def read(self, after: int, upto: int) -> Iterator[Final]:
        """Give the finals with ``after < seq <= upto`` that are still kept."""
        older, newest = self._files[:-1], self._files[-1]
        places = [
            (file.path, 0)
            for file, following in zip(older, self._files[1:], strict=True)
            if file.seq < upto and following.seq > after
        ]
        if upto > max(after, newest.seq):
            first = bisect(self._offsets, (after, math.inf))
            places += [(newest.path, offset) for _, offset in self._offsets[first : first + 1]]
        # Lazy, because its reader may be slow; the newest file may be another one by then.
        return (
            line.event
            for path, offset in places
            for _, line in lines(path, offset)
            if isinstance(line.event, Final) and after < line.event.seq <= upto
        )

    def unsynced(self) -> list[int]:
        """Return a descriptor of the file if it has lines that `sync` has not forced to disk."""
        if self.closed or not self._dirty:
            return []
        try:
            descriptor = os.dup(self._file)
        except OSError as error:  # too many clients: the next call tries again
            _log.warning("the journal is not synced: %s", error.strerror)
            return []
        self._dirty = False
        return [descriptor]

    def close(self) -> None:
        """Write no more; another process may resume the session. Raises as `sync` does."""
        if not self.closed:
            file, self._file = self._file, -1
            self._index.writing.pop(self.epoch, None)
            try:
                if self._dirty and self._policy.options.fsync != "never":
                    _force(file)
            finally:
                os.close(file)

    def _recover(self) -> None:
        """Read the newest file and continue after its last whole line; cut off the rest."""
        path = self._files[-1].path
        found = [*lines(path, damaged=_log.warning)]
        seqs = [line.event.seq for _, line in found if isinstance(line.event, Final)]
        following = iter([*seqs[1:], None])
        for end, line in found:
            event = line.event
            if isinstance(event, Final) and not self._follows(event.seq, next(following)):
                _log.warning("%s: final %d follows %d; it is left out", path, event.seq, self.seq)
            else:
                self._take(line)
            self._size = end
        if why := contradiction(self.fed, self.resume_state, self.finalised_ms):
            raise JournalError(f"{path}: {why}")
        with os_error_as(JournalError, f"{path}: cannot be resumed"):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._index.writing[self.epoch] = path
        if torn := os.fstat(self._file).st_size - self._size:
            os.ftruncate(self._file, self._size)
            _log.info("%s: cut off an incomplete line of %d bytes", path, torn)

    def _follows(self, seq: int, following: int | None) -> bool:
        """Whether a final that is read has its own number; `following` is that of the next one.

        It is one more than the last, or after a damaged line one less than the next.
        """
        return seq == self.seq + 1 or (seq > self.seq and following in {seq + 1, None})

    def _take(self, line: JournalLine) -> None:
        """Take a line of the newest file, which begins at `_size`."""
        self.finalised_ms = max(self.finalised_ms, line.finalised_ms)
        self._keep(line)
        event = line.event
        if isinstance(event, Final):
            self._offsets.append((event.seq, self._size))
            self.seq, self.seg = event.seq, event.seg
            self.end_ms = max(self.end_ms, event.end_ms)
        elif isinstance(event, Gap):
            self.end_ms = max(self.end_ms, event.t_ms + event.duration_ms)
        elif isinstance(event, Fed):
            self.fed = event
        self.ended = event.reason if isinstance(event, Eos) else ""

    def _create_file(self) -> tuple[File, int, int]:
        """Create the next file; return it with its descriptor and size. Raises `JournalError`."""
        start = self._policy.stamp()
        # Files sort by this name. If the clock was set back, it still has to be the newest.
        newest = self._index.newest(self.session)
        start = start if start > newest else f"{newest}0"
        name = f"{self.session}~{start}~{self.epoch}~{self.seq}.jsonl"
        path = self._index.folder / name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        head = Head(
            session=self.session,
            epoch=self.epoch,
            started=self.started,
            seq=self.seq,
            seg=self.seg,
            end_ms=self.end_ms,
            fed=self.fed,
        )
        line = JournalLine(
            finalised_ms=self.finalised_ms, resume_state=self.resume_state, event=head
        )
        with os_error_as(JournalError, f"{path}: cannot be created"):
            file = os.open(path, flags, 0o600)
            try:
                write_all(file, data := _encode(line) + b"\n")
            except OSError:
                os.close(file)
                path.unlink()
                raise
        return File(self.session, start, self.epoch, self.seq, path), file, len(data)

    def _continue_in(self, begun: File, descriptor: int, size: int) -> None:
        self.close()
        self._file, self._size, self._offsets, self._dirty = descriptor, size, [], True
        self._day = self._policy.stamp()[:8]  # that in the name is later if the clock was put back
        self._files = (*self._files, begun)
        self._index.add(begun)
        self._index.writing[self.epoch] = begun.path
        if self._policy.options.fsync == "always":
            self._sync()

    def _write(self, event: Fed | Final | Gap | Eos | None) -> int:
        """Write a line, into a new file if this one is full or of yesterday; return its offset."""
        is_of_today = self._day == self._policy.stamp()[:8]
        if self._size >= self._policy.options.rotate_bytes or not is_of_today:
            try:
                self._continue_in(*self._create_file())
            except JournalError as error:
                if self.closed:
                    raise
                _log.warning("%s; the file before it is continued", error)
            else:
                self._policy.expire(self._index)
        offset = self._size
        state = self.resume_state if event is None or isinstance(event, Final) else None
        line = JournalLine(finalised_ms=self.finalised_ms, resume_state=state, event=event)
        data = _encode(line) + b"\n"
        with os_error_as(JournalError, f"{self._files[-1].path}: cannot be written"):
            try:
                write_all(self._file, data)
            except OSError:
                # Part of the line may be there: without it the file ends with a whole line again.
                os.ftruncate(self._file, self._size)
                raise
        self._dirty = True
        self._size += len(data)
        self._keep(line)
        if self._policy.options.fsync == "always":
            self._sync()
        return offset

    def _keep(self, line: JournalLine) -> None:
        if line.resume_state is not None:
            self.resume_state, self.kept_ms = line.resume_state, line.resume_state.start_ms

    def _sync(self) -> None:
        _force(self._file)
        self._dirty = False


def sync(files: Iterable[int]) -> None:
    """Force files to the disk, where they survive a power failure, and close them; it may block.

    Raises `JournalError` if the disk fails.
    """
    for file in files:
        try:
            _force(file)
        finally:
            os.close(file)


def _force(file: int) -> None:
    with os_error_as(JournalError, "the journal cannot be written"):
        if sys.platform == "darwin":
            os.fsync(file)
        else:
            os.fdatasync(file)


def place(wanted: str, environ: Mapping[str, str]) -> Path:
    """Return the folder `wanted`; `AUTO` is systemd's, or else the user's own (XDG)."""
    if wanted != AUTO:
        return Path(wanted).expanduser()
    if state := environ.get("STATE_DIRECTORY"):
        return Path(state.partition(":")[0]) / "journal"
    return user_folder("state", environ) / "journal"


class Folder:
    """The folder of all journals of a daemon; a context manager, which locks it.

    If `path` does not exist, it is made, readable only by its owner. Raises `ConfigError` if it
    cannot be written, or another process writes it.
    """

    def __init__(self, path: Path, policy: JournalPolicy | None = None) -> None:
        self._policy = policy or JournalPolicy()
        self._open: list[FileJournal] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock_file(path / ".lock")
        except BlockingIOError:
            raise ConfigError(f"--journal: another streamd writes {path}") from None
        except OSError as error:
            raise ConfigError(f"--journal: cannot write {path}: {error.strerror}") from None
        self._opened_s = time.monotonic()
        self._index = FileIndex(path)
        self._expires_s = 0.0
        self._expire()

    async def run(self) -> None:
        """Force to the disk, once a second, what was written."""
        while True:
            await asyncio.sleep(1)
            await asyncio.to_thread(sync, self.unsynced())

    async def written(self) -> None:
        """Do nothing: what is stored is written."""

    async def prepare(self, session: str, claimant: Claimant | None, *, have: str) -> str | None:
        """Do nothing: no other process writes the folder."""
        return None

    def is_fed_elsewhere(self, session: str) -> bool:
        """No session is."""
        return False

    def trouble(self) -> str:
        """Return nothing: what cannot be written raises `JournalError`."""
        return ""

    def is_nearly_full(self) -> bool:
        """Whether there is only room for the sessions that run."""
        return is_nearly_full(self._index.folder)

    @property
    def age_s(self) -> float:
        """How long ago the folder was opened."""
        return time.monotonic() - self._opened_s

    def open(self, session: str) -> FileJournal:
        """Return the journal of a session: resumed if its last run did not end, else a new one.

        A run whose newest file contradicts itself or lacks its first line is not resumed; the files
        are kept. Raises `JournalError` if it cannot be written.
        """
        self._expire()
        journal = self.recall(session)
        if journal is None or journal.ended:
            started = datetime.fromtimestamp(self._policy.clock(), UTC)
            head = Head(session=session, epoch=secrets.token_hex(4), started=started)
            journal = FileJournal(self._index, (), head, self._policy)
            self._open.append(journal)
        return journal

    def recall(self, session: str) -> FileJournal | None:
        """Return the journal of a session's last run, or None; of a run that ended it is closed.

        Raises `JournalError` if it cannot be written.
        """
        self._open = [journal for journal in self._open if not journal.closed]
        while files := self._index.of(session):
            run = last_run(files)
            path = run[-1].path
            try:
                if (head := head_of(path)) is not None:
                    journal = FileJournal(self._index, run, head, self._policy)
                    if journal.ended:
                        journal.close()
                    else:
                        self._open.append(journal)
                    return journal
            except JournalError as error:
                _log.warning("%s; the session starts over", error)
                return None
            with suppress(FileNotFoundError):
                if b"\n" in path.read_bytes():
                    _log.warning("%s: its first line is missing; the session starts over", path)
                    return None
                path.unlink()  # a crash left it without even its first line
        return None

    def audio_ms(self, session: str, epoch: str) -> int | None:
        """Return the length of a run that has ended; None if it has not, or is unknown."""
        run = [file for file in self._index.of(session) if file.epoch == epoch]
        newest = max(run, key=lambda file: file.seq, default=None)
        last = [line for _, line in lines(newest.path)][-1:] if newest else []
        return last[0].finalised_ms if last and isinstance(last[0].event, Eos) else None

    def unsynced(self) -> list[int]:
        """Return the descriptors to be given to `sync`, in a thread."""
        if self._policy.options.fsync == "never":
            return []
        return [file for journal in self._open for file in journal.unsynced()]

    def _expire(self) -> None:
        """Remove files that are too old, at most once an hour, because there may be many."""
        if self._policy.clock() >= self._expires_s:
            self._expires_s = self._policy.clock() + 3600
            self._policy.expire(self._index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for journal in self._open:
            journal.close()
        os.close(self._lock)
