"""The listening socket: from bind until every client has received ``eos``."""

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from socket import socket
from typing import Self

import websockets.asyncio.server as ws
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from streamd.assets import asset
from streamd.errors import BindError, WireError
from streamd.events import PROTOCOL, EndReason
from streamd.options import BindOptions, ServerLimits
from streamd.server.auth import Auth, is_loopback, load_certificate, tls_context
from streamd.server.connection import Connection, ServerInfo, WebSocket, refuse
from streamd.server.ingest import Ingests, Sessions
from streamd.server.metrics import Metrics
from streamd.server.routes import STREAM_PATH, load_pages, plain, routes
from streamd.server.wire import Limits

_log = logging.getLogger(__name__)


class ConnectionRegistry:
    """The open connections: pending until their request is granted, authorized after that.

    Above `max_pending` the oldest pending connection from the busiest address is dropped, since a
    real client has sent its request long before. Pending connections take no client's place.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._pending: dict[ws.ServerConnection, str] = {}
        self._authorized: dict[ws.ServerConnection, str] = {}

    def __iter__(self) -> Iterator[ws.ServerConnection]:
        """All open connections; the registry may change during the iteration."""
        return iter([*self._pending, *self._authorized])

    @property
    def n_authorized(self) -> int:
        """How many connections are authorized."""
        return len(self._authorized)

    def n_authorized_from(self, connection: ws.ServerConnection) -> int:
        """How many from its address are authorized; 0 for this machine, where a proxy may run."""
        host = _host(connection)
        return 0 if is_loopback(host) else list(self._authorized.values()).count(host)

    def authorize(self, connection: ws.ServerConnection) -> None:
        """The request of a pending connection was granted."""
        if (host := self._pending.pop(connection, None)) is not None:
            self._authorized[connection] = host

    def add(self, connection: ws.ServerConnection) -> None:
        """A connection was opened; it is pending."""
        self._pending[connection] = _host(connection)
        if len(self._pending) > self._max_pending:
            ((busiest, _),) = Counter(self._pending.values()).most_common(1)
            oldest = next(other for other, host in self._pending.items() if host == busiest)
            del self._pending[oldest]
            oldest.transport.abort()

    def remove(self, connection: ws.ServerConnection) -> None:
        """A connection was lost."""
        self._pending.pop(connection, None)
        self._authorized.pop(connection, None)

    def connection_type(self) -> type[ws.ServerConnection]:
        """Return the class of connections that register themselves here."""
        registry = self

        class RegisteredConnection(ws.ServerConnection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                registry.add(self)

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                registry.remove(self)

        return RegisteredConnection


def _host(connection: ws.ServerConnection) -> str:
    """Return the client's address; an IPv4 address in IPv6 form counts as IPv4."""
    peer = connection.remote_address
    return str(peer[0]).removeprefix("::ffff:") if peer else ""


class Server:
    """Listens for clients from entering it until leaving it.

    Leaving it takes at most ``limits.shutdown_ms`` for the last finals of the sessions that clients
    feed, and ``limits.send_deadline_ms`` for all clients to read them.

    `listening` is a bound socket to use instead of the address in `bind`.

    Raises `ConfigError` if other machines could connect without a token or the certificate is bad,
    and on entering `BindError` if the address is in use, forbidden or not of this machine.
    """

    def __init__(
        self,
        bind: BindOptions,
        *,
        sessions: Sessions,
        info: ServerInfo,
        limits: ServerLimits | None = None,
        metrics: Metrics | None = None,
        listening: socket | None = None,
    ) -> None:
        limits = limits or ServerLimits()
        metrics = metrics or Metrics(version="", model=info.model)
        self.port = 0
        """The port that it listens on, also if the options ask for any free one."""
        self.url = self.page = ""
        """The addresses of the websocket and of the caption page for clients on this machine."""
        self._bind, self._listening = bind, listening
        self._tls = tls_context(bind)
        self._auth = Auth(bind, load_pages(asset("web")))
        self._metrics = metrics
        max_lag_ms = limits.max_lag_ms
        self._routes = routes(sessions, metrics, max_lag_ms=max_lag_ms, is_full=self._is_full)
        self._info = info
        self._limits = limits
        self._announced_limits = Limits(
            max_message_bytes=limits.max_message_bytes,
            max_session_ms=limits.max_session_ms,
            resume_ms=limits.resume_ms,
        )
        self._ingests = Ingests(
            sessions, resume_ms=limits.resume_ms, max_session_ms=limits.max_session_ms
        )
        self._registry = ConnectionRegistry(limits.pending_limit)
        self._connections: dict[asyncio.Task[None] | None, Connection] = {}

    def reload(self, token: str | None) -> None:
        """Require this token and use the present certificate file for new connections.

        Raises `ConfigError` as the constructor does; then nothing has changed.
        """
        auth = self._auth.with_token(token)
        if self._tls is not None:
            load_certificate(self._bind, self._tls)
        self._auth = auth

    async def __aenter__(self) -> Self:
        deadline_s = self._limits.send_deadline_ms / 1000
        host, port = self._bind.host, self._bind.port
        address = {"sock": self._listening} if self._listening else {"host": host, "port": port}
        try:
            self._opened = await ws.serve(
                self._handle,
                **address,
                ssl=self._tls,
                process_request=self._check,
                select_subprotocol=_subprotocol,
                compression=None,
                ping_interval=None,  # WebSocket does that
                open_timeout=deadline_s,  # of TLS's handshake, too
                close_timeout=deadline_s,
                max_size=self._limits.max_message_bytes,
                write_limit=self._limits.write_buffer_bytes,
                create_connection=self._registry.connection_type(),
                logger=_library_logger(),
            )
        except (OSError, OverflowError) as error:
            raise BindError(_explain(error, host, port)) from error
        self.port = next(iter(self._opened.sockets)).getsockname()[1]
        secure = "s" if self._tls else ""
        self.url = f"ws{secure}://{host}:{self.port}{STREAM_PATH}"
        self.page = f"http{secure}://{host}:{self.port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept no more clients, finish all sessions, send ``eos``, reset slow connections."""
        self._opened.close(close_connections=False)
        try:
            async with asyncio.timeout(self._limits.shutdown_ms / 1000):
                await self._ingests.finish(EndReason.SHUTDOWN)
        except TimeoutError:
            _log.warning("the final audio of some clients could not be transcribed in time")
        for connection in self._connections.values():
            connection.end()
        handlers = [task for task in self._connections if task is not None]
        if handlers:
            await asyncio.wait(handlers, timeout=self._limits.send_deadline_ms / 1000)
        for connected in self._registry:
            connected.transport.abort()
        for handler in handlers:
            handler.cancel()
        await self._opened.wait_closed()

    def _is_full(self) -> bool:
        return self._registry.n_authorized >= self._limits.max_connections

    def _check(self, connection: ws.ServerConnection, request: Request) -> Response | None:
        """Answer the request, or authorize the connection and return None: it gets a websocket."""
        if (answer := self._auth.check(request)) is not None:
            return answer
        if route := self._routes.get(request.path.partition("?")[0]):
            return route()
        retry = {"Retry-After": "10"}
        if self._is_full():
            return plain(503, "too many clients", retry)
        if 0 < self._limits.max_per_address <= self._registry.n_authorized_from(connection):
            return plain(429, "too many clients from this address", retry)
        self._registry.authorize(connection)
        return None

    async def _handle(self, accepted: ws.ServerConnection) -> None:
        socket = WebSocket(accepted, self._limits)
        query = "" if accepted.request is None else accepted.request.path.partition("?")[2]
        try:
            connection = Connection(
                socket, query, ingests=self._ingests, info=self._info, limits=self._announced_limits
            )
        except WireError as error:
            await refuse(socket, error)
            return
        task = asyncio.current_task()
        self._connections[task] = connection
        try:
            await connection.run()
        finally:
            del self._connections[task]
            if connection.slow:
                self._metrics.slow.inc()


def _subprotocol(_: ws.ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(PROTOCOL) if PROTOCOL in offered else None


def _library_logger() -> logging.Logger:
    # Without tracebacks of failed handshakes (websockets 15), and without details, which would
    # reveal tokens and transcripts.
    logger = logging.getLogger("websockets.streamd")
    logger.addFilter(_is_worth_logging)
    return logger


def _is_worth_logging(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    harmless = isinstance(error, WebSocketException | EOFError | OSError)
    return record.levelno >= logging.INFO and not harmless


def _explain(error: Exception, host: str, port: int) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use: choose another with --port (0: any free one)"
        case errno.EACCES:
            return f"no permission to use port {port}: choose one above 1023 with --port"
        case _:
            return f"cannot listen on {host}, port {port}: {error}; check --host and --port"
