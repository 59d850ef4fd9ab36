"""All sessions of the process on one engine, by name.

Everything here runs on the event loop's thread, except `WindowRecognizer.recognize`, which runs in
threads of its own (`inference`), for one window of a session, or of each channel, at a time.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from streamd.errors import (
    ConfigError,
    EngineError,
    ModelError,
    StreamdError,
    WireError,
    for_clients,
)
from streamd.events import EndReason, Fault
from streamd.options import Choices
from streamd.session.channels import AnySession
from streamd.streams.auto_step import AutoStep
from streamd.streams.hub import Hub
from streamd.streams.journal.journals import Journal, JournalError
from streamd.streams.journal.lines import Claimant, Fed
from streamd.streams.metrics import Metrics
from streamd.streams.scheduler import Scheduler
from streamd.streams.storage import SessionStorage
from streamd.streams.stream import Stream, StreamContext
from streamd.system.heap import trim
from streamd.types import WindowRecognizer, ms_from_frames

_N_RECENT = 100
"""Recent finals that are kept in memory when a journal has them all: minutes, for clients that
reconnect."""
MAX_ENDED = 16
"""Ended sessions that can still be listened to, besides those in a journal."""
_TRIM_S = 20
"""How often a busy process returns free memory; that costs milliseconds, and so does the next
window. Without a session that is fed it does so at once."""

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


Chooser = Callable[[Choices, Mapping[str, object]], Choices]
"""Returns the choices with these fields; raises `ConfigError` for what is not allowed."""


class Streams:
    """The sessions by name, and the loop that transcribes them.

    Sources that can wait have to at `max_backlog` frames of backlog. Clients may feed `max_ingest`
    sessions at a time. A recognizer that needs `deadline_s` for a window hangs; 0: no limit.
    """

    def __init__(
        self,
        new_session: Callable[[Choices], AnySession],
        *,
        max_backlog: int,
        max_ingest: int,
        deadline_s: float = 0.0,
        storage: SessionStorage | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(version="", model="")
        self._streams: dict[str, Stream] = {}
        self._deadline_s = deadline_s
        self._scheduler = self._scheduler_of("")
        self._schedulers = {"": self._scheduler}  # also of other models that are open, by name
        self.context = StreamContext(
            new_session,
            self.metrics,
            max_backlog,
            self._wake,
            self._output_failed,
            self._choose,
            self._learn,
        )
        self.learn: Callable[[str], None] | None = None
        """Keeps a phrase for later sessions; raises `ConfigError`."""
        self.meant: Callable[[str, bool], str] = lambda model, exactly: ""
        """Says which model a client means, empty if the own; `exactly`: raises `WireError` if none.
        """
        self.open_named: Callable[[str], Awaitable[Chooser]] | None = None
        """Opens a model that `meant` has returned, and returns what checks the choices of its
        sessions; raises `WireError`."""
        self.choices = Choices()  # the choices of sessions whose client chooses none
        self.early_model: Callable[[], str] = lambda: ""
        """Says what makes captions until the model is ready, and until when; empty once it is."""
        self._max_ingest = max_ingest
        self._storage, self._began_s = storage or SessionStorage(), time.monotonic()
        self.loaded = asyncio.Event()  # the model, or it failed
        self._chooser: Chooser = lambda before, chosen: replace(before, **chosen)
        self._untrimmed_s = 0  # since memory was returned, if the engine was busy
        self.when_idle: list[Callable[[], None]] = []
        """Called when no session is fed any more, to free what the next one loads again."""
        self.when_begun: Callable[[Hub], None] = lambda hub: None
        """Called with each session that begins to be fed."""
        self._output_error: StreamdError | None = None
        self._fault: Fault | None = None  # of the engine
        self._ended: dict[str, Hub] = {}
        self._own: set[str] = set()

    def follow(self, auto_step: AutoStep | None) -> None:
        """Tell what finds the step of the sessions how long each window takes."""
        self._scheduler.auto_step = auto_step

    def add(self, name: str, *, split: bool = False) -> Stream:
        """Begin a session of the daemon's own; it does not count as a client's.

        With `split`, each channel has captions of its own.
        """
        self._own.add(name)
        recording = self._storage.record(name)
        stream = self._add(name, split=split)
        stream.begin(recording)
        self.when_begun(stream.hub)
        return stream

    async def prepare(
        self, session: str, *, feeds: bool = False, epoch: str = "", secret: str = ""
    ) -> None:
        """Learn what other nodes know of a session; await it right before `hub` or `open`.

        It takes the session over for a client that `feeds` it, if another node had it and the
        client has the right to. Raises `WireError` with `slow` if nothing can be learnt now.
        """
        if (journals := self._storage.journals) is None:
            return
        hub = self.in_memory(session)
        feeder = Claimant(epoch, secret) if feeds else None
        try:
            last = await journals.prepare(session, feeder, have=hub.epoch if hub else "")
        except JournalError as error:
            raise WireError("slow", f"{error}: try again") from error
        hub = self.in_memory(session)
        if hub is not None and last not in (None, hub.epoch):
            hub.close(EndReason.DISCONNECT)  # all of an earlier run
            self.forget()
            self._ended.pop(session, None)

    def open(self, session: str, *, epoch: str | None = None, secret: str = "") -> Stream:
        """Begin a session that a client feeds, or resume one of an earlier process.

        `epoch` is the run that the client fed; if the `secret` is right, the client sends again
        what that process had not finalised. Raises `WireError`: `session_busy`, `too_many_streams`,
        `session_over` if that run ended, `storage` if the session cannot be recorded or kept in the
        journal, or if a disk is nearly full and the session new.
        """
        try:
            return self._open(session, epoch, secret)
        except (ConfigError, JournalError) as error:
            log.error("session %s: %s", session, error)  # noqa: TRY400 - no bug
            what = for_clients("the session cannot be stored", error)
            raise WireError("storage", what) from error

    def _open(self, session: str, epoch: str | None, secret: str) -> Stream:
        self._check_free(session, epoch)
        is_resumed = self._admit(session, epoch, secret)
        if not is_resumed and (why := self._storage.full):
            raise WireError("storage", f"no session can begin: {why}")
        stream = self._streams.get(session)
        recording = self._storage.record(session)
        try:
            if stream is None or stream.is_over:
                stream = self._add(session)
        except JournalError:
            if recording is not None:
                recording.discard()
            raise
        if not is_resumed and stream.hub.choices.model:  # of whoever fed it before
            stream.hub.choices = self.choices
        stream.begin(recording, is_resumed=is_resumed)
        self.when_begun(stream.hub)
        return stream

    def _check_free(self, session: str, epoch: str | None) -> None:
        """Raise `WireError` if the session is over or fed, or if too many are."""
        journals = self._storage.journals
        if journals and epoch and (audio_ms := journals.audio_ms(session, epoch)) is not None:
            raise WireError("session_over", "the session ended meanwhile", heard_ms=audio_ms)
        if journals and journals.is_fed_elsewhere(session):
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
        if time.monotonic() - self._began_s < self._storage.resume_s:
            raise WireError("session_busy", f"session {session!r} waits for its client to return")
        stream.end(EndReason.DISCONNECT, resumable=False)
        return False

    def hub(self, session: str) -> Hub | None:
        """Return the hub of a session that can be listened to, or None.

        Sessions of an earlier process are found in the journal. Listeners of one that has not ended
        wait for its client to come back; without listeners `forget` drops it.
        """
        if (found := self.in_memory(session)) is not None:
            return found
        journal = self._storage.journals
        if journal is None or (known := journal.recall(session)) is None:
            return None
        stream = self._add(session, known)
        if known.ended:
            stream.end(known.ended, resumable=False)
        return stream.hub

    def in_memory(self, session: str) -> Hub | None:
        """Return the hub of a session that need not be read from a journal. Any thread may ask."""
        stream = self._streams.get(session)
        return stream.hub if stream else self._ended.get(session)

    def own(self, session: str) -> Stream | None:
        """Return a session of the daemon's own, or None if a client feeds it or there is none."""
        return self._streams.get(session) if session in self._own else None

    def names(self) -> list[str]:
        """Return the sessions that can be listened to, those that have ended first."""
        return [*self._ended, *self._streams]

    def unready(self) -> list[str]:
        """Return the reasons why new clients should use another server."""
        own = [self._streams[name] for name in self._own]
        trouble = self._storage.journals.trouble if self._storage.journals else ""
        full = self._storage.full
        reasons = {
            trouble: bool(trouble),
            full: bool(full),
            "the model is not loaded yet": not self.loaded.is_set(),
            "the engine failed": self.has_failed,
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
    def are_idle(self) -> bool:
        """Whether no stream is fed. Any thread may ask."""
        return not any(stream.is_fed for stream in list(self._streams.values()))

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
        Anything else that a window raises is a bug, which ends its session only.
        """
        self._chooser = chooser or self._chooser
        self.loaded.set()
        await asyncio.to_thread(trim)  # loading the model took a lot
        await self._scheduler.run(*recognizers)

    def serve(
        self, model: str, recognizers: Sequence[WindowRecognizer]
    ) -> tuple[Scheduler, asyncio.Task[None]]:
        """Serve the sessions whose clients have chosen another model; cancel the task to end that.

        If its engine fails, so do they, and nobody else.
        """
        self._schedulers[model] = scheduler = self._scheduler_of(model)
        scheduler.auto_step = self._scheduler.auto_step

        async def run() -> None:
            try:
                await scheduler.run(*recognizers)
            except EngineError as error:
                log.error("model %s: %s", model, error)  # noqa: TRY400 - no bug
                for stream in self.on(model):
                    stream.fail(Fault(code="engine", message=f"{model}: {error}", fatal=True))
            finally:
                if self._schedulers.get(model) is scheduler:
                    del self._schedulers[model]
                self._wake()

        return scheduler, asyncio.create_task(run())

    def on(self, model: str) -> list[Stream]:
        """Return the streams that are fed and have chosen this model; empty: the server's own.

        One that is to be resumed has the own model until its client comes and the other is open.
        """
        fed = [stream for stream in self._streams.values() if stream.is_fed]
        if model:
            return [stream for stream in fed if stream.hub.choices.model == model]
        others = self._schedulers.keys() - {""}
        return [stream for stream in fed if stream.hub.choices.model not in others]

    def _scheduler_of(self, model: str) -> Scheduler:
        return Scheduler(
            partial(self.on, model),
            self.metrics,
            deadline_s=self._deadline_s,
            all_models=lambda: self._schedulers.values(),
        )

    def _wake(self) -> None:
        for scheduler in self._schedulers.values():
            scheduler.wake()

    async def between(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        """Call in the thread of a recognizer of the own model; see `Scheduler.between`."""
        return await self._scheduler.between(call, *args)

    async def keep(self) -> None:
        """Keep what is to be kept, until cancelled. Raises `JournalError` if that fails."""
        if self._storage.journals is None:
            return
        try:
            await self._storage.journals.run()
        except* JournalError as group:
            self._output_failed(JournalError(str(group.exceptions[0])))
            raise

    async def kept(self) -> None:
        """Return when everything is kept."""
        if self._storage.journals is not None:
            await self._storage.journals.written()

    async def chores(self) -> None:
        """Publish stats, update metrics and return memory, each second."""
        while True:
            await asyncio.sleep(1)
            self._publish_states()
            if self._untrimmed_s >= _TRIM_S:
                self._untrimmed_s = 0
                if self.are_idle:
                    for release in self.when_idle:
                        release()
                await asyncio.to_thread(trim)

    def _publish_states(self) -> None:
        n_before = len(self._streams)
        self.forget()
        running = [s for s in self._streams.values() if s.is_fed]
        busy_s = 0.0
        for scheduler in self._schedulers.values():
            busy_s += scheduler.busy_s
            scheduler.busy_s = 0.0
        has_used = busy_s or len(self._streams) < n_before
        self._untrimmed_s += bool(has_used or self._untrimmed_s)
        if self._untrimmed_s and not (running or busy_s):
            self._untrimmed_s = _TRIM_S
        model = self.early_model()
        for stream in running:
            stream.publish_state(busy_s / len(running), "" if stream.hub.choices.model else model)
        hubs = [stream.hub for stream in self._streams.values()]
        self.metrics.streams.set(len(running))
        self.metrics.unstored.set(max((s.unstored_ms for s in running), default=0) / 1000)
        self.metrics.queued.set(max((hub.queued for hub in hubs), default=0))

    def fail(self, error: Exception) -> None:
        """Tell every listener of every session: a dead engine must never look like silence."""
        code, message = "internal", str(error) or repr(error)
        if isinstance(error, StreamdError):
            code = "engine"
        if isinstance(error, ModelError):
            message = for_clients("the model cannot be used", error)
        if error is self._output_error:
            code, message = "journal", for_clients("sessions cannot be stored", error)
        self._fault = Fault(code=code, message=message, fatal=True)
        self.loaded.set()
        self._scheduler.refuse(self._fault.message)
        for stream in self._streams.values():
            stream.fail(self._fault)

    @property
    def has_failed(self) -> bool:
        """Whether the engine or the journal failed, so that nothing is computed any more."""
        return self._fault is not None

    def end(self) -> None:
        """End all sessions as they are, because the process has to end; they may be resumed."""
        for name, stream in self._streams.items():
            if stream.is_fed and not stream.is_over:
                log.warning("session %s: its end could not be transcribed in time", name)
                reason = EndReason.STOP if name in self._own else EndReason.SHUTDOWN
                stream.end(reason, resumable=True)

    def forget(self) -> None:
        """Free ended sessions but for the text of the newest, and those from the journal."""
        for name, stream in list(self._streams.items()):
            if stream.hub.closed and name not in self._own:
                self._ended[name] = self._streams.pop(name).hub
            elif not (stream.hub.closed or stream.is_fed or stream.hub.listeners):
                self._streams.pop(name).end(EndReason.FORGOTTEN, resumable=True)
        for name in list(self._ended)[:-MAX_ENDED]:
            del self._ended[name]

    def _add(self, name: str, journal: Journal | None = None, *, split: bool = False) -> Stream:
        self.forget()
        self._ended.pop(name, None)
        if journal is None and self._storage.journals is not None:
            journal = self._storage.journals.open(name)
        hub = Hub(name, _N_RECENT, journal=journal) if journal else Hub(name)
        if journal is not None and name in self._own:
            journal.feed(Fed())  # a client may have fed it in an earlier process
        if journal is not None:
            journal.joined(hub.relay, partial(self._move, name))
        hub.choices = (journal and journal.fed.choices) or self.choices
        if split:
            hub.choices = replace(hub.choices, split=True)
        return self._add_stream(name, hub)

    def _move(self, name: str, error: JournalError | None) -> None:
        """Another node took the session: its listeners here stay, and hear of it from there.

        With an `error`, nobody can go on with it: it ends.
        """
        if (stream := self._streams.get(name)) is None:
            return
        if error is not None:
            stream.report(Fault(code="journal", message=str(error), fatal=True))
            stream.end(EndReason.ERROR, resumable=False)
        else:
            self._add_stream(name, stream.hub)
            self.metrics.replaced.inc()
            stream.move()

    def _add_stream(self, name: str, hub: Hub) -> Stream:
        self._streams[name] = stream = Stream(self.context, hub)
        if self._fault is not None:
            stream.fail(self._fault)
        return stream

    async def _choose(self, before: Choices, chosen: Mapping[str, object]) -> Choices:
        model = str(chosen.get("model", before.model))
        if not (chosen or model):
            return before
        await self.loaded.wait()  # only the model knows its languages
        others = {name: value for name, value in chosen.items() if name != "model"}
        # Of a session that is resumed, it comes from the journal, and this server may have another.
        named = self.meant(model, True) if model else ""
        choose = await self.open_named(named) if named and self.open_named else self._chooser
        try:
            return choose(before, others)
        except ConfigError as error:
            raise WireError("bad_option", str(error)) from None

    async def _learn(self, phrase: str) -> None:
        if self.learn is None:
            raise WireError("bad_option", "keep: this server has no list of phrases")
        try:
            await asyncio.to_thread(self.learn, phrase)
        except ConfigError as error:
            log.error("keep: %s", error)  # noqa: TRY400 - no bug
            what = for_clients("the phrase cannot be kept", error)
            raise WireError("bad_option", what) from error

    def _output_failed(self, error: StreamdError) -> None:
        """Stop everything: a final that cannot be stored must not be published."""
        self._output_error = self._output_error or error
        self.fail(self._output_error)  # before a client is told that it may drop its audio
        self._scheduler.fail(self._output_error)
