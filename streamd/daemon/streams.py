"""All sessions of the process on one engine.

Everything here runs on the event loop's thread, except `WindowRecognizer.recognize`, which runs in
threads of its own (`inference`), for one window of a session at a time. There is no work queue: a
recognizer that is free gets a window of the session that has waited longest. So when the machine is
overloaded the steps of all sessions get longer evenly.
"""

import asyncio
import logging
from collections.abc import Callable

from streamd.daemon.inference import InferenceThread, WindowRecognizer, trim
from streamd.daemon.stream import SessionOutput, SessionStorage, Stream
from streamd.errors import ConfigError, StreamdError, WireError
from streamd.events import EndReason, Fault
from streamd.hub import Hub
from streamd.journal import Journal, JournalError, sync
from streamd.server import Metrics
from streamd.session import Session
from streamd.types import Window, ms_from_frames

MAX_ENDED = 16
"""Ended sessions that can still be listened to, besides those in a journal."""
log = logging.getLogger(__name__)

_TRIM_S = 300
"""How often a busy process returns free memory; that costs milliseconds, and so does the next
window."""


class Streams:
    """The sessions by name, and the loop that transcribes them.

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
        storage: SessionStorage | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(version="", model="")
        self._new_session = new_session
        self._room, self._max_ingest, self._deadline_s = room, max_ingest, deadline_s
        self._storage = storage or SessionStorage()
        self._is_loaded = False
        self._busy_s = 0.0  # of the engine, in this second
        self._untrimmed_s = 0  # since memory was returned, if the engine was busy
        self._output_error: StreamdError | None = None
        self._fault: Fault | None = None  # of the engine
        self._streams: dict[str, Stream] = {}
        self._ended: dict[str, Hub] = {}
        self._own: set[str] = set()
        self._work = asyncio.Event()

    def add(self, name: str) -> Stream:
        """Begin a session of the daemon's own; it does not count as a client's."""
        self._own.add(name)
        recording = self._storage.record(name)
        stream = self._add(name)
        stream.begin(None, recording)
        return stream

    def open(self, session: str, *, epoch: str | None = None) -> Stream:
        """Begin a session that a client feeds, or resume one of an earlier process.

        `epoch` is the run that the client fed; it sends again what that process had not settled.
        Raises `WireError`: `session_busy`, `too_many_streams`, `session_over` if that run ended,
        `storage` if the session cannot be recorded or kept in the journal.
        """
        try:
            return self._open(session, epoch)
        except (ConfigError, JournalError) as error:
            log.error("session %s: %s", session, error)  # noqa: TRY400 - no bug
            raise WireError("storage", f"the session cannot be stored: {error}") from error

    def _open(self, session: str, epoch: str | None) -> Stream:
        journal = self._storage.journal
        if journal and epoch and (audio_ms := journal.audio_ms(session, epoch)) is not None:
            raise WireError("session_over", "the session ended meanwhile", heard_ms=audio_ms)
        stream = self._streams.get(session)
        if stream and stream.is_fed:
            raise WireError("session_busy", f"another client feeds session {session!r} already")
        if (n_fed := self._n_fed) >= self._max_ingest:
            raise WireError("too_many_streams", f"{n_fed} streams are fed already: try again later")
        recording = self._storage.record(session)
        try:
            if stream is None or stream.hub.closed:
                stream = self._add(session)
        except JournalError:
            if recording is not None:
                recording.discard()
            raise
        stream.begin(epoch, recording)
        return stream

    def hub(self, session: str) -> Hub | None:
        """Return the hub of a session that can be listened to, or None.

        Sessions of an earlier process are found in the journal. Listeners of one that has not ended
        wait for its client to come back; without listeners `forget` drops it.
        """
        if (ended := self._ended.get(session)) is not None:
            return ended
        stream = self._streams.get(session)
        journal = self._storage.journal
        if stream is None and journal and (known := journal.recall(session)) is not None:
            stream = self._add(session, known)
            if known.ended:
                stream.end(known.ended, resumable=False)
        return stream.hub if stream else None

    def names(self) -> list[str]:
        """Return the sessions that can be listened to, those that have ended first."""
        return [*self._ended, *self._streams]

    def unready(self) -> list[str]:
        """Return the reasons why new clients should use another server."""
        own = [self._streams[name] for name in self._own]
        reasons = {
            "the model is not loaded yet": not self._is_loaded,
            "the engine failed": self._fault is not None,
            "the source is not open": not all(stream.has_source for stream in own),
            "the source has ended": any(stream.hub.closed for stream in own),
            "no room for another stream": 0 < self._max_ingest <= self._n_fed,
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def lag_ms(self) -> int:
        """How far the engine is behind in the session that has waited longest."""
        return max((stream.lag_ms for stream in self._streams.values()), default=0)

    @property
    def _n_fed(self) -> int:
        return sum(s.is_fed for name, s in self._streams.items() if name not in self._own)

    def state(self) -> list[str]:
        """Describe each session in one line, for the log."""
        return [
            f"session {name}: {stream.hub.seq} finals, "
            f"{ms_from_frames(stream.session.now)} ms of audio, {stream.lag_ms} ms behind"
            for name, stream in self._streams.items()
        ]

    async def transcribe(self, *recognizers: WindowRecognizer) -> None:
        """Serve the sessions until cancelled, as many at a time as there are recognizers.

        Raises `EngineError` if one of them fails or hangs, `StreamdError` if a final could not be
        stored.
        """
        self._is_loaded = True
        await asyncio.to_thread(trim)  # loading the model took a lot
        threads = [InferenceThread(each, deadline_s=self._deadline_s) for each in recognizers]
        workers = [asyncio.create_task(self._serve(thread)) for thread in threads]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker, thread in zip(workers, threads, strict=True):
                worker.cancel()
                thread.close()

    async def _serve(self, thread: InferenceThread) -> None:
        loop = asyncio.get_running_loop()
        while True:
            work = self._work
            if self._output_error is not None:
                raise self._output_error
            if (due := self._longest_waiting()) is None:
                await work.wait()
                continue
            stream, window = due
            begin_s = loop.time()
            hypothesis = await thread.recognize(window)
            took_s = loop.time() - begin_s
            self._busy_s += took_s
            self.metrics.decoded(window, hypothesis, took_s)
            stream.accept(window, hypothesis)
            self._wake()  # the session may have another window, and another worker may take it

    async def chores(self) -> None:
        """Publish stats, update metrics, sync journals and return memory, each second."""
        while True:
            await asyncio.sleep(1)
            self.forget()
            running = [s for s in self._streams.values() if not s.hub.closed]
            busy_s, self._busy_s = self._busy_s, 0.0
            self._untrimmed_s += bool(busy_s or self._untrimmed_s)
            if self._untrimmed_s >= _TRIM_S:
                self._untrimmed_s = 0
                await asyncio.to_thread(trim)
            for stream in running:
                stream.publish_stats(busy_s / len(running))
            hubs = [stream.hub for stream in self._streams.values()]
            self.metrics.streams.set(len(running))
            self.metrics.queued.set(max((hub.queued for hub in hubs), default=0))
            if self._storage.journal is not None:
                await asyncio.to_thread(sync, self._storage.journal.unsynced())

    def fail(self, error: Exception) -> None:
        """Tell every listener of every session: a dead engine must never look like silence."""
        code = "internal"
        if isinstance(error, StreamdError):
            code = "engine" if error is not self._output_error else "journal"
        self._fault = Fault(code=code, message=str(error) or repr(error), fatal=True)
        for stream in self._streams.values():
            stream.fail(self._fault)

    def forget(self) -> None:
        """Free ended sessions but for the text of the newest, and those from the journal."""
        for name, stream in list(self._streams.items()):
            if stream.hub.closed and name not in self._own:
                self._ended[name] = self._streams.pop(name).hub
            elif not (stream.hub.closed or stream.is_fed or stream.hub.listeners):
                self._streams.pop(name).end(EndReason.FORGOTTEN, resumable=True)
        for name in list(self._ended)[:-MAX_ENDED]:
            del self._ended[name]

    def _add(self, name: str, journal: Journal | None = None) -> Stream:
        self.forget()
        self._ended.pop(name, None)
        if journal is None and self._storage.journal is not None:
            journal = self._storage.journal.open(name)
        output = SessionOutput(name, journal, metrics=self.metrics)
        stream = Stream(
            self._new_session(),
            output,
            room=self._room,
            wake=self._wake,
            failed=self._output_failed,
        )
        self._streams[name] = stream
        if self._fault is not None:
            stream.fail(self._fault)
        return stream

    def _output_failed(self, error: StreamdError) -> None:
        """Stop everything: a final that cannot be stored must not be published."""
        self._output_error = self._output_error or error
        self.fail(self._output_error)  # before a client is told that it may drop its audio
        self._wake()

    def _wake(self) -> None:
        self._work.set()
        self._work = asyncio.Event()

    def _longest_waiting(self) -> tuple[Stream, Window] | None:
        waiting = [stream for stream in self._streams.values() if stream.due_since is not None]
        for stream in sorted(waiting, key=lambda stream: stream.due_since or 0.0):
            if (window := stream.next_window()) is not None:
                return stream, window
        return None
