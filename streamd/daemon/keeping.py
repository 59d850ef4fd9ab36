"""What the daemon keeps of its sessions on disk, if the user wants it: journals and recordings."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from streamd.daemon.wav import WavWriter
from streamd.events import Final, Gap, GapReason, Partial, SessionEvent
from streamd.hub import Hub
from streamd.journal import Folder, Journal
from streamd.server import Metrics
from streamd.session.timeline import Timeline
from streamd.types import Frames, ms_from_frames

_N_RECENT = 100
"""Finals in memory of a session whose journal has them all: minutes, for whoever reconnects."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are kept; None: nowhere."""

    journal: Folder | None = None
    recordings: Path | None = None

    def open(self, session: str) -> Journal | None:
        """The journal of a session to be fed, if one is kept; see `Folder.open`."""
        return None if self.journal is None else self.journal.open(session)

    def recall(self, session: str) -> Journal | None:
        """The journal of a session to be heard, if there is one; see `Folder.recall`."""
        return None if self.journal is None else self.journal.recall(session)


class Kept:
    """What is kept of one session.

    A session that an earlier process of the daemon left unfinished goes on behind what is in the
    journal: with higher numbers and later times.

    Parameters
    ----------
    journal : what there is of the session, or None if nothing is kept
    recordings : the folder for its audio, or None
    """

    def __init__(
        self, name: str, journal: Journal | None, *, recordings: Path | None, metrics: Metrics
    ) -> None:
        self.journal = journal
        self.hub = Hub(name) if journal is None else Hub(name, _N_RECENT, archive=journal)
        self.lost_ms = 0
        """In gaps."""
        self.began_ms = 0
        """Time of the session at which this process takes over; see `begin`."""
        self._timeline = Timeline()
        self._metrics, self._observe = metrics, metrics.observer()
        self._first_seg = 0
        self._waiting: list[SessionEvent] = []
        self._recordings = recordings
        self._recording: WavWriter | None = None

    def begin(self, epoch: str | None) -> None:
        """Audio comes from now on.

        `epoch`: if this is the run of the session that is gone on with, the audio goes on where it
        was settled; otherwise what was said meanwhile is lost.

        Raises
        ------
        ConfigError : it cannot be recorded
        """
        now = datetime.now(UTC)
        self._recording = _recording(self._recordings, self.hub.session, now)
        journal = self.journal
        if journal is None or not journal.seq + journal.settled_ms:
            return
        self._first_seg = journal.seg + 1  # the segment that was cut off has a number, too
        self.began_ms = journal.settled_ms
        if epoch != journal.epoch:
            since = round((now - journal.started).total_seconds() * 1000)
            last = max(journal.end_ms, journal.settled_ms)
            self.began_ms = max(since, last)
            self._waiting = [
                Gap(t_ms=last, duration_ms=self.began_ms - last, why=GapReason.RESTART)
            ]
        self._timeline.jump(0, self.began_ms)

    def heard(self, frames: Frames) -> None:
        """Record the audio; raises `StreamdError` if it cannot be written any more."""
        self._metrics.received(ms_from_frames(len(frames)))
        if self._recording is not None:
            self._recording.write(frames)

    def publish(self, events: Sequence[SessionEvent], *, now_ms: int, settled_ms: int) -> None:
        """Keep what lasts, then tell everybody.

        Parameters
        ----------
        now_ms : time of the session
        settled_ms : up to where the session needs its audio no more

        Raises
        ------
        JournalError : it cannot be kept; nobody has heard of it
        """
        if self.journal is not None:
            self.journal.settled_ms = self.began_ms + settled_ms
        for event in events:
            self._observe(event, now_ms)
        waiting, self._waiting = self._waiting, []
        for event in (*waiting, *map(self._numbered, self._timeline.correct(events))):
            if isinstance(event, Gap):
                self.lost_ms += event.duration_ms
                if self.journal is not None:
                    self.journal.note(event)
            self.hub.publish(event)

    def settle(self, settled_ms: int) -> int:
        """Keep that the session needs its audio no more before this, and give the true time."""
        settled_ms += self.began_ms
        if self.journal is not None and not self.journal.closed:
            self.journal.mark(settled_ms)
        return settled_ms

    def end(self, reason: str, *, heard_ms: int, goes_on: bool) -> None:
        """The session is over, here or (unless it `goes_on` in another process) for good.

        Raises
        ------
        StreamdError : something could not be written; the session is over all the same
        """
        try:
            if self._recording is not None:
                self._recording.close()
            if self.journal is not None and not self.journal.closed:
                if goes_on:
                    self.journal.close()
                else:
                    heard_ms += self.began_ms
                    self.journal.settled_ms = max(self.journal.settled_ms, heard_ms)
                    self.journal.end(reason)
        finally:
            self.hub.close(reason)

    def _numbered(self, event: SessionEvent) -> SessionEvent:
        if self._first_seg and isinstance(event, Partial | Final):
            return replace(event, seg=event.seg + self._first_seg)
        return event


def _recording(folder: Path | None, name: str, now: datetime) -> WavWriter | None:
    return None if folder is None else WavWriter(folder / f"{name}~{now:%Y%m%dT%H%M%S%fZ}")
