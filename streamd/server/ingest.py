"""Sessions that clients feed: commands and PCM in, frames for the session out.

The session of a client that counts its samples outlives the connection: `Ingests` keeps it for a
while so that the client can reconnect and resume.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from streamd.errors import SourceError, WireError
from streamd.events import Ack, EndReason, Fault, Flushed, GapReason, Started
from streamd.options import ServerLimits
from streamd.server.wire import (
    Command,
    Correct,
    Encoding,
    Flush,
    Name,
    Query,
    Role,
    Start,
    Stop,
    Update,
)
from streamd.sources import Lost
from streamd.sources.confined import ConfinedSource
from streamd.sources.framing import Framer, PcmDecoder
from streamd.streams import Streams
from streamd.streams.stream import Stream
from streamd.types import Frames, ms_from_frames

SECRET = "."
"""Separates the epoch of a session from the secret of the client that feeds it."""
_MAX_ENDED = 64
"""Ended sessions to remember, so that a client that reconnects learns that its session is over."""
_MOMENT_S = 0.25
"""How soon a second change may follow a first: a slider sends one for each step of its way."""
MAX_FEED_FRAMES = 25
"""Half a second: it delays others by about 10 ms, and `wait_for_space` bounds the backlog."""

_log = logging.getLogger(__name__)


class Feeder(Protocol):
    """The connection that feeds an ingest at the moment."""

    def refuse(self, error: WireError) -> None:
        """Tell the client of the error, and take nothing more from it."""

    def tell(self, event: Ack | Fault) -> None:
        """Tell the client what it need not keep, or what is wrong."""


class _Container:
    """The stream of a client that sends a container: a process of its own decodes it.

    `feed` gets the frames; `failed` is called if it cannot be decoded.
    """

    def __init__(
        self, feed: Callable[[Frames], Awaitable[None]], failed: Callable[[WireError], None]
    ) -> None:
        self._feed, self._failed = feed, failed
        self._source = ConfinedSource(None, "the stream")
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def push(self, data: bytes) -> None:
        """Take more of the container; waits while the session has no room."""
        await asyncio.wait((self._open, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._task.done():
            await self._source.feed(data)

    async def finish(self) -> None:
        """Return when the session has all of it."""
        await asyncio.wait((self._open, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._task.done():
            self._source.end()
        await self._task

    def close(self) -> None:
        """Wait for nothing any more."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            async with self._source as source:
                self._open.set_result(None)
                async for item in source:
                    if not isinstance(item, Lost):  # a container loses nothing
                        await self._feed(item)
        except SourceError as error:
            self._failed(WireError("bad_audio", str(error)))


class _AudioInput:
    """The audio of one session, from its ``start`` on; the format never changes.

    `n_received` is the number of the next sample (per channel): sample n lies at n / rate seconds
    of the session. `next_ack` is the sample after which the next ``ack`` is due.
    """

    def __init__(self, start: Start, began_ms: int) -> None:
        self.start = start
        self.counts_samples = start.samples is not None  # so the client can resume
        self.is_container = start.encoding is Encoding.CONTAINER
        form = "s16le" if self.is_container else start.encoding.removeprefix("pcm_")
        self.decoder = PcmDecoder(form, start.channels)
        self.framer = Framer(start.rate, start.channels, split=bool(start.split))
        self.n_received = began_ms * start.rate // 1000
        self.next_ack = self.n_received + start.rate


class Ingest:
    """One session that a client feeds, over one connection after another.

    `epoch` is that of the session and a secret that only the client that feeds it gets, so nobody
    else can resume it. Call `connect` for each connection, `take` for command and `finish`
    at the end.
    """

    def __init__(
        self, session: Stream, *, epoch: str, max_session_ms: int, client: str = ""
    ) -> None:
        self.session, self.epoch, self._max_session_ms = session, epoch, max_session_ms
        self.client = client
        """The address and the name of who has begun it, for the log."""
        self.feeder: Feeder | None = None
        session.when_moved = self._refuse
        self._audio: _AudioInput | None = None  # from the first `start` or audio on
        self._container: _Container | None = None
        self._has_started = False  # on the present connection
        self._has_complained = False
        self._applied: dict[str, object] = {}  # the last updates
        self._waiting: list[Mapping[str, object]] = []  # the updates since then
        self._moment: asyncio.TimerHandle | None = None  # until when they wait
        self._updating: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    @property
    def received_ms(self) -> int:
        """How much audio was received."""
        audio = self._audio
        return 0 if audio is None else audio.n_received * 1000 // audio.start.rate

    @property
    def resumable(self) -> bool:
        """Whether the client can reconnect if its connection breaks."""
        return not self.over and self._audio is not None and self._audio.counts_samples

    @property
    def over(self) -> bool:
        """Whether the session ends or has ended, so that nothing is taken any more."""
        return self._finishing is not None or self.session.is_over

    def connect(self, feeder: Feeder) -> None:
        """Let a connection take over; see `Ingests.connect`."""
        self._refuse()
        self.feeder = feeder
        self._has_started = False

    def _refuse(self) -> None:
        """Another connection feeds the session now, here or at another node."""
        if self.feeder is not None:
            self.feeder.refuse(_replaced())

    async def take(self, command: bytes | Command) -> Flushed | Fault | Started | None:
        """Handle audio or a command of the client and return the answer to it, if there is one.

        Waits while the session has no room for more audio. After `finish` it does nothing.

        Raises `WireError` if that is not allowed, or not now.
        """
        feeder = self.feeder
        async with self._busy:  # a connection that was replaced may still be feeding
            if feeder is not self.feeder:
                raise _replaced()
            if self.over:
                return None
            answer: Fault | Started | None = None
            if isinstance(command, bytes):
                answer = await self._feed(command)
            elif isinstance(command, Start):
                answer = await self._begin(command)
            elif isinstance(command, Update):
                answer = await self._update(command.chosen)
            else:
                await self._update_now()
            if isinstance(command, Correct | Name):
                self._applied.pop("hotwords", None)  # which a correction adds to
                answer = await noted(self.session, command)
        if isinstance(command, Flush):
            await self.session.flush()
            return Flushed(id=command.id, seq=self.session.hub.seq)
        if isinstance(command, Stop):
            await self.finish(EndReason.STOP)
        elif 0 < self._max_session_ms <= self.received_ms:
            await self.finish(EndReason.LIMIT)
        return answer

    async def _update(self, chosen: Mapping[str, object]) -> Fault | None:
        """Change what is chosen, at once unless something has been changed just now.

        Then all changes until the end of the moment become one.
        """
        self._waiting.append(chosen)
        return None if self._moment else await self._apply()

    async def _apply(self) -> Fault | None:
        waiting, self._waiting = self._waiting, []
        chosen = {name: value for one in waiting for name, value in one.items()}
        if chosen.items() <= self._applied.items():
            return None
        fault = await self._choose(chosen)
        if fault is not None and len(waiting) > 1:  # those that are allowed are made
            for one in waiting:
                fault = await self._choose(one) or fault
        self._moment = asyncio.get_running_loop().call_later(_MOMENT_S, self._end_moment)
        return fault

    async def _choose(self, chosen: Mapping[str, object]) -> Fault | None:
        fault = await _fault_of(self.session.update(chosen))
        if fault is None:
            self._applied |= chosen
        return fault

    def _end_moment(self) -> None:
        self._moment = None
        if self._waiting:
            self._updating = asyncio.create_task(self._apply_later())

    async def _apply_later(self) -> None:
        async with self._busy:
            await self._update_now()

    async def _update_now(self) -> None:
        """Make the changes that wait; what follows must find them made."""
        if self._waiting and not self.over:
            if self._moment is not None:
                self._moment.cancel()
                self._moment = None
            fault = await self._apply()
            if fault is not None and self.feeder is not None:
                self.feeder.tell(fault)

    def ack(self) -> Ack | None:
        """Return, once per second of audio, what a client that counts samples need not keep."""
        audio = self._audio
        if audio is None or not self.resumable or audio.n_received < audio.next_ack:
            return None
        audio.next_ack = audio.n_received + audio.start.rate
        samples = self.session.finalise() * audio.start.rate // 1000
        return Ack(samples=min(samples, audio.n_received))

    async def finish(self, reason: EndReason) -> None:
        """Make the audio final and end the session; of several calls the first counts."""
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(reason))
        # Several may wait for it, and one who gives up must not end it for the others.
        await asyncio.shield(self._finishing)

    def end(self, reason: EndReason) -> None:
        """End the session as it is, for which `finish` waits too long; it may be resumed."""
        self.session.end(reason, resumable=True)

    def close(self) -> None:
        """Wait for nothing any more."""
        for task in (self._finishing, self._updating, self._container):
            if isinstance(task, _Container):
                task.close()
            elif task is not None:
                task.cancel()

    async def _finish(self, reason: EndReason) -> None:
        try:
            await self._finish_session(reason)
        finally:
            hub, s = self.session.hub, self.received_ms / 1000
            what = "moved to another node" if self.session.has_moved else f"ended ({reason})"
            _log.info(
                "session %s of %s %s: %.1f s of audio, %d finals",
                *(hub.session, self.client, what, s, hub.seq),
            )

    async def _finish_session(self, reason: EndReason) -> None:
        audio = self._audio
        if self.session.has_moved or (reason == EndReason.SHUTDOWN and self.session.hands_over):
            await self.session.finish(reason)
            return
        async with self._busy:  # audio that is being fed is counted already, so it must get in
            if self._container is not None:
                await self._container.finish()
            elif audio is not None and len(frames := audio.framer.flush()):
                self.session.feed(frames)
        if audio is not None and audio.counts_samples:
            await self.session.flush()
            if self.feeder is not None:
                self.feeder.tell(Ack(samples=audio.n_received))
        await self.session.finish(reason)

    async def _begin(self, start: Start) -> Started | None:
        if self._has_started:
            raise WireError("late_start", "start must come once, before the first audio")
        self._has_started = True
        audio = self._audio
        if audio is None:
            secret = "" if start.samples is None else self.epoch.partition(SECRET)[2]
            has_ms = (start.samples or 0) * 1000 // start.rate
            await self.session.choose(start.chosen, secret=secret, has_ms=has_ms)
            audio = self._audio = _AudioInput(start, self.session.began_ms)
        elif replace(start, samples=audio.start.samples) != audio.start or start.samples is None:
            raise WireError("late_start", "a session must be resumed with the same start")
        elif start.samples > audio.n_received:
            # The client no longer has what the server did not receive.
            n_lost = start.samples - audio.n_received
            self.session.gap(n_lost * 1000 // start.rate, GapReason.RESUME)
            audio.n_received += n_lost
        return None if start.samples is None else Started(samples=audio.n_received)

    async def _feed(self, pcm: bytes) -> Fault | None:
        audio = self._audio
        if audio is None:
            audio = self._audio = _AudioInput(Start(), self.session.began_ms)
        elif audio.counts_samples and not self._has_started:
            raise WireError("late_start", "start must come before the audio, also after a break")
        self._has_started = True
        if audio.is_container:
            self._container = self._container or _Container(self._feed_frames, self._fail)
            await self._container.push(pcm)
            return None
        n_bytes = audio.start.channels * audio.start.encoding.n_bytes
        if len(pcm) % n_bytes:
            what = f"{len(pcm)} bytes are not whole samples of {n_bytes} bytes"
            raise WireError("bad_audio", what)
        size = audio.start.rate * ms_from_frames(MAX_FEED_FRAMES) // 1000 * n_bytes
        for at in range(0, len(pcm), size):
            if at:
                await asyncio.sleep(0)  # minutes of audio must not block other clients
            piece = pcm[at : at + size]
            frames = audio.framer.push(audio.decoder.push(piece))
            audio.n_received += len(piece) // n_bytes
            await self._feed_session(frames)
        if not audio.framer.n_invalid or self._has_complained:
            return None
        self._has_complained = True
        return Fault(code="bad_audio", message="samples that are NaN or infinite count as silence")

    async def _feed_session(self, frames: Frames) -> None:
        for begin in range(0, len(frames), MAX_FEED_FRAMES):
            await self.session.wait_for_space()
            self.session.feed(frames[begin : begin + MAX_FEED_FRAMES])

    async def _feed_frames(self, frames: Frames) -> None:
        if self._audio is not None:
            self._audio.n_received += ms_from_frames(len(frames)) * self._audio.start.rate // 1000
        await self._feed_session(frames)

    def _fail(self, error: WireError) -> None:
        if self.feeder is not None:
            self.feeder.refuse(error)


class Ingests:
    """All sessions that clients feed, also those that wait `resume_ms` for their client."""

    def __init__(self, sessions: Streams, limits: ServerLimits) -> None:
        self.sessions, self._limits = sessions, limits
        self._ingests: dict[str, Ingest] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._ended: deque[tuple[str, str | None, int]] = deque(maxlen=_MAX_ENDED)

    async def prepare(self, query: Query) -> None:
        """Learn what other nodes know of the session; await it right before a client joins it."""
        if query.session is not None:
            epoch, _, secret = (query.epoch or "").partition(SECRET)
            feeds = query.role is not Role.LISTEN
            await self.sessions.prepare(query.session, feeds=feeds, epoch=epoch, secret=secret)

    def connect(
        self, session: str, *, epoch: str | None, feeder: Feeder, client: str = ""
    ) -> Ingest:
        """Return the ingest that the client knows by its `epoch` and secret, or a new one.

        After a restart, the first client that resumes the session brings its secret. Raises
        `WireError` if another client feeds the session, it has ended, or there are too many.
        """
        for name, run, received_ms in self._ended:
            if (name, run) == (session, epoch):
                what = "the session ended in the meantime"
                raise WireError("session_over", what, heard_ms=received_ms)
        ingest = self._ingests.get(session)
        if ingest is None or not ingest.resumable or not _equal(ingest.epoch, epoch or ""):
            ingest = self._ingests[session] = self._open(session, epoch or "", client)
        if (waiting := self._waiting.pop(session, None)) is not None:
            waiting.cancel()
        ingest.connect(feeder)
        return ingest

    def _open(self, session: str, epoch: str, client: str) -> Ingest:
        run, _, secret = epoch.partition(SECRET)
        opened = self.sessions.open(session, epoch=run if secret else None, secret=secret)
        if not opened.is_resumed:
            secret = secrets.token_hex(8)
        name = f"{opened.hub.epoch}{SECRET}{secret}"
        done = "resumed" if opened.is_resumed else "begun"
        _log.info("session %s %s by %s", session, done, client)
        most_ms = self._limits.max_session_ms
        return Ingest(opened, epoch=name, max_session_ms=most_ms, client=client)

    async def disconnect(self, ingest: Ingest, reason: EndReason) -> None:
        """End the session of a connection that ended, or wait for its client to reconnect."""
        session, ingest.feeder = ingest.session.hub.session, None
        if reason == EndReason.DISCONNECT and ingest.resumable:
            self._waiting[session] = asyncio.create_task(self._expire(ingest))
        else:
            await self._end(ingest, reason)

    async def finish(self, reason: EndReason) -> None:
        """End all sessions, waiting ones included. The daemon reports what fails."""
        for task in self._waiting.values():
            task.cancel()
        self._waiting.clear()
        finishing = (each.finish(reason) for each in self._ingests.values())
        await asyncio.gather(*finishing, return_exceptions=True)

    def end(self, reason: EndReason) -> None:
        """End all sessions as they are."""
        for each in self._ingests.values():
            each.end(reason)

    def close(self) -> None:
        """Wait for nothing any more; call it last."""
        for each in self._ingests.values():
            each.close()

    async def _expire(self, ingest: Ingest) -> None:
        await asyncio.sleep(self._limits.resume_ms / 1000)
        del self._waiting[ingest.session.hub.session]
        await self._end(ingest, EndReason.DISCONNECT)

    async def _end(self, ingest: Ingest, reason: EndReason) -> None:
        hub = ingest.session.hub
        if not ingest.session.has_moved:
            self._ended.append((hub.session, ingest.epoch, ingest.received_ms))
        await ingest.finish(reason)
        if self._ingests.get(hub.session) is ingest:
            del self._ingests[hub.session]


async def noted(session: Stream, note: Correct | Name, *, may_keep: bool = True) -> Fault | None:
    """Correct words or name a speaker of a session, for all its listeners; return why not.

    Whoever may not keep voices cannot have those forgotten that somebody else has kept, either.
    """
    if isinstance(note, Correct):
        return await _fault_of(session.correct(note.correction, keep=note.keep))
    return await _fault_of(_named(session, note, may_keep=may_keep))


async def _named(session: Stream, name: Name, *, may_keep: bool) -> None:
    session.rename(name.naming, keep=name.keep if may_keep else None)


async def _fault_of(updating: Coroutine[Any, Any, None]) -> Fault | None:
    """A choice that is not allowed leaves the session as it is: it has been heard for long."""
    try:
        await updating
    except WireError as error:
        return Fault(code=error.code, message=str(error))
    return None


def _replaced() -> WireError:
    return WireError("replaced", "another connection feeds this session now")


def _equal(secret: str, presented: str) -> bool:
    return secrets.compare_digest(secret.encode(), presented.encode())
