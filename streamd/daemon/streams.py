"""All sessions of the process on one engine.

Everything here runs on the event loop's thread, except `WindowRecognizer.recognize`, which runs in
threads of its own (`inference`), for one window of a session at a time. There is no work queue: a
recognizer that is free gets a window of the session that has waited longest. So when the machine is
overloaded the steps of all sessions get longer evenly.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from streamd.daemon.inference import InferenceThread, WindowRecognizer, trim
from streamd.daemon.wav import WavWriter
from streamd.errors import ConfigError, StreamdError, WireError
from streamd.events import (
    Choices,
    EndReason,
    Fault,
    Final,
    Flushed,
    Gap,
    GapReason,
    Lag,
    SessionEvent,
    Stats,
)
from streamd.hub import Hub
from streamd.journal import Claimant, Fed, Journal, JournalError, Journals, proof_of
from streamd.server import Metrics
from streamd.session import Session
from streamd.types import Frames, Hypothesis, Window, ms_from_frames

_N_RECENT = 100
"""Finals in memory of a session whose journal has them all: minutes, for reconnecting clients."""
MAX_ENDED = 16
"""Ended sessions that can still be listened to, besides those in a journal."""
_STEP_DEADLINES = 5
"""Deadlines of a live window that one of a recording may take: it is longer, and is decoded again
at all temperatures before its words are aligned."""
_LATE_MS = 1000
"""Time after which listeners are told that events wait to be stored."""
_TRIM_S = 300
"""How often a busy process returns free memory; that costs milliseconds, and so does the next
window."""

log = logging.getLogger(__name__)
HEARD = "the language of session %s seems to be %s; if it is not, name it with --language"

ResultT = TypeVar("ResultT")


Chooser = Callable[[Choices, Mapping[str, object]], Choices]
"""Returns the choices with these fields; raises `ConfigError` for what is not allowed."""


@dataclass(frozen=True, slots=True)
class SessionStorage:
    """The journals and the folder for recordings; None: nothing is stored.

    For `resume_s` after its start, the daemon keeps the sessions of an earlier process for the
    clients that can resume them.
    """

    journal: Journals | None = None
    recordings: Path | None = None
    resume_s: float = 0.0

    def record(self, session: str) -> WavWriter | None:
        """Begin a recording, if there is a folder for them; raises `ConfigError`."""
        if self.recordings is None:
            return None
        return WavWriter(self.recordings / f"{session}~{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")


@dataclass(frozen=True, slots=True)
class StreamCalls:
    """What a stream calls: `wake` when a window is due, `failed` when its journal is not written.

    `choose` checks what a client chooses; raises `WireError`.
    """

    wake: Callable[[], None]
    failed: Callable[[StreamdError], None]
    choose: Callable[[Choices, Mapping[str, object]], Awaitable[Choices]]


class Stream:
    """One session: `feed` takes its audio, `hub` publishes its events.

    `room` frames may wait for the engine before a source has to wait, too.
    """

    def __init__(
        self,
        new_session: Callable[[Choices], Session],
        hub: Hub,
        calls: StreamCalls,
        *,
        metrics: Metrics,
        room: int,
    ) -> None:
        self.session, self.hub, self._chosen = new_session(hub.choices), hub, hub.choices
        self._new_session, self._choose = new_session, calls.choose
        self._metrics, self._observe = metrics, metrics.observer()
        self._room, self._wake, self._failed = room, calls.wake, calls.failed
        self._recording: WavWriter | None = None
        self._waiting: list[SessionEvent] = []  # to be published first
        self._lost_ms = 0  # in all gaps
        self._moved = asyncio.Event()
        self.replaced: Callable[[], None] = lambda: None
        self._is_out = False  # a window, to be transcribed
        self._language_told = False
        self._begun = self._ended = self._is_lost = self.is_resumed = False
        self._first_seg = 1
        self.began_ms = 0
        """Time of the session at which this process took over from an earlier one."""
        self.has_source = True
        """False while a device that feeds the session is unplugged."""
        self.heard: Callable[[Frames], None] | None = None
        """Gets the frames, too, to show how loud they are."""
        self.due_since: float | None = None
        """Time of the event loop since which a window of the session is due; None if none is."""

    def begin(self, recording: WavWriter | None = None, *, is_resumed: bool = False) -> None:
        """Prepare for audio, which goes into `recording`, too.

        Audio of a client that fed the session in an earlier process, and so `is_resumed`, continues
        where it was settled; otherwise the time since then is a gap.
        """
        self._begun, self._recording, self.is_resumed = True, recording, is_resumed
        if self.hub.choices != self._chosen:  # another node has changed them
            self.session = self._new_session(self.hub.choices)
        journal = self.hub.journal
        if journal is None or not journal.seq + journal.settled_ms:
            return
        self.began_ms = journal.settled_ms
        if not is_resumed:
            since_ms = round((datetime.now(UTC) - journal.started).total_seconds() * 1000)
            last_ms = max(journal.end_ms, journal.settled_ms)
            self.began_ms = max(since_ms, last_ms)
            gap_ms = self.began_ms - last_ms
            self._waiting = [Gap(t_ms=last_ms, duration_ms=gap_ms, why=GapReason.RESTART)]
        # The interrupted segment used a number, too.
        self._first_seg = journal.seg + 2
        self.session.resume(self.began_ms, self._first_seg)

    async def choose(self, chosen: Mapping[str, object], *, secret: str = "") -> None:
        """Use these choices of the client; see `IngestSession.choose`."""
        choices = await self._choose(self.hub.choices, chosen)
        if self._ended:
            return
        if choices != self.hub.choices:
            self.hub.choices, self.session = choices, self._new_session(choices)
            self.session.resume(self.began_ms, self._first_seg)
        if (journal := self.hub.journal) is not None:
            kept = choices if chosen or journal.fed.choices else None
            try:
                journal.feed(Fed(choices=kept, proof=proof_of(secret) if secret else ""))
            except StreamdError as error:
                self._failed(error)
            await self.stored()  # before the client counts on it

    @property
    def is_over(self) -> bool:
        """Whether nothing is published any more; subscribers may still wait for the end."""
        return self._ended

    @property
    def is_fed(self) -> bool:
        """Whether audio may come; a session of an earlier process may only have listeners."""
        return self._begun and not self.hub.closed

    @property
    def lag_ms(self) -> int:
        """Duration of the speech that waits for the engine, or of the wait to be stored."""
        return max(self.unstored_ms, ms_from_frames(self.session.backlog))

    @property
    def unstored_ms(self) -> int:
        """How long the oldest event has waited to be stored."""
        return self.hub.journal.lag_ms if self.hub.journal else 0

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        self._metrics.received(ms_from_frames(len(frames)))
        if self._recording is not None:
            self._recording.write(frames)
        if self.heard is not None:
            self.heard(frames)
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
        await self.stored()

    def settle(self) -> int:
        """Return the time (ms) before which no audio is needed, even after a crash: it is stored.

        A journal that stores later than at once has it stored for the next call.
        """
        journal, settled_ms = self.hub.journal, self.session.settled_ms
        if self._is_lost:
            return 0
        if journal is not None and not journal.closed:
            journal.settled_ms = settled_ms
            try:
                journal.mark()
            except StreamdError as error:
                self._failed(error)
                return 0
            return min(settled_ms, journal.kept_ms)
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
        # Of a language that the recognizer was given, the probability is 1.
        if not self._language_told and self.session.language and hypothesis.language_prob < 1:
            self._language_told = True
            log.info(HEARD, self.hub.session, self.session.language)
        self._notify()

    def publish_state(self, rtf: float) -> None:
        """Publish the state of the session; `rtf`: engine seconds for each second of audio."""
        if self._ended:
            return
        # By time, not by window: when the engine is overloaded, windows are rare.
        if self.session.late or self.unstored_ms >= _LATE_MS:
            self.hub.publish(Lag(lag_ms=self.lag_ms))
        self.hub.publish(
            Stats(
                audio_ms=self.session.now_ms,
                lag_ms=self.lag_ms,
                lost_ms=self._lost_ms,
                rtf=round(rtf, 3),
                listeners=self.hub.listeners,
            )
        )

    def report(self, fault: Fault) -> None:
        """Publish a fault that does not end the session."""
        self._publish([fault])

    def fail(self, fault: Fault) -> None:
        """Publish a fault and end the session, unless another node can go on with it."""
        if not (self.hub.closed or self.hub.moves):
            self.hub.publish(fault)
        self.end(EndReason.ERROR, resumable=True)

    async def finish(self, reason: EndReason, *, resumable: bool = False) -> None:
        """Make all audio final and end the session, unless another node goes on with it."""
        if reason != EndReason.SHUTDOWN or not self.hands_over:
            await self.flush()
        self.end(reason, resumable=resumable or reason == EndReason.SHUTDOWN)

    @property
    def hands_over(self) -> bool:
        """Whether its client can go on at another node, so that no word has to be cut here."""
        journal = self.hub.journal
        return journal is not None and self.hub.moves and bool(journal.fed.proof)

    def lose(self) -> None:
        """Another node has the session: publish nothing more; the hub stays, for its listeners."""
        self._ended = self._is_lost = True
        self._notify()
        self.replaced()
        if self._recording is not None:
            self._recording.close()

    def end(self, reason: str, *, resumable: bool) -> None:
        """End the session as it is; a `resumable` one may be continued by another process."""
        if self._ended:
            return
        self._ended = True
        try:
            self._close(reason, resumable=resumable)
        except StreamdError as error:
            self._failed(error)
        self._notify()

    def _close(self, reason: str, *, resumable: bool) -> None:
        journal = self.hub.journal
        try:
            if self._recording is not None:
                self._recording.close()
            if journal is not None and not journal.closed:
                if resumable:
                    journal.close()
                else:
                    journal.settled_ms = max(journal.settled_ms, self.session.now_ms)
                    journal.end(reason)
        finally:
            if not (resumable and self.hub.moves):
                self.hub.close(reason)

    def _publish(self, events: Sequence[SessionEvent]) -> None:
        if self._ended:
            return
        self._look()
        for event in events:
            self._observe(event, self.session.now_ms)
        events, self._waiting = (*self._waiting, *events), []
        n_left = sum(isinstance(event, Final) for event in events)
        self._settle_until(self.session.settled_ms if not n_left else 0)
        try:
            for event in events:
                if isinstance(event, Gap):
                    self._lost_ms += event.duration_ms
                if isinstance(event, Final):
                    # A crash may come between two finals: the first settles only its own audio.
                    n_left -= 1
                    self._settle_until(event.end_ms if n_left else self.session.settled_ms)
                self.hub.publish(event)
        except StreamdError as error:
            self._failed(error)

    def _settle_until(self, settled_ms: int) -> None:
        if (journal := self.hub.journal) is not None:
            journal.settled_ms = max(journal.settled_ms, settled_ms)

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

    async def stored(self) -> None:
        """Return when all until now is stored, and released to subscribers."""
        if self.hub.journal is None or self._ended:
            return
        done = False

        def released(_: SessionEvent) -> None:
            nonlocal done
            done = True
            self._notify()

        self.hub.journal.store(Flushed(id="", seq=0), released)
        await self._until(lambda: done)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not (self._ended or condition()):
            await self._moved.wait()


@dataclass(frozen=True, slots=True, eq=False)
class BackgroundStep:
    """Something to compute when no live window is due, and where its result goes."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]


class Streams:
    """The sessions by name, and the loop that transcribes them.

    Sources that can wait have to at `room` frames of backlog. Clients may feed `max_ingest`
    sessions at a time. A recognizer that needs `deadline_s` for a window hangs; 0: no limit.
    """

    def __init__(
        self,
        new_session: Callable[[Choices], Session],
        *,
        room: int,
        max_ingest: int,
        deadline_s: float = 0.0,
        storage: SessionStorage | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(version="", model="")
        self._new_session = new_session
        self.choices = Choices()
        """The choices of sessions whose client chooses none."""
        self._room, self._max_ingest, self._deadline_s = room, max_ingest, deadline_s
        self._storage = storage or SessionStorage()
        self._loaded = asyncio.Event()  # the model, or it failed
        self._chooser: Chooser = lambda before, chosen: replace(before, **chosen)
        self._busy_s = 0.0  # of the engine, in this second
        self._untrimmed_s = 0  # since memory was returned, if the engine was busy
        self._output_error: StreamdError | None = None
        self._fault: Fault | None = None  # of the engine
        self._streams: dict[str, Stream] = {}
        self._ended: dict[str, Hub] = {}
        self._own: set[str] = set()
        self._work = asyncio.Event()
        self._steps: deque[BackgroundStep] = deque()
        self._n_steps = 0  # that are being computed
        self._most_steps = 1

    def add(self, name: str) -> Stream:
        """Begin a session of the daemon's own; it does not count as a client's."""
        self._own.add(name)
        recording = self._storage.record(name)
        stream = self._add(name)
        stream.begin(recording)
        return stream

    async def prepare(
        self, session: str, *, feeds: bool = False, epoch: str = "", secret: str = ""
    ) -> None:
        """Learn what other nodes know of a session; see `Sessions.prepare`."""
        if (journals := self._storage.journal) is None:
            return
        hub = self._hub_of(session)
        feeder = Claimant(epoch, secret) if feeds else None
        try:
            last = await journals.prepare(session, feeder, have=hub.epoch if hub else "")
        except JournalError as error:
            raise WireError("slow", f"{error}: try again") from error
        hub = self._hub_of(session)
        if hub is not None and last not in (None, hub.epoch):
            hub.close(EndReason.DISCONNECT)  # all of an earlier run
            self.forget()
            self._ended.pop(session, None)

    def _hub_of(self, session: str) -> Hub | None:
        stream = self._streams.get(session)
        return stream.hub if stream else self._ended.get(session)

    def open(self, session: str, *, epoch: str | None = None, secret: str = "") -> Stream:
        """Begin a session that a client feeds, or resume one of an earlier process.

        `epoch` is the run that the client fed; if the `secret` is right, the client sends again
        what that process had not settled. Raises `WireError`: `session_busy`, `too_many_streams`,
        `session_over` if that run ended, `storage` if the session cannot be recorded or kept in the
        journal.
        """
        try:
            return self._open(session, epoch, secret)
        except (ConfigError, JournalError) as error:
            log.error("session %s: %s", session, error)  # noqa: TRY400 - no bug
            raise WireError("storage", f"the session cannot be stored: {error}") from error

    def _open(self, session: str, epoch: str | None, secret: str) -> Stream:
        self._check_free(session, epoch)
        is_resumed = self._admit(session, epoch, secret)
        stream = self._streams.get(session)
        recording = self._storage.record(session)
        try:
            if stream is None or stream.is_over:
                stream = self._add(session)
        except JournalError:
            if recording is not None:
                recording.discard()
            raise
        stream.begin(recording, is_resumed=is_resumed)
        return stream

    def _check_free(self, session: str, epoch: str | None) -> None:
        """Raise `WireError` if the session is over or fed, or if too many are."""
        journal = self._storage.journal
        if journal and epoch and (audio_ms := journal.audio_ms(session, epoch)) is not None:
            raise WireError("session_over", "the session ended meanwhile", heard_ms=audio_ms)
        if journal and journal.is_fed_elsewhere(session):
            raise WireError("session_busy", f"session {session!r} is fed at another node")
        if (stream := self._streams.get(session)) and stream.is_fed:
            raise WireError("session_busy", f"another client feeds session {session!r} already")
        if (n_fed := self._n_fed) >= self._max_ingest:
            raise WireError("too_many_streams", f"{n_fed} streams are fed already: try again later")

    def _admit(self, session: str, epoch: str | None, secret: str) -> bool:
        """Return whether the client fed this session's run in an earlier process.

        Others wait until that client had the time to come back; then the run is over. A client
        that cannot resume has no such right: whoever feeds its session next continues it.
        """
        self.hub(session)  # of the journal
        stream = self._streams.get(session)
        journal = stream.hub.journal if stream and not stream.hub.closed else None
        if stream is None or journal is None or not journal.fed.proof:
            return False
        if Claimant(epoch or "", secret).resumes(journal.epoch, journal.fed):
            return True
        if self._storage.journal and self._storage.journal.age_s < self._storage.resume_s:
            raise WireError("session_busy", f"session {session!r} waits for its client to return")
        stream.end(EndReason.DISCONNECT, resumable=False)
        return False

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
        trouble = self._storage.journal.trouble() if self._storage.journal else ""
        reasons = {
            trouble: bool(trouble),
            "the model is not loaded yet": not self._loaded.is_set(),
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

    async def transcribe(
        self, *recognizers: WindowRecognizer, chooser: Chooser | None = None
    ) -> None:
        """Serve the sessions until cancelled, as many at a time as there are recognizers.

        `chooser` knows the choices that the model allows; without, all are allowed. Raises
        `EngineError` if one of them fails or hangs, `StreamdError` if a final could not be stored.
        """
        self._chooser = chooser or self._chooser
        self._loaded.set()
        await asyncio.to_thread(trim)  # loading the model took a lot
        self._most_steps = max(1, len(recognizers) - 1)
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
            begin_s = loop.time()
            if (due := self._longest_waiting()) is not None:
                stream, window = due
                hypothesis = await thread.recognize(window)
                took_s = loop.time() - begin_s
                self.metrics.decoded(window, hypothesis, took_s)
                stream.accept(window, hypothesis)
            elif self._steps and self._n_steps < self._most_steps:
                await self._take_step(thread)
                took_s = loop.time() - begin_s
            else:
                await work.wait()
                continue
            self._busy_s += took_s
            self._wake()  # there may be another window or step, and another worker may take it

    async def between(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        """Call in the thread of a recognizer when no live window is due; return the result.

        All who call this take turns. One recognizer of several is left to live windows.
        """
        step = BackgroundStep(partial(call, *args), asyncio.get_running_loop().create_future())
        self._steps.append(step)
        self._wake()
        result: ResultT = await step.answer
        return result

    async def _take_step(self, thread: InferenceThread) -> None:
        step = self._steps.popleft()
        if step.answer.cancelled():
            return
        self._n_steps += 1
        try:
            done = await thread.run(step.call, deadline_s=_STEP_DEADLINES * self._deadline_s)
        finally:
            self._n_steps -= 1
        if step.answer.cancelled():
            return
        if (error := done.exception()) is not None:
            step.answer.set_exception(error)
        else:
            step.answer.set_result(done.result())

    async def keep(self) -> None:
        """Keep what is to be kept, until cancelled. Raises `JournalError` if that fails."""
        if self._storage.journal is not None:
            await self._storage.journal.run()

    async def kept(self) -> None:
        """Return when everything is kept."""
        if self._storage.journal is not None:
            await self._storage.journal.written()

    async def chores(self) -> None:
        """Publish stats, update metrics and return memory, each second."""
        while True:
            await asyncio.sleep(1)
            self.forget()
            running = [s for s in self._streams.values() if s.is_fed]
            busy_s, self._busy_s = self._busy_s, 0.0
            self._untrimmed_s += bool(busy_s or self._untrimmed_s)
            if self._untrimmed_s >= _TRIM_S:
                self._untrimmed_s = 0
                await asyncio.to_thread(trim)
            for stream in running:
                stream.publish_state(busy_s / len(running))
            hubs = [stream.hub for stream in self._streams.values()]
            self.metrics.streams.set(len(running))
            self.metrics.unstored.set(max((s.unstored_ms for s in running), default=0) / 1000)
            self.metrics.queued.set(max((hub.queued for hub in hubs), default=0))

    def fail(self, error: Exception) -> None:
        """Tell every listener of every session: a dead engine must never look like silence."""
        code = "internal"
        if isinstance(error, StreamdError):
            code = "engine" if error is not self._output_error else "journal"
        self._fault = Fault(code=code, message=str(error) or repr(error), fatal=True)
        self._loaded.set()
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
        hub = Hub(name, _N_RECENT, journal=journal) if journal else Hub(name)
        if journal is not None:
            if name in self._own:
                journal.feed(Fed())  # a client may have fed it in an earlier process
            journal.joined(hub.relay, partial(self._lost, name))
        hub.choices = (journal and journal.fed.choices) or self.choices
        return self._add_stream(name, hub)

    def _lost(self, name: str) -> None:
        """Another node took the session: its listeners here stay, and hear of it from there."""
        if (stream := self._streams.get(name)) is not None:
            self._add_stream(name, stream.hub)
            self.metrics.replaced.inc()
            stream.lose()

    def _add_stream(self, name: str, hub: Hub) -> Stream:
        calls = StreamCalls(self._wake, self._output_failed, self._choose)
        stream = Stream(self._new_session, hub, calls, metrics=self.metrics, room=self._room)
        self._streams[name] = stream
        if self._fault is not None:
            stream.fail(self._fault)
        return stream

    async def _choose(self, before: Choices, chosen: Mapping[str, object]) -> Choices:
        if not chosen:
            return before
        await self._loaded.wait()  # only the model knows its languages
        try:
            return self._chooser(before, chosen)
        except ConfigError as error:
            raise WireError("bad_option", str(error)) from None

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
