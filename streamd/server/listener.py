"""The listening socket: from the bind to an end at which every client has heard `eos`."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import websockets.asyncio.server as ws
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from streamd.assets import asset
from streamd.errors import BindError, WireError
from streamd.events import PROTOCOL
from streamd.server.arrivals import Arrivals, connections_of
from streamd.server.conversation import SHUTDOWN, Conversation, ServerInfo, refuse
from streamd.server.door import STREAM_PATH, Answer, Door, respond
from streamd.server.entrance import Entrance
from streamd.server.metrics import Metrics
from streamd.server.pages import load_pages
from streamd.server.peer import Bounds, Peer
from streamd.server.routes import routes
from streamd.server.streams import Streams
from streamd.server.uplink import Uplinks
from streamd.server.wire import Limits


class Server:
    """A running server; `serve` makes it."""

    def __init__(
        self,
        entrance: Entrance,
        *,
        streams: Streams,
        info: ServerInfo,
        bounds: Bounds,
        metrics: Metrics,
    ) -> None:
        self.port = 0
        """The port that it listens on, also if any was asked for."""
        self.url = self.page = ""
        """The address for clients of this machine."""
        self._entrance = entrance
        self._tls = entrance.tls()
        self._metrics = metrics
        self._routes = routes(streams, metrics, max_lag_ms=bounds.max_lag_ms, is_full=self._is_full)
        self._streams = streams
        self._info = info
        self._door = Door(entrance, load_pages(asset("web")))
        self._bounds = bounds
        self._uplinks = Uplinks(streams, bounds)
        self._limits = Limits(
            max_message_bytes=bounds.max_message_bytes,
            max_session_ms=bounds.max_session_ms,
            resume_ms=bounds.resume_ms,
        )
        self._conversations: dict[asyncio.Task[None] | None, Conversation] = {}
        self._arrivals = Arrivals(bounds.most_opening)

    def reload(self, token: str | None) -> None:
        """From now on clients must show this token, and see the certificate that the file has now.

        Those who are in stay.

        Raises
        ------
        ConfigError : no token though other machines could reach us, or a bad certificate; nothing
            was changed
        """
        door = self._door.with_token(token)
        if self._tls is not None:
            self._entrance.load_certificate(self._tls)
        self._door = door

    async def open(self) -> ws.Server:
        """Bind, and let clients in.

        Raises
        ------
        BindError : the address is taken, forbidden or not of this machine
        """
        deadline_s = self._bounds.send_deadline_ms / 1000
        host, port = self._entrance.host, self._entrance.port
        place = (
            {"sock": self._entrance.listening}
            if self._entrance.listening
            else {"host": host, "port": port}
        )
        try:
            listening = await ws.serve(
                self._converse,
                **place,
                ssl=self._tls,
                process_request=self._admit,
                select_subprotocol=_subprotocol,
                compression=None,
                ping_interval=None,  # Peer does that
                open_timeout=deadline_s,  # of TLS's handshake, too
                close_timeout=deadline_s,
                max_size=self._bounds.max_message_bytes,
                write_limit=self._bounds.write_buffer_bytes,
                create_connection=connections_of(self._arrivals),
                logger=_library_logger(),
            )
        except (OSError, OverflowError) as error:
            raise BindError(_explain(error, host, port)) from error
        self.port = next(iter(listening.sockets)).getsockname()[1]
        secure = "s" if self._tls else ""
        self.url = f"ws{secure}://{host}:{self.port}{STREAM_PATH}"
        self.page = f"http{secure}://{host}:{self.port}/"
        return listening

    async def close(self, listening: ws.Server) -> None:
        """Let nobody in, make everything final, say `eos` to everybody; cut off who is too slow."""
        listening.close(close_connections=False)
        try:
            async with asyncio.timeout(self._bounds.shutdown_ms / 1000):
                await self._uplinks.finish(SHUTDOWN)
        except TimeoutError:
            _log.warning("the last words of some clients could not be transcribed in time")
        for conversation in self._conversations.values():
            conversation.end()
        handlers = [task for task in self._conversations if task is not None]
        if handlers:
            await asyncio.wait(handlers, timeout=self._bounds.send_deadline_ms / 1000)
        for connection in self._arrivals:
            connection.transport.abort()
        for handler in handlers:
            handler.cancel()
        await listening.wait_closed()

    def _is_full(self) -> bool:
        return self._arrivals.n_inside >= self._bounds.max_connections

    def _admit(self, connection: ws.ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if (answer := self._door.check(connection, request)) is not None:
            return answer
        if route := self._routes.get(path):
            return respond(connection, route())
        retry = {"Retry-After": "10"}
        if self._is_full():
            return respond(connection, Answer(503, b"too many clients\n", retry))
        if 0 < self._bounds.max_per_address <= self._arrivals.n_inside_from(connection):
            return respond(connection, Answer(429, b"too many clients from this address\n", retry))
        self._arrivals.let_in(connection)
        return None

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
            if conversation.slow:
                self._metrics.slow.inc()


@asynccontextmanager
async def serve(
    entrance: Entrance,
    *,
    streams: Streams,
    info: ServerInfo,
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Server]:
    """Listen for clients while the context lasts.

    Leaving it takes at most ``bounds.shutdown_ms`` for the last finals of the sessions that clients
    feed, and ``bounds.send_deadline_ms`` for everybody to read them.

    Parameters
    ----------
    streams : the sessions to hear and to feed
    metrics : what counts, for ``/metrics``

    Raises
    ------
    ConfigError : other machines could come in, and there is no token; a bad certificate
    BindError : the address is taken, forbidden or not of this machine
    """
    server = Server(
        entrance,
        streams=streams,
        info=info,
        bounds=bounds or Bounds(),
        metrics=metrics or Metrics(version="", model=info.model),
    )
    listening = await server.open()
    try:
        yield server
    finally:
        await server.close(listening)


def _subprotocol(_: ws.ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(PROTOCOL) if PROTOCOL in offered else None


_log = logging.getLogger(__name__)


def _library_logger() -> logging.Logger:
    """The library's messages, less the tracebacks of clients that fail to open (websockets 15).

    And less its details: they would show the tokens, and whatever is said.
    """
    logger = logging.getLogger("websockets.streamd")
    logger.addFilter(_is_ours_to_know)
    return logger


def _is_ours_to_know(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    harmless = isinstance(error, WebSocketException | EOFError | OSError)
    return record.levelno >= logging.INFO and not harmless


def _explain(error: Exception, host: str, port: int) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use: choose another with --port (0: any free one)"
        case errno.EACCES:
            return f"port {port} may not be used by this user: choose one above 1023 with --port"
        case _:
            return f"cannot listen on {host}, port {port}: {error}; check --host and --port"
