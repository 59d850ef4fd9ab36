"""All sessions of the process on one recognizer: who is fed, whose turn it is, who hears what.

Everything here runs on the event loop's thread, except `Recognizer.recognize`, which runs in a
thread of its own, one window at a time. There is no work queue: when the recognizer is free, the
sessions are asked in turn for a window.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from streamd.daemon.keeping import Kept, Places, sync_now_and_then
from streamd.errors import StreamdError, WireError
from streamd.events import Fault, SessionEvent
from streamd.hub import Hub
from streamd.server import SHUTDOWN
from streamd.session import Session
from streamd.types import Frames, Hypothesis, Window, ms_from_frames

MAX_ENDED = 16
"""Ended sessions that can still be listened to."""


class Recognizer(Protocol):
    """Hears what is said in a window."""

    def recognize(self, window: Window) -> Hypothesis:
        """Transcribe the window; slow, called from one thread at a time."""
        ...


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
        """`room`: frames that may wait before a source has to; `wake`: called when work is here.

        `failed`: called when what was said could not be kept.
        """
        self.session, self.hub = session, kept.hub
        self._kept = kept
        self._room, self._wake, self._failed = room, wake, failed
        self._moved = asyncio.Event()
        self._hungry = True  # the session can do nothing before it gets more audio
        self._ended = False

    @property
    def began_ms(self) -> int:
        """Time of the session at which this process took over; 0 unless there was another."""
        return self._kept.began_ms

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        self._hungry = False
        try:
            self._kept.heard(frames)
        except StreamdError as error:
            self._failed(error)
        self._publish(self.session.feed(frames))
        self._wake()

    def next_window(self) -> Window | None:
        """The session's next window; see `Session.next_window`."""
        window = None if self._ended else self.session.next_window()
        self._hungry = window is None
        if self._hungry:
            self._notify()
        return window

    def gap(self, duration_ms: int, why: str) -> None:
        """Take note of audio that was lost on the way here."""
        self._hungry = False
        self._publish(self.session.gap(duration_ms, why))
        self._wake()

    def accept(self, window: Window, hypothesis: Hypothesis) -> None:
        """Take what the recognizer heard in a window of this session."""
        self._publish(self.session.accept(window, hypothesis))
        self._notify()

    async def room(self) -> None:
        """Return once the engine has caught up so far that more audio is welcome.

        However long a session waits: it may need to hear more before anything is due.
        """
        await self._until(lambda: self._hungry or self.session.backlog < self._room)

    async def flush(self) -> None:
        """Make everything that was said so far final; the session goes on."""
        self._publish(self.session.flush())
        self._wake()
        await self._until(lambda: self.session.idle)

    def settle(self) -> int:
        """Note and give the time (ms) before which no audio is needed, not even after a crash."""
        try:
            return self._kept.settle(self.session.settled_ms)
        except StreamdError as error:
            self._failed(error)
            return 0

    async def finish(self, reason: str, *, goes_on: bool = False) -> None:
        """Make everything final and end the session."""
        await self.flush()
        self.end(reason, goes_on=goes_on or reason == SHUTDOWN)

    def end(self, reason: str, *, goes_on: bool) -> None:
        """End the session as it is; one that `goes_on` may be taken up by another process."""
        if self._ended:
            return
        self._ended = True
        try:
            self._kept.end(reason, heard_ms=ms_from_frames(self.session.now), goes_on=goes_on)
        except StreamdError as error:
            self._failed(error)
        self._notify()

    def fail(self, fault: Fault) -> None:
        """Tell everybody what broke, and end the session."""
        if not self.hub.closed:
            self.hub.publish(fault)
        self.end("error", goes_on=True)

    def _publish(self, events: Iterable[SessionEvent]) -> None:
        if self._ended:
            return
        try:
            self._kept.publish(events, settled_ms=self.session.settled_ms)
        except StreamdError as error:
            self._failed(error)

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not (self._ended or condition()):
            await self._moved.wait()


class Streams:
    """The sessions, by name, and the loop that transcribes them.

    Parameters
    ----------
    new_session : makes the pure core of a session
    room : frames of backlog at which sources that can wait are made to
    max_ingest : sessions that clients may feed at a time
    places : where what was said is kept
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        *,
        room: int,
        max_ingest: int,
        places: Places | None = None,
    ) -> None:
        self._new_session = new_session
        self._places = places or Places()
        self._failure: StreamdError | None = None
        self._room, self._max_ingest = room, max_ingest
        self._streams: dict[str, Stream] = {}
        self._own: set[str] = set()
        self._work = asyncio.Event()
        self._broken: Fault | None = None

    def add(self, name: str) -> Stream:
        """A session of the daemon's own; it does not count as a client's."""
        self._own.add(name)
        return self._add(name)

    def hub(self, session: str) -> Hub | None:
        """The hub of a session that can be heard, or None."""
        stream = self._streams.get(session)
        return stream.hub if stream else None

    def names(self) -> list[str]:
        """The sessions that can be heard, oldest first."""
        return list(self._streams)

    def open(self, session: str, *, epoch: str | None = None) -> Stream:
        """Begin a session that a client will feed, or go on with one of an earlier process.

        `epoch`: the run that the client fed; it sends again what that process had not settled.

        Raises
        ------
        WireError : `session_busy` when somebody feeds it already, `too_many_streams`,
            `session_over` if that run ended
        """
        journal = self._places.journal
        heard_ms = journal.heard_ms(session, epoch) if journal and epoch else None
        if heard_ms is not None:
            raise WireError("session_over", "the session ended meanwhile", heard_ms=heard_ms)
        if session in self._streams and not self._streams[session].hub.closed:
            raise WireError("session_busy", f"somebody feeds session {session!r} already")
        n_fed = sum(1 for n, s in self._streams.items() if n not in self._own and not s.hub.closed)
        if n_fed >= self._max_ingest:
            raise WireError("too_many_streams", f"{n_fed} streams are fed already: try again later")
        return self._add(session, epoch=epoch)

    def state(self) -> list[str]:
        """One line about each session, for people."""
        return [
            f"session {name}: {stream.hub.seq} finals, "
            f"{ms_from_frames(stream.session.now)} ms heard, "
            f"{ms_from_frames(stream.session.backlog)} ms behind"
            for name, stream in self._streams.items()
        ]

    async def transcribe(self, recognizer: Recognizer) -> None:
        """Serve the sessions in turn, for ever.

        Raises
        ------
        EngineError : the recognizer failed
        StreamdError : what was said cannot be kept
        """
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="inference") as pool:
            while True:
                self._work.clear()
                if self._failure is not None:
                    raise self._failure
                for stream, window in self._due():
                    hypothesis = await loop.run_in_executor(pool, recognizer.recognize, window)
                    stream.accept(window, hypothesis)
                    self._work.set()  # ask again: the session may want another window
                await self._work.wait()

    async def sync(self) -> None:
        """Force what is kept to the disk from time to time, for ever; raises `JournalError`."""
        if self._places.journal is not None:
            await sync_now_and_then(self._places.journal)

    def fail(self, error: Exception) -> None:
        """A dead engine must never look like silence: tell every listener of every session."""
        code = "internal"
        if isinstance(error, StreamdError):
            code = "engine" if error is not self._failure else "journal"
        self._broken = Fault(code=code, message=str(error) or repr(error), fatal=True)
        for stream in self._streams.values():
            stream.fail(self._broken)

    def _add(self, name: str, *, epoch: str | None = None) -> Stream:
        self._forget_ended()
        stream = Stream(
            self._new_session(),
            Kept(name, self._places, epoch=epoch),
            room=self._room,
            wake=self._work.set,
            failed=self._keep_no_more,
        )
        self._streams[name] = stream
        if self._broken is not None:
            stream.fail(self._broken)
        return stream

    def _keep_no_more(self, error: StreamdError) -> None:
        """What cannot be kept must not be said: `transcribe` ends."""
        self._failure = self._failure or error
        self._work.set()

    def _due(self) -> Iterable[tuple[Stream, Window]]:
        """Each session that wants a window, with its window, once round."""
        for stream in list(self._streams.values()):
            if (window := stream.next_window()) is not None:
                yield stream, window

    def _forget_ended(self) -> None:
        """Keep the last ended sessions, so that late listeners still get their finals."""
        ended = [name for name, stream in self._streams.items() if stream.hub.closed]
        for name in ended[:-MAX_ENDED]:
            del self._streams[name]
