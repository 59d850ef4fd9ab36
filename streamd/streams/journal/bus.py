"""The journal of several machines (nodes), in NATS JetStream: any of them can go on with a session.

A session has a *lease* in a key-value bucket, which says which node feeds it, and each of its runs
a subject in a stream, with the lines that a file has (`JournalLine`). A node takes a session by
writing the lease and then a `Head` into the run: both only if nothing came in between. So the next
line of a node that has lost the session without noticing is refused. Partials are relayed to the
other nodes without being stored; each message names the place of the last line, and a node that
lacks a line reads it from the stream.
"""

import asyncio
import logging
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Annotated

import msgspec
from nats.aio.subscription import Subscription

from streamd.events import (
    Eos,
    Fault,
    Final,
    Gap,
    Lag,
    Note,
    Partial,
    SessionEvent,
    SpeakerTurns,
    Stats,
    Vad,
)
from streamd.labels import revise, revised
from streamd.speakers import SpokenTurn
from streamd.streams.journal.jetstream import (
    LEASES,
    LOG,
    NODES,
    JetStream,
    OvertakenError,
    StoredMessage,
    UnstorableError,
)
from streamd.streams.journal.journals import JournalError, Moved, Release
from streamd.streams.journal.lines import (
    Claimant,
    Fed,
    Head,
    JournalLine,
    LoggedEvent,
    contradiction,
    read_line,
)
from streamd.types import ResumeState

_HISTORY = 10_000
"""Finals of a session that a node keeps in memory for replay: a day of speech."""
_PATIENCE_S = 10.0
"""How long a client waits for the bus to say what is known of its session."""
_QUIET_BEATS = 4
"""How often the lease of a session that stores nothing is read: it costs NATS more than a final."""
_RELAYED = Partial | Vad | Lag | Stats | Fault
"""Events that other nodes hear of, but that are not stored."""

_NAME = r"^[\w-]{1,64}\Z"

log = logging.getLogger(__name__)
Step = Callable[[], Awaitable[None]]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The `node` that feeds the run `epoch` of a session; empty: none does.

    `progress`, stored as `settled`, is a line without an event: silence is not logged.
    """

    node: Annotated[str, msgspec.Meta(pattern=rf"{_NAME}|^\Z")]
    epoch: Annotated[str, msgspec.Meta(pattern=_NAME)]
    progress: JournalLine = msgspec.field(default=JournalLine(), name="settled")


class Relayed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the node that feeds a run sends to the others: a `line` that is stored, or an event.

    `at` is the place of the run's last line in the stream, `before` that of the line before it.
    """

    epoch: str
    at: int
    before: int = 0
    line: JournalLine | None = None
    event: _RELAYED | None = None


_encode = msgspec.json.Encoder().encode
_relayed = msgspec.json.Decoder(Relayed).decode
_lease = msgspec.json.Decoder(Lease).decode


class Outbox:
    """Steps to be done one after the other, however long each takes; `run` does them.

    A step with a `key` replaces one with the same key that has not begun.
    """

    def __init__(self) -> None:
        self._steps: OrderedDict[object, Step] = OrderedDict()
        self._news, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._count = count()
        self._began_s: float | None = None

    @property
    def lag_ms(self) -> int:
        """How long the present step has taken."""
        return 0 if self._began_s is None else round((time.monotonic() - self._began_s) * 1000)

    def put(self, step: Step, key: object = None) -> None:
        """Append a step."""
        if key is not None:
            self._steps.pop(key, None)
        self._steps[next(self._count) if key is None else key] = step
        self._empty.clear()
        self._news.set()

    def clear(self) -> None:
        """Drop all steps that have not begun."""
        self._steps.clear()
        self._empty.set()

    async def done(self) -> None:
        """Return when there is nothing to do."""
        await self._empty.wait()

    async def run(self) -> None:
        """Do the steps, until cancelled. Raises what they raise."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._steps:
                _, step = self._steps.popitem(last=False)
                self._began_s = time.monotonic()
                try:
                    await step()
                finally:
                    self._began_s = None
            self._empty.set()


class Channel:
    """One session's name on the bus: its lease, its last run, and what this node has to write."""

    def __init__(self, stream: JetStream, session: str) -> None:
        self.stream, self.session = stream, session
        # A session's name may have dots, even alone; the bus would take them for its separators.
        self.key = session.replace(".", "/")
        self._unreadable = 0  # place of such a lease
        self.revision = 0
        """Place of the newest lease; 0: there is none."""
        self.stored, self.n_beats = (0, 0), 0
        """The newest line and lease, and how many beats ago they came."""
        self.journal: BusJournal | None = None
        self.is_elsewhere = False
        """Whether the client that has asked last cannot feed the session here."""
        self.over: tuple[str, int] | None = None
        """Epoch and length of the earlier run that a client has asked about."""
        self.lock = asyncio.Lock()
        self.outbox = Outbox()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs it."""
        return self.journal is None or (self.journal.closed and not self.journal.is_mine)

    @property
    def is_over(self) -> bool:
        """Whether the journal that this node has, if any, takes no more."""
        return self.journal is None or self.journal.closed

    async def lease(self) -> tuple[Lease | None, StoredMessage | None]:
        """Read the lease; return it with its message. It is for the caller to set `revision`.

        One that cannot be read counts as none: whoever feeds the session next replaces it.
        """
        subject = f"$KV.{LEASES}.{self.key}"
        if (found := await self.stream.newest(subject)) is None:
            return None, None
        try:
            return _lease(found.data), found
        except (ValueError, RecursionError) as error:
            if self._unreadable != found.at:
                what = f"session {self.session}: the lease {subject} in the bus cannot be read"
                log.warning(
                    "%s: %s; the next client that feeds the session replaces it", what, error
                )
            self._unreadable = found.at
            return None, found

    async def write_lease(self, node: str, epoch: str, progress: JournalLine) -> None:
        """Write the lease; raises `OvertakenError` if another node has done so."""
        lease = Lease(node=node, epoch=epoch, progress=progress)
        subject = f"$KV.{LEASES}.{self.key}"
        self.revision = await self.stream.put(subject, _encode(lease), last=self.revision)

    async def run(self) -> None:
        """Write what is to be written, until cancelled; let the session go if it is refused."""
        while True:
            try:
                await self.outbox.run()
            except OvertakenError:
                if self.journal is not None:
                    await self.journal.move()
            except UnstorableError as error:
                if self.journal is not None:
                    self.journal.give_up(error)


class BusJournal:
    """One run of a session: written by this node, or followed while another one writes it.

    `is_new`: it is to be begun here. Otherwise `catch_up` reads what is stored.
    """

    moves = True

    def __init__(self, channel: Channel, head: Head, *, is_new: bool = False) -> None:
        self.session, self.epoch, self.started = head.session, head.epoch, head.started
        self.seq, self.seg, self.end_ms, self.fed = 0, 0, 0, Fed()
        self.ended = ""
        self.finalised_ms = 0
        self.resume_state: ResumeState | None = None
        self._kept = JournalLine()  # the same, as it is stored
        self.closed = False
        self.is_mine = is_new
        """Whether this node feeds the session."""
        self.at = 0
        """Place of the last line in the stream; 0 if there is none."""
        self._channel, self._stream = channel, channel.stream
        self._subject = f"{LOG}.{channel.key}.{self.epoch}"
        self._finals: deque[Final] = deque(maxlen=_HISTORY)
        self._notes: list[Note] = []
        self._spoken: list[SpokenTurn] = []  # who talks in the last minute
        self._lock = asyncio.Lock()
        self._following: Subscription | None = None
        self.is_joined = False
        """Whether somebody gets its events."""
        self._relay: Callable[[Fed | SessionEvent], None] = lambda event: None
        self._moved: Moved = lambda error: None
        self._is_damaged = False  # and the log says so
        if is_new:
            channel.outbox.put(partial(self._write_lease, JournalLine()))
            self._put_line(head)

    @property
    def is_beginning(self) -> bool:
        """Whether this node feeds the session, and nothing of it is stored yet."""
        return self.is_mine and not self.at

    @property
    def first(self) -> int:
        return self._finals[0].seq if self._finals else self.seq + 1

    @property
    def kept_ms(self) -> int:
        return self._kept.resume_state.start_ms if self._kept.resume_state else 0

    @property
    def lag_ms(self) -> int:
        return self._channel.outbox.lag_ms if self.is_mine else 0

    def joined(self, relay: Callable[[Fed | SessionEvent], None], moved: Moved) -> None:
        self.is_joined, self._relay, self._moved = True, relay, moved

    def store(self, event: SessionEvent, release: Release) -> None:
        """Release the event once it and all before it are stored; lag and stats at once."""
        if not self.is_mine:
            release(event)
            return
        if isinstance(event, Final | Gap | Note | SpeakerTurns):
            self._put_line(event)
        elif isinstance(event, Lag | Stats):
            release(event)
            self._channel.outbox.put(partial(self._relay_event, event), key=type(event))
            return
        key = Partial if isinstance(event, Partial) else None
        self._channel.outbox.put(partial(self._pass_on, event, release), key=key)

    def revise(self, final: Final) -> None:
        """Store nothing more: the log has the turns, from which every reader revises the finals."""

    def notes(self) -> Iterator[Note]:
        return iter(self._notes)

    def attach(self, sound: str, start_ms: int, at_ms: int) -> None:
        """Store nothing: a file of this machine is of no use to the others."""

    def feed(self, fed: Fed) -> None:
        if fed != self.fed and self.is_mine:
            self.fed = fed
            self._put_line(fed)

    def mark(self) -> None:
        if (
            self.is_mine
            and self.resume_state is not None
            and self.resume_state.start_ms > self.kept_ms
        ):
            self._channel.outbox.put(partial(self._write_lease, self._progress), key="mark")

    def end(self, reason: str) -> None:
        self.ended, self.closed = reason, True
        if self.is_mine:
            self._put_line(Eos(seq=self.seq, reason=reason))
            self._channel.outbox.put(self._let_go)

    def close(self) -> None:
        """Let the session go; another node may go on with it at once."""
        if self.is_mine and not self.closed:
            self._channel.outbox.put(partial(self._write_lease, self._progress, node=""))
            self._channel.outbox.put(self._let_go)
        self.closed = True

    def read(self, after: int, upto: int) -> Iterator[Final]:
        return iter([final for final in self._finals if after < final.seq <= upto])

    async def catch_up(self) -> None:
        """Read the lines that this node has not heard of."""
        async with self._lock:
            while not (self.is_mine or self.ended):
                if not (found := await self._stream.following(self._subject, self.at)):
                    return
                for each in found:
                    if each.at > self.at and not self.is_mine:
                        self._take(each.at, self._read(each))

    async def follow(self) -> None:
        """Hear from now on what the node that feeds the session tells."""
        if self._following is None:
            subject = f"streamd_told.{self._channel.key}"
            self._following = await self._stream.listen(subject, self._hear)
        await self.catch_up()

    async def unfollow(self) -> None:
        """Hear no more."""
        if (following := self._following) is not None:
            self._following = None
            await following.unsubscribe()

    async def claim(self) -> None:
        """Become the one whose lines are taken; await `Channel.write_lease` first."""
        while True:
            await self.catch_up()
            if self.ended:
                return
            head = Head(
                session=self.session,
                epoch=self.epoch,
                started=self.started,
                seq=self.seq,
                # The interrupted segment used a number, which its successor must not use again.
                seg=self.seg + 1,
                end_ms=self.end_ms,
                fed=self.fed,
            )
            try:
                await self._append(JournalLine(finalised_ms=self.finalised_ms, event=head))
            except OvertakenError:
                continue
            self.is_mine = True
            await self.unfollow()
            return

    async def move(self) -> None:
        """Another node has the session: write nothing more, follow it, and tell the hub."""
        self._channel.outbox.clear()
        log.warning("session %s: another node feeds it now", self.session)
        self.is_mine = self.closed = False
        self.ended = ""
        self.keep(self._kept)
        self._moved(None)
        await self.follow()

    def give_up(self, error: JournalError) -> None:
        """End a run with a line that can never be stored; later lines are not published."""
        self._channel.outbox.clear()
        log.error("session %s: %s", self.session, error)
        self._moved(error)

    def _read(self, stored: StoredMessage) -> JournalLine:
        """Decode a line; what is none is passed over: nobody else could read it, either."""
        try:
            return read_line(stored.data)
        except ValueError as error:
            if not self._is_damaged:
                what = f"session {self.session}: message {stored.at} of {self._subject}"
                log.warning("%s is no line of a journal: %s; it is passed over", what, error)
            self._is_damaged = True
            return JournalLine()

    def _put_line(self, event: LoggedEvent) -> None:
        state = self.resume_state if isinstance(event, Final) else None
        line = JournalLine(finalised_ms=self.finalised_ms, resume_state=state, event=event)
        self._channel.outbox.put(partial(self._append, line))

    async def _append(self, line: JournalLine) -> None:
        before = self.at
        at = await self._stream.put(self._subject, _encode(line), last=before)
        self._take(at, line)
        await self._send(Relayed(epoch=self.epoch, at=at, before=before, line=line))

    async def _pass_on(self, event: SessionEvent, release: Release) -> None:
        release(event)
        if isinstance(event, _RELAYED):
            await self._relay_event(event)

    async def _relay_event(self, event: _RELAYED) -> None:
        await self._send(Relayed(epoch=self.epoch, at=self.at, event=event))

    async def _send(self, relayed: Relayed) -> None:
        await self._stream.publish(f"streamd_told.{self._channel.key}", _encode(relayed))

    @property
    def _progress(self) -> JournalLine:
        return JournalLine(finalised_ms=self.finalised_ms, resume_state=self.resume_state)

    async def _write_lease(self, progress: JournalLine, node: str | None = None) -> None:
        name = self._stream.node if node is None else node
        await self._channel.write_lease(name, self.epoch, progress)
        self.keep(progress)

    def keep(self, line: JournalLine) -> None:
        """Note the progress that is stored."""
        if line.finalised_ms >= self._kept.finalised_ms:
            state = line.resume_state or self._kept.resume_state
            self._kept = JournalLine(finalised_ms=line.finalised_ms, resume_state=state)
        if not self.is_mine:
            self.finalised_ms, self.resume_state = self._kept.finalised_ms, self._kept.resume_state

    async def _let_go(self) -> None:
        self.is_mine = False

    async def _hear(self, data: bytes) -> None:
        try:
            relayed = _relayed(data)
        except (ValueError, RecursionError):
            return  # of a newer node; if it was a line, the next one or the next beat shows it
        if self.is_mine or relayed.epoch != self.epoch:
            return
        if relayed.line is not None and relayed.before == self.at:
            self._take(relayed.at, relayed.line)
        elif relayed.at > self.at:
            await self.catch_up()
        if relayed.event is not None and relayed.at == self.at:
            self._relay(relayed.event)

    def _take(self, at: int, line: JournalLine) -> None:
        """Note a line that is stored; tell the hub, unless it is this node's own."""
        self.at, event = at, line.event
        self.keep(line)
        match event:
            case Final():
                self.seq, self.seg = event.seq, event.seg
                self.end_ms = max(self.end_ms, event.end_ms)
                self._finals.append(event)
            case Gap():
                self.end_ms = max(self.end_ms, event.t_ms + event.duration_ms)
            case SpeakerTurns():
                self._spoken = revised(self._spoken, event)
                revise(self._finals, self._spoken, event)
            case Head():
                self.started, self.seg, self.fed = event.started, event.seg, event.fed
            case Fed():
                self.fed = event
            case Eos():
                self.ended = event.reason
            case _ if isinstance(event, Note):
                self._notes.append(event)
        if not self.is_mine and event is not None and not isinstance(event, Head):
            self._relay(event)


class Bus:
    """The sessions of all nodes; `run` connects this one.

    After a node has died, a client has `resume_s` to resume its session before others can feed it.
    """

    def __init__(self, stream: JetStream, *, resume_s: float) -> None:
        self._stream, self._resume_s = stream, resume_s
        self._channels: dict[str, Channel] = {}
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        async with self._tasks:
            await self._stream.run(self._beat)

    async def written(self) -> None:
        for channel in [*self._channels.values()]:
            await channel.outbox.done()

    async def prepare(self, session: str, claimant: Claimant | None, *, have: str) -> str | None:
        """Read what is stored of a session, and take it if a `claimant` may go on with it here.

        While the bus does not answer, sessions that this node feeds go on. Others wait, since it
        may lack finals that the client got elsewhere. Raises `JournalError` if that takes long.
        """
        journal = self._channel(session).journal
        if self._stream.trouble and journal is not None and journal.is_mine:
            return journal.epoch
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    channel = self._channel(session)
                    async with channel.lock:
                        if channel is not self._channels.get(session):
                            continue  # it was dropped meanwhile
                        with suppress(OvertakenError):  # as when the other node lets it go now
                            return await self._prepare(channel, claimant, have)
        except TimeoutError:
            raise JournalError(self._stream.trouble or "the bus is slow") from None

    async def _prepare(self, channel: Channel, claimant: Claimant | None, have: str) -> str | None:
        if channel.is_over:
            await channel.outbox.done()  # the end is being written
        journal = channel.journal
        if journal is not None and journal.is_beginning:
            return journal.epoch
        lease, stored = await channel.lease()
        if lease is None or stored is None:
            return await self._without_lease(channel, stored)
        if journal is not None and await self._is_still_mine(journal, lease):
            return journal.epoch
        # Not before: with the newest revision, a node that has lost the session would not notice.
        channel.revision = stored.at
        if channel.is_over and claimant is None and have == lease.epoch:
            return have
        journal = await self._journal(channel, lease)
        await journal.follow()
        channel.is_elsewhere = False
        await self._admit(channel, lease, stored.time, claimant)
        if channel.journal is None:
            return ""
        return lease.epoch if journal.at else None

    async def _without_lease(self, channel: Channel, stored: StoredMessage | None) -> str | None:
        """Forget a run that this node followed: nobody can go on with it."""
        if (journal := channel.journal) is not None and journal.is_mine:
            return journal.epoch
        channel.revision = stored.at if stored else 0
        if channel.is_over:
            return None
        await self._drop(channel)
        return ""

    async def _drop(self, channel: Channel) -> None:
        """Let the next client that feeds the session begin a new run."""
        if channel.journal is not None:
            await channel.journal.unfollow()
        channel.journal, channel.is_elsewhere = None, False

    async def _is_still_mine(self, journal: BusJournal, lease: Lease) -> bool:
        """Whether this node feeds the session; a journal that thought so learns if it does not."""
        if not journal.is_mine:
            return False
        if lease.node != self._stream.node:
            await journal.move()
        return lease.node == self._stream.node

    async def _journal(self, channel: Channel, lease: Lease) -> BusJournal:
        """The journal of the last run; that of an earlier one is replaced."""
        journal = channel.journal
        if journal is not None:
            if not journal.closed and journal.epoch == lease.epoch:
                return journal
            await journal.catch_up()
            await journal.unfollow()
        head = Head(session=channel.session, epoch=lease.epoch, started=datetime.now(UTC))
        journal = channel.journal = BusJournal(channel, head)
        await journal.catch_up()
        journal.closed = bool(journal.ended)
        return journal

    async def _admit(
        self, channel: Channel, lease: Lease, stored_at: datetime, claimant: Claimant | None
    ) -> None:
        """Take the session for a client that feeds it, unless it is fed elsewhere or over."""
        if claimant is None:
            return
        if claimant.epoch and claimant.epoch != lease.epoch:
            await self._look_back(channel, claimant.epoch)
        if (journal := channel.journal) is None or journal.ended:
            return
        if not claimant.resumes(journal.epoch, journal.fed):
            is_fed = lease.node not in ("", self._stream.node)
            is_fed = is_fed and await self._stream.newest(f"$KV.{NODES}.{lease.node}") is not None
            # The client that can resume the session may still come. Nodes' own clocks may differ.
            age_s = (await self._stream.now() - stored_at).total_seconds()
            is_awaited = bool(journal.fed.proof) and age_s < self._resume_s
            channel.is_elsewhere = is_fed or is_awaited
        if channel.is_elsewhere:
            return
        journal.keep(lease.progress)
        if why := contradiction(journal.fed, journal.resume_state, journal.finalised_ms):
            log.warning("session %s: %s; the session starts over", journal.session, why)
            await self._drop(channel)
        else:
            await channel.write_lease(self._stream.node, journal.epoch, lease.progress)
            await journal.claim()

    async def _look_back(self, channel: Channel, epoch: str) -> None:
        """Find out whether an earlier run has ended."""
        if not re.search(_NAME, epoch):  # the client made it up
            return
        found = await self._stream.newest(f"{LOG}.{channel.key}.{epoch}")
        line = JournalLine()
        with suppress(ValueError):
            line = read_line(found.data) if found else line
        channel.over = (epoch, line.finalised_ms) if isinstance(line.event, Eos) else None

    def open(self, session: str) -> BusJournal:
        channel = self._channel(session)
        journal = channel.journal
        if journal is None or journal.closed:
            head = Head(session=session, epoch=secrets.token_hex(4), started=datetime.now(UTC))
            journal = channel.journal = BusJournal(channel, head, is_new=True)
        return journal

    def recall(self, session: str) -> BusJournal | None:
        channel = self._channels.get(session)
        return channel.journal if channel and channel.journal and channel.journal.at else None

    def audio_ms(self, session: str, epoch: str) -> int | None:
        channel = self._channel(session)
        journal = channel.journal
        if journal is not None and journal.epoch == epoch and journal.ended:
            return journal.finalised_ms
        return channel.over[1] if channel.over and channel.over[0] == epoch else None

    def is_fed_elsewhere(self, session: str) -> bool:
        channel = self._channels.get(session)
        return channel is not None and channel.is_elsewhere

    @property
    def trouble(self) -> str:
        return self._stream.trouble

    def _channel(self, session: str) -> Channel:
        channel = self._channels.get(session)
        if channel is None:
            channel = self._channels[session] = Channel(self._stream, session)
            channel.task = self._tasks.create_task(channel.run())
        return channel

    async def _beat(self) -> None:
        """Look after the sessions that `prepare` is not busy with."""
        for session, channel in [*self._channels.items()]:
            if not channel.lock.locked():
                await self._look_after(session, channel)

    async def _look_after(self, session: str, channel: Channel) -> None:
        """Forget a session that nobody needs; look for lines that were not relayed."""
        journal = channel.journal
        if journal is not None and not journal.is_joined:
            journal.close()  # the client that asked for it did not get it
        if channel.is_idle:
            del self._channels[session]
            if journal is not None:
                await journal.unfollow()
            if channel.task is not None:
                channel.task.cancel()
        elif journal is not None and not journal.is_mine:
            await journal.catch_up()
        elif journal is not None and journal.at:
            stored = journal.at, channel.revision
            channel.n_beats = channel.n_beats + 1 if channel.stored == stored else 0
            channel.stored = stored  # so it was this node's then
            if channel.n_beats == 0 or channel.n_beats % _QUIET_BEATS:
                return
            lease, _ = await channel.lease()
            if lease and not journal.closed:
                await self._is_still_mine(journal, lease)  # or lost while its client was away
