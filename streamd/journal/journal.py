"""The journal of one session, open for writing."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Literal

import msgspec

from streamd.events import Eos, Final, Gap
from streamd.journal.files import Entry, File, Head, JournalError, entries, finals
from streamd.journal.index import Index

Fsync = Literal["always", "interval", "never"]
_DAY_S = 86_400
_STAMP = "%Y%m%dT%H%M%S%fZ"

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Rules:
    """How journals are kept.

    `fsync`: when a line is forced to the disk itself: before it is published, when somebody calls
    `sync` (a second apart, say), or when the system likes to. A crash of the process alone, even
    `kill -9`, loses nothing in any case. `keep_days`: files that nothing was written to for so long
    are removed; 0 keeps them. `rotate_bytes`: size at which a file is full; it is also full when
    the day (UTC) ends. Whoever asks for a session has its newest file read, and everybody waits for
    that. `clock`: seconds since 1970.
    """

    fsync: Fsync = "interval"
    keep_days: int = 0
    rotate_bytes: int = 2 << 20
    clock: Callable[[], float] = time.time

    def stamp(self) -> str:
        """The time, for a file's name."""
        return datetime.fromtimestamp(self.clock(), UTC).strftime(_STAMP)

    def expire(self, index: Index) -> None:
        """Remove the files that are too old. One that is open began a day ago at most."""
        if self.keep_days:
            index.expire(self.clock() - self.keep_days * _DAY_S)


class Journal:
    """The journal of one run of a session; `Folder.open` makes it.

    Parameters
    ----------
    index : of the folder
    files : those that there are, oldest first; the newest is gone on with, torn lines are cut off
    head : of the newest file, or of the one to be made if there is none

    Raises
    ------
    JournalError : a file is damaged, or cannot be written
    """

    def __init__(self, index: Index, files: Sequence[File], head: Head, rules: Rules) -> None:
        self.session, self.epoch, self.started = head.session, head.epoch, head.started
        self.seq, self.seg, self.end_ms = head.seq, head.seg, head.end_ms
        self.settled_ms = self._written_ms = 0
        """Set it before a final is published; it is written along."""
        self.ended = ""
        """The reason why the session is over, empty while it is not."""
        self._index, self._files, self._rules = index, tuple(files), rules
        self._file = -1
        self._size = 0
        self._offsets: list[int] = []  # of each final in the newest file
        self._dirty = False
        self._day = files[-1].start[:8] if files else ""  # of the newest file
        if files:
            self._recover()
        else:
            self._begin_file()

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more; what is there can still be read."""
        return self._file < 0

    @property
    def first(self) -> int:
        """Number of the oldest final that is kept."""
        return next((f.seq for f in self._files if f.path.exists()), self.seq) + 1

    def append(self, final: Final) -> None:
        """Write the next final; it may be published when this returns.

        Raises
        ------
        JournalError : it could not be written; nothing of it is in the file
        """
        offset = self._write(final)
        self._offsets.append(offset)
        self.seq, self.seg = final.seq, final.seg
        self.end_ms = max(self.end_ms, final.end_ms)

    def note(self, gap: Gap) -> None:
        """Write that audio is missing here; raises as `append` does."""
        self._write(gap)
        self.end_ms = max(self.end_ms, gap.t_ms + gap.duration_ms)

    def mark(self, settled_ms: int) -> None:
        """Have it written how far nothing is needed any more; raises as `append` does."""
        self.settled_ms = settled_ms
        if settled_ms > self._written_ms:
            self._write(None)

    def end(self, reason: str) -> None:
        """The session is over: the next one of this name is another run. Raises as `append`."""
        self._write(Eos(seq=self.seq, reason=reason))
        self.ended = reason
        self.close()

    def read(self, after: int, upto: int) -> Iterator[Final]:
        """Give the finals behind `after` up to `upto`; what is no longer kept is left out."""
        older, newest = self._files[:-1], self._files[-1]
        places = [
            (file.path, 0)
            for file, following in zip(older, self._files[1:], strict=True)
            if file.seq < upto and following.seq > after
        ]
        if upto > max(after, newest.seq):
            places.append((newest.path, self._offsets[max(0, after - newest.seq)]))
        # Lazy, for its reader may be slow; by then other files may be open.
        return chain.from_iterable(
            finals(path, offset, after=after, upto=upto) for path, offset in places
        )

    def unsynced(self) -> list[int]:
        """A descriptor of the file if it has lines that `sync` has not forced to the disk yet."""
        dirty, self._dirty = self._dirty and not self.closed, False
        return [os.dup(self._file)] if dirty else []

    def close(self) -> None:
        """Write no more; the session may be gone on with by another process. Raises as `sync`."""
        if not self.closed:
            unsynced = self.unsynced() if self._rules.fsync != "never" else []
            os.close(self._file)
            self._file = -1
            sync(unsynced)

    def _recover(self) -> None:
        """Read the newest file, cut off what was torn, and go on behind it."""
        path = self._files[-1].path
        for end, entry in entries(path):
            self.settled_ms = self._written_ms = max(self.settled_ms, entry.settled_ms)
            event = entry.event
            if isinstance(event, Final):
                if event.seq != self.seq + 1:
                    raise JournalError(f"{path}: final {event.seq} follows {self.seq}")
                self._offsets.append(self._size)
                self.seq, self.seg = event.seq, event.seg
                self.end_ms = max(self.end_ms, event.end_ms)
            elif isinstance(event, Gap):
                self.end_ms = max(self.end_ms, event.t_ms + event.duration_ms)
            self.ended = event.reason if isinstance(event, Eos) else ""
            self._size = end
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"{path}: cannot be gone on with: {error.strerror}") from error
        if torn := os.fstat(self._file).st_size - self._size:
            os.ftruncate(self._file, self._size)
            _log.info("%s: cut off %d bytes of a torn line", path, torn)

    def _begin_file(self) -> None:
        start = self._rules.stamp()
        self._day = start[:8]
        # Files are sorted by it: also if the clock was put back, this one is the newest.
        newest = self._index.newest(self.session)
        start = start if start > newest else f"{newest}0"
        name = f"{self.session}~{start}~{self.epoch}~{self.seq}.jsonl"
        path = self._index.folder / name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except OSError as error:
            raise JournalError(f"{path}: cannot be made: {error.strerror}") from error
        self.close()
        self._file, self._size, self._offsets = file, 0, []
        begun = File(self.session, start, self.epoch, self.seq, path)
        self._files = (*self._files, begun)
        self._index.add(begun)
        head = Head(
            session=self.session,
            epoch=self.epoch,
            started=self.started,
            seq=self.seq,
            seg=self.seg,
            end_ms=self.end_ms,
        )
        self._put(Entry(settled_ms=self.settled_ms, event=head))

    def _write(self, event: Final | Gap | Eos | None) -> int:
        """Write an entry, into a new file if this one is full; give the offset of its line."""
        is_of_today = self._day == self._rules.stamp()[:8]
        if self._size >= self._rules.rotate_bytes or not is_of_today:
            self._begin_file()
            self._rules.expire(self._index)
        offset = self._size
        self._put(Entry(settled_ms=self.settled_ms, event=event))
        return offset

    def _put(self, entry: Entry) -> None:
        line, n_done = memoryview(_encode(entry) + b"\n"), 0
        try:
            while n_done < len(line):
                n_done += os.write(self._file, line[n_done:])
            self._dirty = True
            if self._rules.fsync == "always":
                sync(self.unsynced())
        except OSError as error:
            os.ftruncate(self._file, self._size)
            path = self._files[-1].path
            raise JournalError(f"{path}: cannot be written: {error.strerror}") from error
        self._size += n_done
        self._written_ms = entry.settled_ms


def sync(files: Iterable[int]) -> None:
    """Force files to the disk, where they survive a power failure, and close them; it may block.

    Raises
    ------
    JournalError : the disk fails
    """
    for file in files:
        try:
            if sys.platform == "darwin":
                os.fsync(file)
            else:
                os.fdatasync(file)
        except OSError as error:
            raise JournalError(f"the journal cannot be written: {error.strerror}") from error
        finally:
            os.close(file)
