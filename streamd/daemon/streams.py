"""All sessions of the process on one engine: who is fed, whose turn it is, who hears what.

Everything here runs on the event loop's thread, except `Recognizer.recognize`, which runs in
threads of its own (`inference`), one window of a session at a time. There is no work queue: when a
recognizer is free, the sessions are asked for a window, the one first that has waited longest. So
beyond what the machine can do, everybody's steps get longer, evenly.
"""

import asyncio
from collections.abc import Callable

from streamd.daemon.inference import InferenceThread, WindowRecognizer, trim
from streamd.daemon.stream import SessionOutput, Storage, Stream
from streamd.errors import StreamdError, WireError
from streamd.events import EndReason, Fault
from streamd.hub import Hub
from streamd.journal import Journal, sync
from streamd.server import Metrics
from streamd.session import Session
from streamd.types import Hypothesis, Window, ms_from_frames

MAX_ENDED = 16
"""Ended sessions that can still be listened to, besides those in a journal."""

_TRIM_S = 300
"""Every so often memory is given back, which costs milliseconds then and in the next window."""


class Streams:
    """The sessions, by name, and the loop that transcribes them.

    Parameters
    ----------
    new_session : makes the pure core of a session
    room : frames of backlog at which sources that can wait have to
    max_ingest : number of sessions that clients may feed at a time
    deadline_s : how long a recognizer may take for a window before it counts as hung; 0: no limit
    storage : the folders for journals and recordings
    metrics : the counters of `/metrics`
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        *,
        room: int,
        max_ingest: int,
        deadline_s: float = 0.0,
        storage: Storage | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._new_session = new_session
        self._storage = storage or Storage()
        self.metrics = metrics or Metrics(version="", model="")
        self._is_loaded = False
        self._busy_s = 0.0  # of the engine, in this second
        self._untrimmed_s = 0  # since memory was given back, if the engine was busy
        self._failure: StreamdError | None = None
        self._room, self._max_ingest, self._deadline_s = room, max_ingest, deadline_s
        self._streams: dict[str, Stream] = {}
        self._ended: dict[str, Hub] = {}
        self._own: set[str] = set()
        self._recalled: set[str] = set()  # from the journal, without a speaker until now
        self._work = asyncio.Event()
        self._broken: Fault | None = None

    def add(self, name: str) -> Stream:
        """A session of the daemon's own; it does not count as a client's."""
        self._own.add(name)
        stream = self._add(name, self._storage.open(name))
        stream.begin()
        return stream

    def hub(self, session: str) -> Hub | None:
        """The hub of a session that can be heard, or None.

        Those of an earlier process are found in the journal. If they were not over, their listeners
        wait for the speaker to come back; when the last of them has gone, they are forgotten.
        """
        if (ended := self._ended.get(session)) is not None:
            return ended
        stream = self._streams.get(session)
        if stream is None and (journal := self._storage.recall(session)) is not None:
            stream = self._add(session, journal)
            if journal.ended:
                stream.end(journal.ended, resumable=False)
            else:
                self._recalled.add(session)
        return stream.hub if stream else None

    def names(self) -> list[str]:
        """The sessions that can be heard, those first that have ended."""
        return [*self._ended, *self._streams]

    def open(self, session: str, *, epoch: str | None = None) -> Stream:
        """Begin a session that a client will feed, or go on with one of an earlier process.

        `epoch`: the run that the client fed; it sends again what that process had not settled.

        Raises
        ------
        WireError : `session_busy` when somebody feeds it already, `too_many_streams`,
            `session_over` if that run ended
        """
        journal = self._storage.journal
        heard_ms = journal.audio_ms(session, epoch) if journal and epoch else None
        if heard_ms is not None:
            raise WireError("session_over", "the session ended meanwhile", heard_ms=heard_ms)
        recalled = session in self._recalled
        if session in self._streams and not (recalled or self._streams[session].hub.closed):
            raise WireError("session_busy", f"somebody feeds session {session!r} already")
        if self._n_fed >= self._max_ingest:
            raise WireError(
                "too_many_streams", f"{self._n_fed} streams are fed already: try again later"
            )
        self._recalled.discard(session)
        known = self._streams[session] if recalled else None
        stream = known or self._add(session, self._storage.open(session))
        stream.begin(epoch)
        return stream

    def unready(self) -> list[str]:
        """Why another client had better go elsewhere; nothing if it is welcome."""
        own = [self._streams[name] for name in self._own]
        reasons = {
            "the model is not loaded yet": not self._is_loaded,
            "the engine failed": self._broken is not None,
            "the source is not open": not all(stream.has_source for stream in own),
            "the source has ended": any(stream.hub.closed for stream in own),
            "no room for another stream": 0 < self._max_ingest <= self._n_fed,
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def lag_ms(self) -> int:
        """How far the engine is behind in the session that waits longest."""
        return max((stream.lag_ms for stream in self._streams.values()), default=0)

    @property
    def _n_fed(self) -> int:
        not_fed = self._own | self._recalled
        return sum(1 for n, s in self._streams.items() if n not in not_fed and not s.hub.closed)

    def state(self) -> list[str]:
        """One line about each session, for people."""
        return [
            f"session {name}: {stream.hub.seq} finals, "
            f"{ms_from_frames(stream.session.now)} ms heard, "
            f"{ms_from_frames(stream.session.backlog)} ms behind"
            for name, stream in self._streams.items()
        ]

    async def transcribe(self, *recognizers: WindowRecognizer) -> None:
        """Serve the sessions for ever, as many at a time as there are recognizers.

        Raises
        ------
        EngineError : a recognizer failed, or has not come back from a window
        StreamdError : what was said cannot be kept
        """
        self._is_loaded = True
        await asyncio.to_thread(trim)  # of what loading the model took
        threads = [InferenceThread(each, deadline_s=self._deadline_s) for each in recognizers]
        workers = [asyncio.create_task(self._serve(thread)) for thread in threads]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker, thread in zip(workers, threads, strict=True):
                worker.cancel()
                thread.close()

    async def _serve(self, thread: InferenceThread) -> None:
        """Transcribe one window after the other in this thread."""
        loop = asyncio.get_running_loop()
        while True:
            work = self._work
            if self._failure is not None:
                raise self._failure
            due = self._longest_waiting()
            if due is None:
                await work.wait()
                continue
            stream, window = due
            begin_s = loop.time()
            hypothesis = await thread.recognize(window)
            self._count(window, hypothesis, loop.time() - begin_s)
            stream.accept(window, hypothesis)
            self._wake()  # the session may want another window, and another worker may have it

    def _count(self, window: Window, hypothesis: Hypothesis, took_s: float) -> None:
        self.metrics.decoded(window, hypothesis, took_s)
        self._busy_s += took_s

    async def chores(self) -> None:
        """What has to be done each second, for ever.

        Raises
        ------
        JournalError : the disk fails
        """
        while True:
            await asyncio.sleep(1)
            self.forget()
            going_on = [s for s in self._streams.values() if not s.hub.closed]
            busy_s, self._busy_s = self._busy_s, 0.0
            self._untrimmed_s += bool(busy_s or self._untrimmed_s)
            if self._untrimmed_s >= _TRIM_S:
                self._untrimmed_s = 0
                await asyncio.to_thread(trim)
            for stream in going_on:
                stream.publish_stats(busy_s / len(going_on))
            hubs = [stream.hub for stream in self._streams.values()]
            self.metrics.streams.set(len(going_on))
            self.metrics.listeners.set(sum(hub.listeners for hub in hubs))
            self.metrics.queued.set(max((hub.queued for hub in hubs), default=0))
            if self._storage.journal is not None:
                await asyncio.to_thread(sync, self._storage.journal.unsynced())

    def fail(self, error: Exception) -> None:
        """A dead engine must never look like silence: tell every listener of every session."""
        code = "internal"
        if isinstance(error, StreamdError):
            code = "engine" if error is not self._failure else "journal"
        self._broken = Fault(code=code, message=str(error) or repr(error), fatal=True)
        for stream in self._streams.values():
            stream.fail(self._broken)

    def _add(self, name: str, journal: Journal | None) -> Stream:
        self.forget()
        self._ended.pop(name, None)
        stream = Stream(
            self._new_session(),
            SessionOutput(name, journal, recordings=self._storage.recordings, metrics=self.metrics),
            room=self._room,
            wake=self._wake,
            failed=self._output_failed,
        )
        self._streams[name] = stream
        if self._broken is not None:
            stream.fail(self._broken)
        return stream

    def _output_failed(self, error: StreamdError) -> None:
        """Stop everything: a final that cannot be stored must not be published."""
        self._failure = self._failure or error
        self.fail(self._failure)  # before a client is told that it may drop its audio
        self._wake()

    def _wake(self) -> None:
        """Whoever waits for work looks again."""
        self._work.set()
        self._work = asyncio.Event()

    def _longest_waiting(self) -> tuple[Stream, Window] | None:
        """The session with the oldest due window, and this window."""
        waiting = [stream for stream in self._streams.values() if stream.due_since is not None]
        for stream in sorted(waiting, key=lambda stream: stream.due_since or 0.0):
            if (window := stream.next_window()) is not None:
                return stream, window
        return None

    def forget(self) -> None:
        """Let go of what nobody needs: all but the text of sessions that ended, and the oldest.

        Also what an earlier process left unfinished, once nobody listens: it is in the journal.
        """
        unheard = [name for name in self._recalled if not self._streams[name].hub.listeners]
        for name in unheard:
            self._recalled.remove(name)
            self._streams.pop(name).end(EndReason.FORGOTTEN, resumable=True)
        over = [n for n, s in self._streams.items() if s.hub.closed and n not in self._own]
        for name in over:
            self._recalled.discard(name)
            self._ended[name] = self._streams.pop(name).hub
        for name in list(self._ended)[:-MAX_ENDED]:
            del self._ended[name]
