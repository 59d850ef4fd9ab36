"""The journal of one session, open for writing."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from streamd.events import Eos, Final, Gap
from streamd.journal.files import File, FileIndex, Head, JournalError, JournalLine, lines
from streamd.options import JournalOptions

_DAY_S = 86_400
_STAMP = "%Y%m%dT%H%M%S%fZ"

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


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


class Journal:
    """The journal of one run of a session; `Folder.open` makes it.

    Of `files`, those of the run, oldest first, the newest is continued; an incomplete line at its
    end is cut off. If there are none, a file is made. `head` is that of the newest file, or of the
    one to be made. Raises `JournalError` if a file is damaged, or cannot be written.
    """

    def __init__(
        self, index: FileIndex, files: Sequence[File], head: Head, policy: JournalPolicy
    ) -> None:
        self.session, self.epoch, self.started = head.session, head.epoch, head.started
        self.seq, self.seg, self.end_ms = head.seq, head.seg, head.end_ms
        self.ended = ""
        """The reason why the session is over; empty while it is not."""
        self.settled_ms = self._written_ms = 0
        """Time of the session before which no audio is needed, not even after a crash.

        Every line carries it. Set it before the final that settles the audio is appended: then the
        final and the time are written at once, and a session that is resumed after a crash gets
        each word exactly once. `mark` writes it without an event.
        """
        self._index, self._files, self._policy = index, tuple(files), policy
        self._file = -1
        self._size = 0
        self._offsets: list[int] = []  # of each final in the newest file
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

    def append(self, final: Final) -> None:
        """Write the next final; it may be published when this returns.

        Raises `JournalError` if it could not be written; then the file holds nothing of it.
        """
        offset = self._write(final)
        self._offsets.append(offset)
        self.seq, self.seg = final.seq, final.seg
        self.end_ms = max(self.end_ms, final.end_ms)

    def note(self, gap: Gap) -> None:
        """Write a gap. Raises as `append` does."""
        self._write(gap)
        self.end_ms = max(self.end_ms, gap.t_ms + gap.duration_ms)

    def mark(self) -> None:
        """Write the settled time if it has moved since the last line. Raises as `append` does."""
        if self.settled_ms > self._written_ms:
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
            places.append((newest.path, self._offsets[max(0, after - newest.seq)]))
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
        for end, line in lines(path):
            self.settled_ms = self._written_ms = max(self.settled_ms, line.settled_ms)
            event = line.event
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
            raise JournalError(f"{path}: cannot be resumed: {error.strerror}") from error
        self._index.writing[self.epoch] = path
        if torn := os.fstat(self._file).st_size - self._size:
            os.ftruncate(self._file, self._size)
            _log.info("%s: cut off an incomplete line of %d bytes", path, torn)

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
        )
        data = _encode(JournalLine(settled_ms=self.settled_ms, event=head)) + b"\n"
        try:
            file = os.open(path, flags, 0o600)
            try:
                _write_all(file, data)
            except OSError:
                os.close(file)
                path.unlink()
                raise
        except OSError as error:
            raise JournalError(f"{path}: cannot be created: {error.strerror}") from error
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

    def _write(self, event: Final | Gap | Eos | None) -> int:
        """Write a line, into a new file if this one is full or of yesterday; return its offset."""
        is_of_today = self._day == self._policy.stamp()[:8]
        if self._size >= self._policy.options.rotate_bytes or not is_of_today:
            try:
                self._continue_in(*self._create_file())
            except JournalError as error:
                if self.closed:
                    raise
                _log.warning("%s; the file before it is continued", error)
            self._policy.expire(self._index)
        offset = self._size
        self._put(JournalLine(settled_ms=self.settled_ms, event=event))
        return offset

    def _put(self, line: JournalLine) -> None:
        data = _encode(line) + b"\n"
        try:
            _write_all(self._file, data)
        except OSError as error:
            # Part of the line may be there: without it the file ends with a whole line again.
            os.ftruncate(self._file, self._size)
            path = self._files[-1].path
            raise JournalError(f"{path}: cannot be written: {error.strerror}") from error
        self._dirty = True
        self._size += len(data)
        self._written_ms = line.settled_ms
        if self._policy.options.fsync == "always":
            self._sync()

    def _sync(self) -> None:
        _force(self._file)
        self._dirty = False


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


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
    try:
        if sys.platform == "darwin":
            os.fsync(file)
        else:
            os.fdatasync(file)
    except OSError as error:
        raise JournalError(f"the journal cannot be written: {error.strerror}") from error
