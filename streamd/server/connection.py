"""One client: `WebSocket` moves messages, `Connection` does what the client's dialect says."""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import Protocol

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConcurrencyError, ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State

from streamd.errors import WireError
from streamd.events import PROTOCOL, Ack, EndReason, Eos, Event, Fault, SessionEvent, encode
from streamd.options import ServerLimits
from streamd.server.access import LIVE, Access, Rights
from streamd.server.dialects import Close, Dialect, Tell
from streamd.server.dialects.native import Native
from streamd.server.ingest import SECRET, Ingest, Ingests, noted
from streamd.server.pacing import Pace
from streamd.server.readers import ChosenLanguage, Translating
from streamd.server.wire import (
    Command,
    Correct,
    Hello,
    Limits,
    Name,
    Role,
    Start,
    Translate,
    close_code,
)
from streamd.streams.hub import Hub
from streamd.streams.life import CONNECTION, Phase, Turn
from streamd.streams.stream import Stream
from streamd.types import SAMPLE_RATE, following

_NOT_KEPT = Fault(
    code="bad_option", message="keep: what this link changes is for this session only"
)

_CLOSE_S = 3.0
"""How long a client has to close when it was told that the server ends: two packets may be lost one
after the other (RFC 6298). Those that send as fast as they can never close."""

_log = logging.getLogger(__name__)


class Socket(Protocol):
    """What `Connection` needs of a connection; `WebSocket` says what the methods do."""

    def has_room(self, n_chars: int) -> bool: ...  # noqa: D102
    def send_at_once(self, text: str) -> None: ...  # noqa: D102
    async def send(self, text: str) -> None: ...  # noqa: D102
    async def receive(self) -> str | bytes: ...  # noqa: D102
    async def close(self, code: int, reason: str) -> None: ...  # noqa: D102


class StuckError(Exception):
    """The client neither reads nor answers; its connection was reset."""


@lru_cache(maxsize=1)
def _frame(text: str) -> bytes:
    # Listeners get the same text one after the other: the same frame for all of them.
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=False)


class WebSocket:
    """A websocket whose client cannot block the server.

    The library's own keep-alive does not drop a client that stops reading: once the send buffer is
    full, its ping waits for the buffer and its timer for the ping. So every send here has a
    deadline. Pings are sent only while the server waits for the client: a client whose audio is
    not read, because the engine is behind, does not count as dead.
    """

    def __init__(self, connection: ServerConnection, limits: ServerLimits) -> None:
        self._connection = connection
        self._deadline_s = limits.send_deadline_ms / 1000
        self._ping_s = limits.ping_ms / 1000
        self._n_unwatched = limits.write_buffer_bytes // 4
        """Bytes that are sure to fit into the send buffer; a character has at most four."""

    def has_room(self, n_chars: int) -> bool:
        """Whether the send buffer has room for a text of this length."""
        buffered = self._connection.transport.get_write_buffer_size()
        return buffered + n_chars < self._n_unwatched

    def send_at_once(self, text: str) -> None:
        """Send a text message, whether the send buffer has room for it or not."""
        # As the library's `broadcast` does, but it makes a frame for each connection.
        if self._connection.protocol.state is State.OPEN:
            self._connection.transport.write(_frame(text))

    async def send(self, text: str) -> None:
        """Send a text message; raises `ConnectionClosed`, or `StuckError` after the deadline."""
        if self.has_room(len(text)):
            self.send_at_once(text)
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._connection.send(text)
        except TimeoutError:
            raise self._reset("does not read") from None

    async def receive(self) -> str | bytes:
        """Wait for the next message, without limit as long as the client answers pings.

        Raises `ConnectionClosed`, or `StuckError` after a ping that was not answered.
        """
        while True:
            try:
                async with asyncio.timeout(self._ping_s):
                    return await self._connection.recv()
            except ConcurrencyError:  # `close` began while this side waited with the next message
                await self._connection.wait_closed()
                raise self._connection.protocol.close_exc from None
            except TimeoutError:
                pass
            try:
                async with asyncio.timeout(self._ping_s):
                    await (await self._connection.ping())
            except TimeoutError:
                raise self._reset("does not answer a ping") from None

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; returns when it is closed, whatever the client does."""
        within_s = self._deadline_s
        if code in (CloseCode.GOING_AWAY, CloseCode.SERVICE_RESTART):
            within_s = min(_CLOSE_S, within_s)
        try:
            async with asyncio.timeout(within_s):
                # While messages wait to be received nothing more is read, not even the client's
                # part of the closing handshake.
                await asyncio.gather(self._connection.close(code, reason), self._discard())
        except TimeoutError:
            self._reset("does not close")

    async def _discard(self) -> None:
        with suppress(
            ConnectionClosed, ConcurrencyError
        ):  # who receives them already may have them
            while True:
                await self._connection.recv()

    def _reset(self, why: str) -> StuckError:
        _log.info("client %s disconnected: it %s", self._connection.remote_address, why)
        transport = self._connection.transport
        if not transport.is_closing():
            # A reset (RST): otherwise the kernel keeps the unread data for minutes.
            transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
        transport.abort()
        return StuckError(why)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What clients learn of the server.

    `language` is set if the model knows only one; `translating` if listeners may choose another.
    """

    model: str
    language: str | None = None
    translating: Translating | None = None


class Connection:
    """The conversation with one client in its dialect: call `run` once.

    Every event that the client receives, answers included, goes through its subscription at the
    hub, so it arrives in the order in which it happened. A listener with the `rights` to speak may
    correct words and name speakers of the daemon's own sessions; those of others only the client
    that feeds them.
    Raises `WireError` if the request cannot be granted; pass the error to `refuse`.
    """

    def __init__(
        self,
        socket: Socket,
        dialect: Dialect,
        *,
        ingests: Ingests,
        info: ServerInfo,
        limits: Limits,
        access: Access,
    ) -> None:
        self._socket, self._dialect, self._ingests = socket, dialect, ingests
        self._query = dialect.request()
        self._bug: Exception | None = None  # of the dialect
        self._error: WireError | None = None
        self._phase = Phase.OPEN
        self._pace = Pace()
        self._ingest: Ingest | None = None
        self._access = access
        # In other protocols what `Start` leaves out.
        self._model = "" if isinstance(dialect, Native) else self._meant(self._query.model)
        self._hub = self._join()
        self._own: Stream | None = None
        if access.rights > Rights.LISTEN and self._ingest is None:
            self._own = ingests.sessions.own(self._hub.session)
        self._hello = Hello(
            proto=PROTOCOL,
            session=self._hub.session,
            epoch=self._ingest.epoch if self._ingest else self._hub.epoch,
            seq=self._hub.seq,
            started=self._hub.started,
            **{
                **msgspec.structs.asdict(self._hub.choices),
                "model": self._model or self._hub.choices.model or info.model,
            },
            rate=SAMPLE_RATE,
            corrects=self._ingest is not None or self._own is not None,
            keeps_voices=self._keeps_voices or msgspec.UNSET,
            translates=(info.translating and info.translating.languages) or msgspec.UNSET,
            limits=limits,
        )
        self._subscription = self._hub.subscribe(
            self._query.after,
            epoch=self._query.epoch and self._query.epoch.partition(SECRET)[0],
            partials=self._query.partials and self._query.role is not Role.INGEST,
            stats=self._query.stats,
            deliver=self._deliver,
            listens=self._query.role is Role.LISTEN,
        )
        self._chosen = ChosenLanguage(info.translating, self._hub, self._subscription)
        self._chosen.choose(self._query.translate, self._query.after)

    @property
    def _keeps_voices(self) -> bool:
        """Whether the client may have voices kept: not if it has a link to the session only."""
        may = self._ingest is not None or self._own is not None
        has_folder = self._ingests.sessions.context.new_keeper is not None
        return may and has_folder and self._access.rights >= Rights.KEEP

    def _meant(self, model: str) -> str:
        """Return the model that is meant, empty if the server's own; raises `WireError`."""
        exactly = isinstance(self._dialect, Native)
        return self._ingests.sessions.meant(model, exactly) if model else ""

    def _join(self) -> Hub:
        """Return the hub of the session to listen to, or open the session to feed."""
        listens = self._query.role is Role.LISTEN
        new = LIVE if listens else session_name(type(self._dialect).__name__)
        name = self._query.session or (new if listens else self._access.session_for(new))
        if not self._access.covers(name):  # `Auth` has said so before, but for some dialects
            raise WireError("no_such_session", f"this token is not for session {name!r}")
        if listens:
            if (hub := self._ingests.sessions.hub(name)) is None:
                raise WireError("no_such_session", f"there is no session {name!r}")
            return hub
        epoch, client = self._query.epoch, self._access.name
        self._ingest = self._ingests.connect(name, epoch=epoch, feeder=self, client=client)
        return self._ingest.session.hub

    @property
    def slow(self) -> bool:
        """Whether the client was disconnected because it did not read."""
        return self._subscription.slow or self._phase is Phase.STUCK

    async def run(self, first: str | bytes | None = None) -> None:
        """Exchange messages until either side closes, then make the client's audio final.

        `first` is a message of the client that was received already.
        """
        if self._ingest is not None:
            await self._ingest.session.stored()  # who hears of it can find it at any node
        for tell in self._dialect.opened(self._hello):
            self._socket.send_at_once(self._encoded(tell))
        writer = asyncio.create_task(self._write())
        reason = EndReason.ERROR
        try:
            reason = await self._read(first, writer)
            self._subscription.close()
            await writer
        finally:
            self._chosen.leave()
            self._subscription.close()
            writer.cancel()
            await asyncio.wait({writer})
            if self._ingest is not None and self._ingest.feeder is self:
                await self._ingests.disconnect(self._ingest, reason)

    @property
    def fault(self) -> WireError | None:
        """What was wrong with what the client sent; None if it was replaced by its own next one."""
        return None if self._error and self._error.code == "replaced" else self._error

    def refuse(self, error: WireError) -> None:
        """Tell the client of the error, of which the first counts, and end."""
        self._turn(Turn.REFUSE)
        # The traceback has frames of this connection, which would keep it in memory.
        self._error = self._error or error.with_traceback(None)
        self._subscription.close()

    def tell(self, event: Ack | Fault) -> None:
        """Send an answer to the client that feeds the session."""
        self._subscription.offer(event)

    def end(self) -> None:
        """The server ends: end the transcript, even if another process resumes the session.

        A client that can go on at another node has its connection closed, and reconnects.
        """
        if self._hub.moves and (self._ingest is None or self._ingest.session.hands_over):
            self._turn(Turn.MOVE)
            self._subscription.close()
            return
        self._subscription.offer(Eos(seq=self._hub.seq, reason=EndReason.SHUTDOWN))

    async def _read(self, message: str | bytes | None, writer: asyncio.Task[None]) -> EndReason:
        try:
            while True:
                if message is None:
                    message = await self._socket.receive()
                n_audio = 0
                if self._ingest is None or not self._ingest.over:
                    n_audio = await self._take(message)
                # Others have their turn: while messages wait, nothing else here suspends.
                await asyncio.sleep(0)
                if wait_s := self._pace.spend(len(message), n_audio_bytes=n_audio):
                    await asyncio.wait({writer}, timeout=wait_s)
                message = None
        except (ConnectionClosed, StuckError):
            return EndReason.DISCONNECT
        except WireError as error:
            self.refuse(error)  # once replaced, what else is wrong is beside it
            return EndReason.ERROR

    async def _take(self, message: str | bytes) -> int:
        """Do what a message says; return how many bytes of audio it had."""
        if self._ingest is None and self._own is None and not self._hello.translates:
            raise WireError("not_ingest", "a client with role=listen cannot send")
        n_audio = 0
        for act in tuple(self._dialect.hear(message)):
            if isinstance(act, Tell):
                await self._socket.send(self._encoded(act))
                continue
            if isinstance(act, bytes):
                n_audio += len(act)
            if (answer := await self._answer(act)) is not None:
                self._subscription.offer(answer)
        if self._ingest is not None and (ack := self._ingest.ack()) is not None:
            self._subscription.offer(ack)
        return n_audio

    async def _answer(self, act: bytes | Command) -> SessionEvent | None:
        told: Fault | None = None
        if isinstance(act, Translate):
            return self._translated(act)
        may_keep = self._access.rights >= Rights.KEEP
        if isinstance(act, Correct | Name) and act.keep and not may_keep:
            act, told = msgspec.structs.replace(act, keep=False), _NOT_KEPT
        if isinstance(act, Start):
            model = self._model if act.model is None else self._meant(act.model)
            act = msgspec.structs.replace(act, model=model or None)
        if self._ingest is not None:
            return await self._ingest.take(act) or told
        if self._own is None or not isinstance(act, Correct | Name):
            only = "a client with role=listen can only send correct, name or translate"
            raise WireError("not_ingest", only)
        return await noted(self._own, act, may_keep=may_keep) or told

    def _translated(self, wanted: Translate) -> Fault | None:
        """Let the client read another language, or say why not."""
        try:
            self._chosen.choose(wanted.into, wanted.after)
        except WireError as error:
            return Fault(code=error.code, message=str(error))
        return None

    async def _write(self) -> None:
        code, reason = 1011, "internal error"
        try:
            event: SessionEvent | None = None
            async for event in self._subscription:
                if self._bug is not None:
                    raise self._bug
                await self._say(event)
                if self._subscription.more:
                    # A send that need not wait does not yield, and a replay may be long.
                    await asyncio.sleep(0)
            ends = isinstance(event, Eos) and event.reason == EndReason.SHUTDOWN
            code, reason = (1001, EndReason.SHUTDOWN) if ends else (1000, "")
            if self._subscription.slow:
                self.refuse(WireError("slow", "too far behind: reconnect with after="))
            if self._phase is Phase.MOVED:
                code, reason = 1012, "go on at another node"
            if self._error is not None:
                await refuse(self._socket, self._dialect, self._error)
        except ConnectionClosed:
            pass  # the reader gets the same
        except StuckError:
            self._turn(Turn.STICK)
        finally:
            await self._socket.close(code, reason)

    async def _say(self, event: SessionEvent) -> None:
        late = await self._chosen.rest() if isinstance(event, Eos) else ()
        for each in (*late, event):
            for tell in tuple(self._dialect.say(each)):
                await self._socket.send(self._encoded(tell))

    def _deliver(self, event: SessionEvent) -> bool:
        # A dialect gets each event only once, so check for the size of the event itself.
        text = self._hub.encode(event)
        if self._bug is not None or not self._socket.has_room(len(text)):
            return False
        try:
            said = tuple(self._dialect.say(event))
        except Exception as bug:
            # This runs in the session that publishes, which a bug in a dialect must not end. The
            # event is left to the writer's task, which raises it.
            self._bug = bug
            return False
        for tell in said:
            self._socket.send_at_once(text if tell.message is event else self._encoded(tell))
        return True

    def _turn(self, turn: Turn) -> None:
        self._phase = following(CONNECTION, self._phase, turn)

    def _encoded(self, tell: Tell) -> str:
        if isinstance(tell.message, Event):
            return self._hub.encode(tell.message)
        return encode(tell.message)


def session_name(client: str) -> str:
    """Return a new name for a session of a client's `Dialect`, in words for the caption page."""
    known = "Client" if client == "Native" else client
    return f"{known}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


async def refuse(socket: Socket, dialect: Dialect, error: WireError) -> None:
    """Report the error to the client and close the connection."""
    with suppress(ConnectionClosed, StuckError):
        close = Close(close_code(error.code), error.code)
        for act in dialect.fault(error):
            if isinstance(act, Tell):
                await socket.send(encode(act.message))
            else:
                close = act
        await socket.close(close.code, close.reason)
