"""One session: its audio goes in, the engine is given its windows, its events go out."""

import asyncio
from collections.abc import Callable, Sequence

from streamd.daemon.keeping import Kept
from streamd.errors import StreamdError
from streamd.events import EndReason, Fault, GapReason, SessionEvent, Stats
from streamd.session import Session
from streamd.types import Frames, Hypothesis, Window, ms_from_frames


class Stream:
    """One session: its audio goes in by `feed`, its events come out of `hub`."""

    def __init__(
        self,
        session: Session,
        kept: Kept,
        *,
        room: int,
        wake: Callable[[], None],
        failed: Callable[[StreamdError], None],
    ) -> None:
        """`room`: frames that may wait before a source has to; `wake`: called when a window is due.

        `failed`: called when what was said could not be kept.
        """
        self.session, self.hub = session, kept.hub
        self._kept = kept
        self._room, self._wake, self._failed = room, wake, failed
        self._moved = asyncio.Event()
        self._is_out = False  # a window, to be transcribed
        self._ended = False
        self.has_source = True
        """Whether what it hears is there; a device may be gone for a while."""
        self.due_since: float | None = None
        """Time of the event loop since which a window of the session is due; None if none is."""

    def begin(self, epoch: str | None = None) -> None:
        """Audio comes from now on, of a client that fed this `epoch` before; see `Kept.begin`."""
        self._kept.begin(epoch)

    @property
    def began_ms(self) -> int:
        """Time of the session at which this process took over; 0 unless there was another."""
        return self._kept.began_ms

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        try:
            self._kept.heard(frames)
        except StreamdError as error:
            self._failed(error)
        self._publish(self.session.feed(frames))

    def next_window(self) -> Window | None:
        """The session's next window; see `Session.next_window`."""
        window = None if self._ended else self.session.next_window()
        self.due_since = None
        self._is_out = window is not None
        return window

    def gap(self, duration_ms: int, why: GapReason) -> None:
        """Take note of audio that was lost on the way here."""
        self._publish(self.session.gap(duration_ms, why))

    def accept(self, window: Window, hypothesis: Hypothesis) -> None:
        """Take what the recognizer heard in a window of this session."""
        self._is_out = False
        self._publish(self.session.accept(window, hypothesis))
        self._notify()

    def _look(self) -> None:
        """Note since when a window is due, and say so; in silence nobody is woken."""
        if not self.session.due:
            self.due_since = None
            self._notify()
        elif self.due_since is None:
            self.due_since = asyncio.get_running_loop().time()
            self._wake()

    async def room(self) -> None:
        """Return once the engine has caught up so far that more audio is welcome.

        However long a session waits: it may need to hear more before anything is due.
        """
        await self._until(lambda: self._is_hungry or self.session.backlog < self._room)

    @property
    def _is_hungry(self) -> bool:
        """Whether the session can do nothing before it gets more audio."""
        return not self._is_out and self.due_since is None

    async def flush(self) -> None:
        """Make everything that was said so far final; the session goes on."""
        self._publish(self.session.flush())
        await self._until(lambda: self.session.idle)

    def settle(self) -> int:
        """Note and give the time (ms) before which no audio is needed, not even after a crash."""
        try:
            return self._kept.settle(self.session.settled_ms)
        except StreamdError as error:
            self._failed(error)
            return 0

    def tell_stats(self, rtf: float) -> None:
        """Publish how the session is doing; `rtf`: what the engine needs for a second of audio."""
        if self._ended or not self.hub.listeners:
            return
        self.hub.publish(
            Stats(
                audio_ms=self.began_ms + self.session.now_ms,
                lag_ms=self.lag_ms,
                lost_ms=self._kept.lost_ms,
                rtf=round(rtf, 3),
                listeners=self.hub.listeners,
            )
        )

    @property
    def lag_ms(self) -> int:
        """Speech that waits for the engine."""
        return ms_from_frames(self.session.backlog)

    async def finish(self, reason: EndReason, *, goes_on: bool = False) -> None:
        """Make everything final and end the session."""
        await self.flush()
        self.end(reason, goes_on=goes_on or reason == EndReason.SHUTDOWN)

    def end(self, reason: str, *, goes_on: bool) -> None:
        """End the session as it is; one that `goes_on` may be taken up by another process."""
        if self._ended:
            return
        self._ended = True
        try:
            self._kept.end(reason, heard_ms=self.session.now_ms, goes_on=goes_on)
        except StreamdError as error:
            self._failed(error)
        self._notify()

    def complain(self, fault: Fault) -> None:
        """Tell everybody of something that does not end the session."""
        self._publish([fault])

    def fail(self, fault: Fault) -> None:
        """Tell everybody what broke, and end the session."""
        if not self.hub.closed:
            self.hub.publish(fault)
        self.end(EndReason.ERROR, goes_on=True)

    def _publish(self, events: Sequence[SessionEvent]) -> None:
        if self._ended:
            return
        self._look()
        try:
            session = self.session
            self._kept.publish(events, now_ms=session.now_ms, settled_ms=session.settled_ms)
        except StreamdError as error:
            self._failed(error)

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not (self._ended or condition()):
            await self._moved.wait()
