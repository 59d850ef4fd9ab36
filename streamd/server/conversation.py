"""One client on ``/v1/stream``: what it may say and what it gets to hear, from hello to close.

Reading and writing run side by side. All that a client gets goes through its own line at the hub,
answers included, so that what it reads is in the order in which things happened.
"""

import asyncio
from dataclasses import dataclass

import msgspec
from websockets.exceptions import ConnectionClosed

from streamd.errors import WireError
from streamd.events import PROTOCOL, Eos, Event, Fault, Final, Missed, Partial, SessionEvent, Vad
from streamd.hub import Hub
from streamd.server.peer import Peer, StuckError
from streamd.server.uplink import Uplink, Uplinks
from streamd.server.wire import Hello, Limits, Role, close_code, parse_query
from streamd.types import SAMPLE_RATE

LIVE = "live"
"""The session of the daemon's own source, which a listener hears unless it names another."""
SHUTDOWN = "shutdown"
"""Reason of an end that is only the server's: another process may go on with the session."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What every client is told about the model."""

    model: str
    language: str


class Conversation:
    """One client: `run` once.

    Parameters
    ----------
    peer : the client
    query : what it asks for, as the address spells it
    uplinks : the sessions that it may hear or feed

    Raises
    ------
    WireError : the client asks for what it cannot have; `refuse` it
    """

    def __init__(
        self, peer: Peer, query: str, *, uplinks: Uplinks, info: ServerInfo, limits: Limits
    ) -> None:
        self._peer = peer
        self._query = parse_query(query)
        self._error: WireError | None = None
        self._stuck = False
        self._uplinks = uplinks
        self._uplink: Uplink | None = None
        self._hub = self._enter(uplinks)
        self._hello = Hello(
            proto=PROTOCOL,
            session=self._hub.session,
            epoch=self._hub.epoch,
            seq=self._hub.seq,
            started=self._hub.started,
            model=info.model,
            language=info.language,
            rate=SAMPLE_RATE,
            limits=limits,
        )
        self._line = self._hub.subscribe(
            self._query.after,
            epoch=self._query.epoch,
            partials=self._query.partials and self._query.role is not Role.INGEST,
            stats=self._query.stats,
        )

    def _enter(self, uplinks: Uplinks) -> Hub:
        session = self._query.session
        if self._query.role is Role.LISTEN:
            hub = uplinks.streams.hub(session or LIVE)
            if hub is None:
                raise WireError("no_such_session", f"there is no session {session or LIVE!r}")
            return hub
        self._uplink = uplinks.connect(
            session or "",
            epoch=self._query.epoch,
            replaced=self._replaced,
            tell=lambda ack: self._line.offer(ack),
        )
        return self._uplink.ingest.hub

    @property
    def slow(self) -> bool:
        """Whether the client was sent away or cut off because it did not read."""
        return self._line.slow or self._stuck

    async def run(self) -> None:
        """Talk until either side closes, then make final what the client said."""
        writer = asyncio.create_task(self._write())
        reason = "error"
        try:
            reason = await self._read()
            self._line.close()
            await writer
        finally:
            self._line.close()
            writer.cancel()
            await asyncio.wait({writer})
            if self._uplink is not None and self._uplink.is_held_by(self._replaced):
                await self._uplinks.leave(self._uplink, reason)

    def _replaced(self) -> None:
        """The client is back on another connection, before we noticed that this one is broken."""
        self._error = WireError("replaced", "another connection feeds this session now")
        self._line.close()

    def end(self) -> None:
        """The server ends: end the transcript, even if the session goes on without us."""
        self._line.offer(Eos(seq=self._hub.seq, reason=SHUTDOWN))

    async def _read(self) -> str:
        """Follow what the client says; give the reason why it is over."""
        try:
            while True:
                message = await self._peer.receive()
                if self._uplink is None:
                    raise WireError("not_ingest", "with role=listen there is nothing to send")
                for answer in (await self._uplink.take(message), self._uplink.ack()):
                    if answer is not None:
                        self._line.offer(answer)
        except (ConnectionClosed, StuckError):
            return "disconnect"
        except WireError as error:
            self._error = error
            return "error"

    async def _write(self) -> None:
        code, reason = 1011, "internal error"
        try:
            await self._peer.send(_encode(self._hello))
            event: SessionEvent | None = None
            async for event in self._line:
                if (wanted := self._wanted(event)) is not None:
                    await self._peer.send(_encode(wanted))
                    # A send that need not wait lets nobody else in, and a replay may be long.
                    await asyncio.sleep(0)
            ends = isinstance(event, Eos) and event.reason == SHUTDOWN
            code, reason = (1001, SHUTDOWN) if ends else (1000, "")
            if self._line.slow:
                self._error = WireError("slow", "too far behind: come back with after=")
            if self._error is not None:
                await refuse(self._peer, self._error)
        except ConnectionClosed:
            pass  # the reader hears of it too
        except StuckError:
            self._stuck = True
        finally:
            await self._peer.hang_up(code, reason)

    def _wanted(self, event: SessionEvent) -> Event | None:
        """The event as this client wants it, or None."""
        if self._query.role is Role.INGEST and isinstance(event, Partial | Final | Vad | Missed):
            return None
        if not self._query.words and isinstance(event, Partial | Final):
            return msgspec.structs.replace(event, words=())
        return event


async def refuse(peer: Peer, error: WireError) -> None:
    """Say what was wrong and close."""
    try:
        heard_ms = msgspec.UNSET if error.heard_ms is None else error.heard_ms
        fault = Fault(code=error.code, message=str(error), fatal=True, heard_ms=heard_ms)
        await peer.send(_encode(fault))
        await peer.hang_up(close_code(error.code), error.code)
    except (ConnectionClosed, StuckError):
        pass
