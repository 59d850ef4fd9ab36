"""One client of ``/v1/stream``: `WebSocket` moves messages, `Connection` speaks streamd.v1."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from socket import SO_LINGER, SOL_SOCKET
from struct import pack

import msgspec
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.exceptions import ConnectionClosed

from streamd.errors import WireError
from streamd.events import (
    PROTOCOL,
    Ack,
    EndReason,
    Eos,
    Fault,
    Final,
    Missed,
    Partial,
    SessionEvent,
    Vad,
    encode,
)
from streamd.hub import Hub
from streamd.options import ServerLimits
from streamd.server.ingest import SECRET, Ingest, Ingests
from streamd.server.wire import Hello, Limits, Role, close_code, parse_query
from streamd.types import SAMPLE_RATE

LIVE = "live"
"""The session of the daemon's own source, the default for listeners."""

_log = logging.getLogger(__name__)


class StuckError(Exception):
    """The client neither reads nor answers; its connection was reset."""


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

    def send_at_once(self, text: str) -> bool:
        """Send a text message if the send buffer has room; return whether it had."""
        buffered = self._connection.transport.get_write_buffer_size()
        if has_room := buffered + len(text) < self._n_unwatched:
            broadcast([self._connection], text)
        return has_room

    async def send(self, text: str) -> None:
        """Send a text message; raises `ConnectionClosed`, or `StuckError` after the deadline."""
        if self.send_at_once(text):
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
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ping_s):
                    return await self._connection.recv()
            try:
                async with asyncio.timeout(self._ping_s):
                    await (await self._connection.ping())
            except TimeoutError:
                raise self._reset("does not answer a ping") from None

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; returns when it is closed, whatever the client does."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._connection.close(code, reason)
        except TimeoutError:
            self._reset("does not close")

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
    """What ``hello`` says about the model."""

    model: str
    language: str


class Connection:
    """The conversation with one client in streamd.v1: call `run` once.

    Everything that the client receives, answers included, goes through its subscription at the hub,
    so it arrives in the order in which it happened. `query` is that of the address which the client
    opened. Raises `WireError` if the request cannot be granted; pass the error to `refuse`.
    """

    def __init__(
        self, socket: WebSocket, query: str, *, ingests: Ingests, info: ServerInfo, limits: Limits
    ) -> None:
        self._socket, self._ingests = socket, ingests
        self._query = parse_query(query)
        self._error: WireError | None = None
        self._stuck = False
        self._ingest: Ingest | None = None
        self._hub = self._join()
        self._hello = Hello(
            proto=PROTOCOL,
            session=self._hub.session,
            epoch=self._ingest.epoch if self._ingest else self._hub.epoch,
            seq=self._hub.seq,
            started=self._hub.started,
            model=info.model,
            language=info.language,
            rate=SAMPLE_RATE,
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

    def _join(self) -> Hub:
        """Return the hub of the session to listen to, or open the session to feed."""
        session = self._query.session
        if self._query.role is Role.LISTEN:
            hub = self._ingests.sessions.hub(session or LIVE)
            if hub is None:
                raise WireError("no_such_session", f"there is no session {session or LIVE!r}")
            return hub
        self._ingest = self._ingests.connect(session or "", epoch=self._query.epoch, feeder=self)
        return self._ingest.session.hub

    @property
    def slow(self) -> bool:
        """Whether the client was disconnected because it did not read."""
        return self._subscription.slow or self._stuck

    async def run(self) -> None:
        """Exchange messages until either side closes, then make the client's audio final."""
        writer = asyncio.create_task(self._write())
        reason = EndReason.ERROR
        try:
            reason = await self._read()
            self._subscription.close()
            await writer
        finally:
            self._subscription.close()
            writer.cancel()
            await asyncio.wait({writer})
            if self._ingest is not None and self._ingest.feeder is self:
                await self._ingests.leave(self._ingest, reason)

    def replaced(self) -> None:
        """End: the client has reconnected before the server noticed that this connection broke."""
        self._error = WireError("replaced", "another connection feeds this session now")
        self._subscription.close()

    def acknowledge(self, ack: Ack) -> None:
        """Send `ack` to the client that feeds the session."""
        self._subscription.offer(ack)

    def end(self) -> None:
        """The server ends: end the transcript, even if another process resumes the session."""
        self._subscription.offer(Eos(seq=self._hub.seq, reason=EndReason.SHUTDOWN))

    async def _read(self) -> EndReason:
        try:
            while True:
                message = await self._socket.receive()
                if self._ingest is None:
                    raise WireError("not_ingest", "a client with role=listen cannot send")
                for answer in (await self._ingest.take(message), self._ingest.ack()):
                    if answer is not None:
                        self._subscription.offer(answer)
        except (ConnectionClosed, StuckError):
            return EndReason.DISCONNECT
        except WireError as error:
            self._error = error
            return EndReason.ERROR

    async def _write(self) -> None:
        code, reason = 1011, "internal error"
        try:
            await self._socket.send(encode(self._hello))
            event: SessionEvent | None = None
            async for event in self._subscription:
                if text := self._encoded(event):
                    await self._socket.send(text)
                    if self._subscription.more:
                        # A send that need not wait does not yield, and a replay may be long.
                        await asyncio.sleep(0)
            ends = isinstance(event, Eos) and event.reason == EndReason.SHUTDOWN
            code, reason = (1001, EndReason.SHUTDOWN) if ends else (1000, "")
            if self._subscription.slow:
                self._error = WireError("slow", "too far behind: reconnect with after=")
            if self._error is not None:
                await refuse(self._socket, self._error)
        except ConnectionClosed:
            pass  # the reader gets the same
        except StuckError:
            self._stuck = True
        finally:
            await self._socket.close(code, reason)

    def _deliver(self, event: SessionEvent) -> bool:
        text = self._encoded(event)
        return not text or self._socket.send_at_once(text)

    def _encoded(self, event: SessionEvent) -> str:
        """Return what the client gets of the event; empty if nothing."""
        if self._query.role is Role.INGEST and isinstance(event, Partial | Final | Vad | Missed):
            return ""
        if not self._query.words and isinstance(event, Partial | Final):
            return encode(msgspec.structs.replace(event, words=()))
        return self._hub.encode(event)


async def refuse(socket: WebSocket, error: WireError) -> None:
    """Report the error to the client and close the connection."""
    heard_ms = msgspec.UNSET if error.heard_ms is None else error.heard_ms
    fault = Fault(code=error.code, message=str(error), fatal=True, heard_ms=heard_ms)
    with suppress(ConnectionClosed, StuckError):
        await socket.send(encode(fault))
        await socket.close(close_code(error.code), error.code)
