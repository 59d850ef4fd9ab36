"""The listening socket: from the bind to an end at which every client has heard `eos`."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import websockets.asyncio.server as ws
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from streamd.assets import asset
from streamd.errors import BindError, WireError
from streamd.events import PROTOCOL
from streamd.server.conversation import SHUTDOWN, Conversation, ServerInfo, refuse
from streamd.server.door import SESSIONS_PATH, Answer, Door, respond
from streamd.server.pages import load_pages
from streamd.server.peer import Bounds, Peer
from streamd.server.streams import Streams
from streamd.server.uplink import Uplinks
from streamd.server.wire import Limits


class Server:
    """A running server; `serve` makes it."""

    def __init__(self, streams: Streams, info: ServerInfo, *, door: Door, bounds: Bounds) -> None:
        self.port = 0
        """The port that it listens on, also if any was asked for."""
        self._streams = streams
        self._info = info
        self._door = door
        self._bounds = bounds
        self._uplinks = Uplinks(streams, bounds)
        self._limits = Limits(
            max_message_bytes=bounds.max_message_bytes,
            max_session_ms=bounds.max_session_ms,
            resume_ms=bounds.resume_ms,
        )
        self._conversations: dict[asyncio.Task[None] | None, Conversation] = {}
        self._connections: set[ws.ServerConnection] = set()

    def change_token(self, token: str | None) -> None:
        """From now on clients must show this one; those who are in stay.

        Raises
        ------
        ConfigError : none, though other machines could reach us
        """
        self._door = self._door.with_token(token)

    async def open(self, host: str, port: int) -> ws.Server:
        """Bind, and let clients in.

        Raises
        ------
        BindError : the address is taken, forbidden or not of this machine
        """
        deadline_s = self._bounds.send_deadline_ms / 1000
        try:
            listening = await ws.serve(
                self._converse,
                host,
                port,
                process_request=self._admit,
                select_subprotocol=_subprotocol,
                compression=None,
                ping_interval=None,  # Peer does that
                open_timeout=deadline_s,
                close_timeout=deadline_s,
                max_size=self._bounds.max_message_bytes,
                write_limit=self._bounds.write_buffer_bytes,
                create_connection=_remembered_in(self._connections),
                logger=_library_logger(),
            )
        except (OSError, OverflowError) as error:
            raise BindError(_explain(error, host, port)) from error
        self.port = next(iter(listening.sockets)).getsockname()[1]
        return listening

    async def close(self, listening: ws.Server) -> None:
        """Let nobody in, make everything final, say `eos` to everybody; cut off who is too slow."""
        listening.close(close_connections=False)
        finals = [conversation.finish() for conversation in self._conversations.values()]
        finals.append(self._uplinks.finish(SHUTDOWN))
        try:
            async with asyncio.timeout(self._bounds.shutdown_ms / 1000):
                # What fails in there fails in the conversation too, and is reported there.
                await asyncio.gather(*finals, return_exceptions=True)
        except TimeoutError:
            _log.warning("the last words of some clients could not be transcribed in time")
        for conversation in self._conversations.values():
            conversation.end()
        handlers = [task for task in self._conversations if task is not None]
        if handlers:
            await asyncio.wait(handlers, timeout=self._bounds.send_deadline_ms / 1000)
        for connection in list(self._connections):
            connection.transport.abort()
        for handler in handlers:
            handler.cancel()
        await listening.wait_closed()

    def _admit(self, connection: ws.ServerConnection, request: Request) -> Response | None:
        if len(self._connections) > self._bounds.max_connections:
            response = connection.respond(503, "too many clients\n")
            response.headers["Retry-After"] = "10"
            return response
        answer = self._door.check(connection, request)
        if answer is None and request.path.partition("?")[0] == SESSIONS_PATH:
            names = self._streams.names()
            body = msgspec.json.encode({"sessions": [{"name": name} for name in names]})
            return respond(connection, Answer(200, body, {"Content-Type": "application/json"}))
        return answer

    async def _converse(self, connection: ws.ServerConnection) -> None:
        peer = Peer(connection, self._bounds)
        query = "" if connection.request is None else connection.request.path.partition("?")[2]
        try:
            conversation = Conversation(
                peer, query, uplinks=self._uplinks, info=self._info, limits=self._limits
            )
        except WireError as error:
            await refuse(peer, error)
            return
        task = asyncio.current_task()
        self._conversations[task] = conversation
        try:
            await conversation.run()
        finally:
            del self._conversations[task]


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    *,
    streams: Streams,
    info: ServerInfo,
    token: str | None = None,
    bounds: Bounds | None = None,
) -> AsyncIterator[Server]:
    """Listen for clients while the context lasts.

    Leaving it takes at most ``bounds.shutdown_ms`` for the last finals of the sessions that clients
    feed, and ``bounds.send_deadline_ms`` for everybody to read them.

    Parameters
    ----------
    host : address to bind
    port : 0 takes a free one, see `Server.port`
    streams : the sessions to hear and to feed
    token : what clients must show; without it only this machine is let in

    Raises
    ------
    ConfigError : other machines could reach `host`, and there is no token
    BindError : the address is taken, forbidden or not of this machine
    """
    bounds = bounds or Bounds()
    server = Server(streams, info, door=Door(host, token, load_pages(asset("web"))), bounds=bounds)
    listening = await server.open(host, port)
    try:
        yield server
    finally:
        await server.close(listening)


def _subprotocol(_: ws.ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(PROTOCOL) if PROTOCOL in offered else None


def _remembered_in(connections: set[ws.ServerConnection]) -> type[ws.ServerConnection]:
    """Connections that the server can cut off even before they have said what they want."""

    class Remembered(ws.ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            connections.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            connections.discard(self)

    return Remembered


_log = logging.getLogger(__name__)


def _library_logger() -> logging.Logger:
    """The library's messages, less the tracebacks of clients that fail to open (websockets 15)."""
    logger = logging.getLogger("websockets.streamd")
    logger.addFilter(_is_ours_to_know)
    return logger


def _is_ours_to_know(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, WebSocketException | EOFError | OSError)


def _explain(error: Exception, host: str, port: int) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use: choose another with --port (0: any free one)"
        case errno.EACCES:
            return f"port {port} may not be used by this user: choose one above 1023 with --port"
        case _:
            return f"cannot listen on {host}, port {port}: {error}; check --host and --port"
