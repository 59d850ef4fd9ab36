"""One session of the daemon: audio in, windows to the engine, events out to hub, journal and disk.

`Stream` drives the pure `Session`; `SessionOutput` takes its events.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from streamd.daemon.wav import WavWriter
from streamd.errors import StreamdError
from streamd.events import EndReason, Fault, Gap, GapReason, SessionEvent, Stats
from streamd.hub import Hub
from streamd.journal import Folder, Journal
from streamd.server import Metrics
from streamd.session import Session
from streamd.types import Frames, Hypothesis, Window, ms_from_frames

_N_RECENT = 100
"""Finals in memory of a session whose journal has them all: minutes, for reconnecting clients."""


@dataclass(frozen=True, slots=True)
class SessionStorage:
    """The folders for journals and recordings; None: nothing is stored."""

    journal: Folder | None = None
    recordings: Path | None = None

    def record(self, session: str) -> WavWriter | None:
        """Begin a recording, if there is a folder for them; raises `ConfigError`."""
        if self.recordings is None:
            return None
        return WavWriter(self.recordings / f"{session}~{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")


class SessionOutput:
    """Writes the events of one session to its journal and its hub, and its audio to a file.

    Without a `journal` the events are not stored, and without a recording the audio is not.
    """

    def __init__(self, name: str, journal: Journal | None, *, metrics: Metrics) -> None:
        self.hub = Hub(name) if journal is None else Hub(name, _N_RECENT, journal=journal)
        self.lost_ms = 0
        """Sum of all gaps."""
        self._journal = journal
        self._metrics, self._observe = metrics, metrics.observer()
        self._waiting: list[SessionEvent] = []
        self._recording: WavWriter | None = None

    def begin(self, epoch: str | None, recording: WavWriter | None) -> tuple[int, int] | None:
        """Prepare for audio; return the time and the segment at which the session is resumed.

        Returns None if there is nothing to resume. If `epoch` is the run in the journal, the audio
        continues where it was settled; otherwise the time since then is a gap.
        """
        self._recording = recording
        journal = self._journal
        if journal is None or not journal.seq + journal.settled_ms:
            return None
        began_ms = journal.settled_ms
        if epoch != journal.epoch:
            since_ms = round((datetime.now(UTC) - journal.started).total_seconds() * 1000)
            last_ms = max(journal.end_ms, journal.settled_ms)
            began_ms = max(since_ms, last_ms)
            gap_ms = began_ms - last_ms
            self._waiting = [Gap(t_ms=last_ms, duration_ms=gap_ms, why=GapReason.RESTART)]
        return began_ms, journal.seg + 2  # the interrupted segment used a number, too

    def record(self, frames: Frames) -> None:
        """Store the audio."""
        self._metrics.received(ms_from_frames(len(frames)))
        if self._recording is not None:
            self._recording.write(frames)

    def publish(self, events: Sequence[SessionEvent], *, now_ms: int, settled_ms: int) -> None:
        """Write what lasts to the journal, then publish the events.

        `now_ms` and `settled_ms` are those of the session; see `Journal.settled_ms`. Raises
        `JournalError` before anything is published that is not in the journal.
        """
        if self._journal is not None:
            self._journal.settled_ms = settled_ms
        for event in events:
            self._observe(event, now_ms)
        waiting, self._waiting = self._waiting, []
        for event in (*waiting, *events):
            if isinstance(event, Gap):
                self.lost_ms += event.duration_ms
                if self._journal is not None:
                    self._journal.note(event)
            self.hub.publish(event)

    def settle(self, settled_ms: int) -> None:
        """Write to the journal that audio before this time is not needed any more."""
        if self._journal is not None and not self._journal.closed:
            self._journal.settled_ms = settled_ms
            self._journal.mark()

    def end(self, reason: str, *, now_ms: int, resumable: bool) -> None:
        """End the session; a `resumable` one may be continued by another process.

        Raises `StreamdError` if something could not be written; the session is over all the same.
        """
        journal = self._journal
        try:
            if self._recording is not None:
                self._recording.close()
            if journal is not None and not journal.closed:
                if resumable:
                    journal.close()
                else:
                    journal.settled_ms = max(journal.settled_ms, now_ms)
                    journal.end(reason)
        finally:
            self.hub.close(reason)


class Stream:
    """One session: `feed` takes its audio, `hub` publishes its events.

    Parameters
    ----------
    room : frames that may wait for the engine before a source has to wait, too
    wake : called when a window is due
    failed : called when the output could not be written
    """

    def __init__(
        self,
        session: Session,
        output: SessionOutput,
        *,
        room: int,
        wake: Callable[[], None],
        failed: Callable[[StreamdError], None],
    ) -> None:
        self.session, self.hub = session, output.hub
        self._output = output
        self._room, self._wake, self._failed = room, wake, failed
        self._moved = asyncio.Event()
        self._is_out = False  # a window, to be transcribed
        self._begun = self._ended = False
        self.began_ms = 0
        """Time of the session at which this process took over from an earlier one."""
        self.has_source = True
        """False while a device that feeds the session is unplugged."""
        self.due_since: float | None = None
        """Time of the event loop since which a window of the session is due; None if none is."""

    def begin(self, epoch: str | None = None, recording: WavWriter | None = None) -> None:
        """Prepare for audio, of a client that fed the run `epoch` before; see `SessionOutput`."""
        self._begun = True
        if (resumed := self._output.begin(epoch, recording)) is not None:
            self.began_ms, seg = resumed
            self.session.resume(self.began_ms, seg)

    @property
    def is_fed(self) -> bool:
        """Whether audio may come; a session of an earlier process may only have listeners."""
        return self._begun and not self.hub.closed

    @property
    def lag_ms(self) -> int:
        """Duration of the speech that waits for the engine."""
        return ms_from_frames(self.session.backlog)

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        self._output.record(frames)
        self._publish(self.session.feed(frames))

    def gap(self, duration_ms: int, why: GapReason) -> None:
        """Report audio that never arrived."""
        self._publish(self.session.gap(duration_ms, why))

    async def room(self) -> None:
        """Return when the engine has caught up so far that more audio is welcome.

        A session may have a long backlog and still need more audio before a window is due.
        """

        def is_welcome() -> bool:
            needs_more = not self._is_out and self.due_since is None
            return needs_more or self.session.backlog < self._room

        await self._until(is_welcome)

    async def flush(self) -> None:
        """Make all audio until now final; the session continues."""
        self._publish(self.session.flush())
        await self._until(lambda: self.session.idle)

    def settle(self) -> int:
        """Write and return the time (ms) before which no audio is needed, even after a crash."""
        try:
            self._output.settle(settled_ms := self.session.settled_ms)
        except StreamdError as error:
            self._failed(error)
            return 0
        return settled_ms

    def next_window(self) -> Window | None:
        """Return the session's next window; see `Session.next_window`."""
        window = None if self._ended else self.session.next_window()
        self.due_since = None
        self._is_out = window is not None
        return window

    def accept(self, window: Window, hypothesis: Hypothesis) -> None:
        """Take the recognizer's hypothesis for a window of this session."""
        self._is_out = False
        self._publish(self.session.accept(window, hypothesis))
        self._notify()

    def publish_stats(self, rtf: float) -> None:
        """Publish the state of the session; `rtf`: engine seconds for each second of audio."""
        if self._ended or not self.hub.listeners:
            return
        self.hub.publish(
            Stats(
                audio_ms=self.session.now_ms,
                lag_ms=self.lag_ms,
                lost_ms=self._output.lost_ms,
                rtf=round(rtf, 3),
                listeners=self.hub.listeners,
            )
        )

    def report(self, fault: Fault) -> None:
        """Publish a fault that does not end the session."""
        self._publish([fault])

    def fail(self, fault: Fault) -> None:
        """Publish a fault and end the session."""
        if not self.hub.closed:
            self.hub.publish(fault)
        self.end(EndReason.ERROR, resumable=True)

    async def finish(self, reason: EndReason, *, resumable: bool = False) -> None:
        """Make all audio final and end the session."""
        await self.flush()
        self.end(reason, resumable=resumable or reason == EndReason.SHUTDOWN)

    def end(self, reason: str, *, resumable: bool) -> None:
        """End the session as it is; a `resumable` one may be continued by another process."""
        if self._ended:
            return
        self._ended = True
        try:
            self._output.end(reason, now_ms=self.session.now_ms, resumable=resumable)
        except StreamdError as error:
            self._failed(error)
        self._notify()

    def _publish(self, events: Sequence[SessionEvent]) -> None:
        if self._ended:
            return
        self._look()
        try:
            session = self.session
            self._output.publish(events, now_ms=session.now_ms, settled_ms=session.settled_ms)
        except StreamdError as error:
            self._failed(error)

    def _look(self) -> None:
        """Note since when a window is due, and wake a worker for it; silence wakes none."""
        if not self.session.due:
            self.due_since = None
            self._notify()
        elif self.due_since is None:
            self.due_since = asyncio.get_running_loop().time()
            self._wake()

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not (self._ended or condition()):
            await self._moved.wait()
