"""The listening socket: from bind until every client has received ``eos``."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, Self

import msgspec
import websockets.asyncio.server as ws
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from streamd.errors import BindError, ConfigError, WireError
from streamd.events import EndReason
from streamd.options import BindOptions, ServerLimits
from streamd.server import context, listen_rest
from streamd.server.access import Access, Rights
from streamd.server.auth import (
    SUBPROTOCOLS,
    Auth,
    client_address,
    is_loopback,
    is_websocket,
    load_certificate,
    tls_context,
)
from streamd.server.connection import (
    Connection,
    ServerInfo,
    Socket,
    StuckError,
    WebSocket,
    refuse,
)
from streamd.server.dialects import DIALECTS, ROOT_PATH, Dialect, introduced, requested
from streamd.server.dialects.wyoming import Wyoming
from streamd.server.exchange import BadRequestError, Exchange, GoneError, in_parts, plain
from streamd.server.ingest import Ingests
from streamd.server.registry import ConnectionRegistry, HttpConnection, ListeningSocket
from streamd.server.rest import STATUS, Recordings, Rest, as_failure, failure, printable
from streamd.server.routes import (
    RECORDED_PATH,
    UPLOADS,
    Invitation,
    is_of_library,
    is_upload_to_library,
    load_pages,
    routes,
    session_in,
)
from streamd.server.transcripts import Transcripts
from streamd.server.wire import STREAM_PATH, Limits, Role
from streamd.server.wyoming_socket import WyomingSocket, parse_address
from streamd.streams import Streams
from streamd.system.disk import asset

TELL_S = 1.0
"""What is left to tell all clients of the end when the last finals were late."""

_QUIET_S = 60.0
_MOST_LOGGED = 256
"""Refusals that are logged within a minute."""
_MOST_OF_A_TEXT = 100
"""Characters of a path or error in the log, which a client may make as long as what it sends."""

_log = logging.getLogger(__name__)
_library_log = logging.getLogger("websockets.streamd")


class LibraryAnswers(Protocol):
    """What the daemon answers of its library."""

    async def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer a request that was allowed."""

    def close(self) -> None:
        """Begin nothing more."""


class Server:
    """Listens for clients from entering it until leaving it.

    Leaving it takes until `end_by` at most, of which the last second is for all clients to read the
    last finals of the sessions that clients feed; they get that even if it begins too late.

    Without `recordings` clients cannot send any.

    `listening` is a bound socket to use instead of the address in `bind`.

    Raises `ConfigError` if other machines could connect without a token or the certificate is bad,
    and on entering `BindError` if the address is in use, forbidden or not of this machine.
    """

    def __init__(
        self,
        bind: BindOptions,
        *,
        sessions: Streams,
        info: ServerInfo,
        limits: ServerLimits | None = None,
        recordings: Recordings | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        limits = limits or ServerLimits()
        self.wyoming_port = 0
        self.port = 0
        """The port that it listens on, also if the options ask for any free one."""
        self.url = self.page = ""
        """The addresses of the websocket and of the caption page for clients on this machine."""
        if listening is not None:
            # Its address decides who can connect; a Unix socket has a path, and is of this machine.
            name = listening.getsockname()
            bind = replace(
                bind, host="localhost" if listening.family == socket.AF_UNIX else name[0]
            )
        self.bind = bind
        """The effective options."""
        self.end_by: Callable[[], float] | None = None
        """Says by when, in the loop's time, leaving has to be over; without it,
        ``limits.shutdown_ms`` after it began."""
        self._listening = listening
        self._tls = tls_context(bind)
        self._auth = Auth(bind, load_pages(asset("web")))
        self.invitation: Invitation | None = None
        """What the page shows to somebody who wants to let others listen."""
        self._metrics = metrics = sessions.metrics
        self._routes = routes(
            sessions,
            models=recordings.models if recordings else lambda: (info.model,),
            max_lag_ms=limits.max_lag_ms,
            is_full=self._is_full,
            invitation=lambda: self.invitation,
        )
        self._sessions, self._info = sessions, info
        self._limits = limits
        self._announced_limits = msgspec.convert(limits, Limits, from_attributes=True)
        self._ingests = Ingests(sessions, limits)
        self._logged: dict[str, float] = {}
        self._registry = ConnectionRegistry(limits.pending_limit)
        metrics.listeners.set_function(lambda: self._registry.count(Role.LISTEN))
        self._rest = Rest(recordings, limits) if recordings else None
        self.transcripts: Transcripts | None = None
        """Answers requests for transcripts as files, if there is one. Closed with the server."""
        self.read_words: context.ReadWords | None = None
        """Reads the words of documents, one after the other; without it there are none."""
        self._documents = context.DocumentTurns()
        self.library: LibraryAnswers | None = None
        """Answers requests for what is kept, if there is one. Closed with the server."""
        self._exchanges: set[asyncio.Task[None]] = set()
        self._wyoming: list[asyncio.Server] = []
        self._uploads: set[asyncio.Task[None] | None] = set()  # of the exchanges
        metrics.uploads.set_function(lambda: len(self._uploads))
        self._connections: dict[asyncio.Task[None] | None, Connection] = {}

    def reload(self, bind: BindOptions) -> None:
        """Require the tokens of `bind` and use the present certificate file for new connections.

        Raises `ConfigError` as the constructor does; then nothing has changed.
        """
        auth = self._auth.with_tokens(bind)
        if self._tls is not None:
            tls_context(self.bind)  # a pair that does not match would spoil the context in use
            load_certificate(self.bind, self._tls)
        self._auth, self.bind = auth, bind

    async def __aenter__(self) -> Self:
        deadline_s = self._limits.send_deadline_ms / 1000
        _library_log.addFilter(_is_worth_logging)
        where = self.bind.host, self.bind.port or 0
        bound = [self._listening] if self._listening else await _bound(*where)
        try:
            if self.bind.wyoming:
                await self._open_wyoming()
        except (BindError, ConfigError):
            for each in bound:
                each.close()
            raise
        self._opened = [
            await ws.serve(
                self._handle,
                sock=ListeningSocket(each, self._registry),
                ssl=self._tls,
                process_request=self._respond,
                select_subprotocol=lambda _, offered: next(
                    (Subprotocol(name) for name in SUBPROTOCOLS if name in offered), None
                ),
                compression=None,
                ping_interval=None,  # WebSocket does that
                open_timeout=deadline_s,  # of TLS's handshake, too
                close_timeout=deadline_s,
                max_size=self._limits.max_message_bytes,
                write_limit=self._limits.write_buffer_bytes,
                create_connection=self._registry.connection_type(
                    lambda *streams: _begin(self._exchange(*streams), self._exchanges)
                ),
                logger=_library_log,
            )
            for each in bound
        ]
        address = self._opened[0].sockets[0].getsockname()
        if isinstance(address, str):
            self.url = self.page = f"unix:{address}"
        else:
            host, self.port = address[:2]
            self.page = self.page_at({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host))
            self.url = self.page.replace("http", "ws", 1).rstrip("/") + STREAM_PATH
        return self

    def page_at(self, host: str) -> str:
        """Return the address of the caption page for clients that know this machine as `host`."""
        name = f"[{host}]" if ":" in host else host
        return f"http{'s' if self._tls else ''}://{name}:{self.port}/"

    async def __aexit__(self, *_: object) -> None:
        """Accept no more clients, finish all sessions, send ``eos``, reset slow connections."""
        loop, deadline_s = asyncio.get_running_loop(), self._limits.send_deadline_ms / 1000
        end_s = loop.time() + self._limits.shutdown_ms / 1000
        if self.end_by is not None:
            end_s = self.end_by()
        told_s = min(TELL_S, deadline_s)
        await self._refuse_newcomers()
        try:
            async with asyncio.timeout_at(end_s - told_s):
                await self._ingests.finish(EndReason.SHUTDOWN)
        except TimeoutError:
            _log.warning("the final audio of some clients could not be transcribed in time")
            self._ingests.end(EndReason.SHUTDOWN)
        for connection in self._connections.values():
            connection.end()
        handlers = [*self._exchanges, *(task for task in self._connections if task is not None)]
        if handlers:
            left_s = max(told_s, end_s - loop.time())
            await asyncio.wait(handlers, timeout=min(left_s, deadline_s))
        self._registry.abort()
        for handler in handlers:
            handler.cancel()
        self._ingests.close()
        for answers in (self.transcripts, self.library):
            if answers is not None:
                answers.close()
        for opened in self._opened:
            await opened.wait_closed()

    async def _refuse_newcomers(self) -> None:
        self._registry.is_closing = True
        try:
            # Python 3.11 never closes a connection that it accepted a moment before its server.
            for _turn in range(3):
                await asyncio.sleep(0)
        finally:  # in a task that is cancelled, too
            for opened in self._opened:
                opened.close(close_connections=False)
            for wyoming in self._wyoming:
                wyoming.close()
            # If the engine failed, clients that sent recordings are being told so.
            told = self._uploads if self._sessions.has_failed else set()
            for exchange in self._exchanges - told:
                exchange.cancel()

    async def _open_wyoming(self) -> None:
        host, port = parse_address(self.bind.wyoming)
        n_most = self._limits.max_message_bytes

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            _begin(self._speak_wyoming(reader, writer), self._exchanges)

        for each in await _bound(host, port, option="--wyoming"):
            listening = ListeningSocket(each, self._registry)
            self._wyoming.append(await asyncio.start_server(begin, sock=listening, limit=n_most))
        self.wyoming_port = self._wyoming[0].sockets[0].getsockname()[1]
        _log.info("listening for Wyoming on %s, port %d", host, self.wyoming_port)
        if not is_loopback(host):
            _log.warning("--wyoming: whoever reaches %s can send audio without a token", host)

    def _is_full(self, role: Role = Role.LISTEN) -> bool:
        if role is Role.LISTEN:
            return self._registry.count(Role.LISTEN) >= self._limits.max_subscribers
        return self._registry.count(Role.INGEST, Role.BOTH) >= self._limits.max_speakers

    def _respond(self, connection: ws.ServerConnection, request: Request) -> Response | None:
        """Answer the request, or return None: the connection gets a websocket."""
        answer = self._check(connection, request)
        if answer is not None and is_websocket(request):
            self._refused(connection.transport, request, answer)
        is_head = isinstance(connection, HttpConnection) and connection.method == "HEAD"
        if answer is not None and is_head:
            answer.body = b""
        return answer

    def _check(self, connection: ws.ServerConnection, request: Request) -> Response | None:
        """Answer the request, or authorize the connection and return None."""
        if (answer := self._auth.check(request)) is not None:
            return answer
        path, _, query = request.path.partition("?")
        if route := self._routes.get(path):
            return route(query, self._auth.access(request) or Access(Rights.LISTEN, sessions=()))
        if not is_websocket(request):
            return plain(426, "this is a websocket endpoint", {"Upgrade": "websocket"})
        role, _ = requested(request.path)
        return self._authorize(connection.transport, role, is_full=self._is_full(role))

    def _authorize(
        self, transport: asyncio.WriteTransport, role: Role | None, *, is_full: bool
    ) -> Response | None:
        refusal = self._no_room(transport, role, is_full=is_full)
        if refusal is None:
            self._registry.authorize(transport, role)
        return refusal

    def _no_room(
        self, transport: asyncio.WriteTransport, role: Role | None, *, is_full: bool
    ) -> Response | None:
        retry = {"Retry-After": "10"}
        if is_full:
            return plain(503, "too many clients", retry)
        n_clients, n_uploads = self._registry.n_authorized_from(transport)
        if 0 < self._limits.max_per_address <= n_clients:
            return plain(429, "too many clients from this address", retry)
        if role is None and n_uploads >= self._limits.uploads_per_address:
            return plain(429, "too many recordings from this address", retry)
        return None

    def _websocket_refusal(self, request: Request, transport: asyncio.WriteTransport) -> Response:
        """Say why a websocket of this address is refused; 426 if it is not, for this is none.

        Browsers tell a page nothing about a websocket that fails. With POST they send `Origin`.
        """
        role, _ = requested(request.path)
        full = self._is_full(role)
        refusal = self._auth.check(request) or self._no_room(transport, role, is_full=full)
        return refusal or plain(426, "this is a websocket endpoint", {"Upgrade": "websocket"})

    def _refused(
        self, transport: asyncio.WriteTransport, request: Request, answer: Response
    ) -> None:
        self._metrics.refused.labels(answer.status_code).inc()
        why = bytes(answer.body or b"").decode(errors="replace").strip()
        client = self._client(transport, request, self._auth.access(request))
        path = request.path.partition("?")[0][:_MOST_OF_A_TEXT]
        self._log_refusal(f"{client} at {path}: {answer.status_code}, {why}")

    def _log_refusal(self, what: str) -> None:
        """Write a line, but not the same again within a minute: browsers go on trying.

        Strangers, who may send anything, must not fill the log.
        """
        now = asyncio.get_running_loop().time()
        self._logged = {each: at for each, at in self._logged.items() if now - at < _QUIET_S}
        if what in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged[what] = now
        is_last = len(self._logged) == _MOST_LOGGED
        more = "; more than these are not logged within a minute" if is_last else ""
        _log.info("refused %s%s", what, more)

    @staticmethod
    def _client(
        transport: asyncio.WriteTransport, request: Request | None, access: Access | None
    ) -> str:
        """Return who a client is, for the log: its address, and the name of its token."""
        address = client_address(transport.get_extra_info("peername"), request)
        return f"{address} ({access.name})" if access and access.name else address

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request that the library does not: see `ConnectionRegistry.connection_type`."""
        deadline_s = self._limits.send_deadline_ms / 1000
        exchange = Exchange(reader, writer, deadline_s=deadline_s)
        try:
            with suppress(GoneError):
                try:
                    request = await exchange.request()
                    access = self._auth.access(request)
                    exchange.client = self._client(writer.transport, request, access)
                    await self._answer(exchange, request, writer.transport)
                except BadRequestError as error:
                    await exchange.respond(failure(400, f"this is not HTTP/1.1: {error}"))
                except asyncio.CancelledError:  # the server ends
                    if not exchange.may_respond:
                        raise
                    await exchange.respond(failure(503, "the server is shutting down"))
                finally:
                    if exchange.fault is not None:
                        self._count_refusal(exchange.client, exchange.fault)
                await exchange.close()
        finally:
            writer.transport.abort()
            self._registry.remove(writer.transport)

    async def _answer(
        self, exchange: Exchange, request: Request, transport: asyncio.WriteTransport
    ) -> None:
        path, _, query = request.path.partition("?")
        session = session_in(path)
        if session is not None and exchange.method == "POST":
            await exchange.respond(await self._correct(exchange, request, session))
            return
        if session is not None and exchange.method in ("GET", "HEAD"):
            await self._send_transcript(exchange, request, session, query)
            return
        if path == STREAM_PATH and exchange.method == "POST":
            await exchange.respond(self._websocket_refusal(request, transport))
            return
        if is_of_library(path):
            await self._answer_from_library(exchange, request, transport)
            return
        task = UPLOADS.get(path)
        takes_it = task is not None or path == RECORDED_PATH or self._reads(path)
        if self._rest is None or not takes_it or exchange.method != "POST":
            allowed = "POST" if takes_it else "GET, HEAD"
            answer = plain(405, f"the methods here are: {allowed}", {"Allow": allowed})
            await exchange.respond(answer)
            return
        # Whoever may only listen may send no recording, whatever is at the path besides.
        as_upload = Request(f"{next(iter(UPLOADS))}?{query}", request.headers)
        refusal = self._auth.check(as_upload) or self._authorize_upload(transport)
        if refusal is not None:
            self._refused(transport, request, refusal)
            await exchange.respond(as_failure(refusal))
        elif self.read_words is not None and self._reads(path):
            await context.answer(
                self._rest, self.read_words, request, exchange, turns=self._documents
            )
        elif task is None:
            await listen_rest.answer(self._rest, request, exchange)
        else:
            await self._rest.answer(task, request, exchange)

    def _authorize_upload(self, transport: asyncio.WriteTransport) -> Response | None:
        """Count the exchange of this task among the uploads until it ends, or refuse it."""
        is_full = len(self._uploads) >= self._limits.max_uploads
        refusal = self._authorize(transport, None, is_full=is_full)
        if refusal is None and (upload := asyncio.current_task()):
            self._uploads.add(upload)
            upload.add_done_callback(self._uploads.discard)
        return refusal

    def _reads(self, path: str) -> bool:
        return path == context.CONTEXT_PATH and self.read_words is not None

    async def _correct(self, exchange: Exchange, request: Request, session: str) -> Response:
        if (refusal := self._auth.check(request)) is not None:
            return refusal
        access = self._auth.access(request)
        if self.transcripts is None or access is None or access.rights < Rights.KEEP:
            return plain(403, "only the owner changes a session that has ended")
        try:
            body = await exchange.whole_body(self._limits.max_message_bytes)
        except WireError as error:
            return plain(STATUS[error.code], str(error))
        return await self.transcripts.correct(session, body)

    async def _answer_from_library(
        self, exchange: Exchange, request: Request, transport: asyncio.WriteTransport
    ) -> None:
        is_file = is_upload_to_library(exchange.method, request.path)
        if (refusal := self._auth.check(request)) is not None:
            await exchange.respond(refusal)
        elif self.library is None:
            await exchange.respond(plain(404, "there is no library: start streamd with --keep"))
        elif is_file and (refusal := self._authorize_upload(transport)) is not None:
            self._refused(transport, request, refusal)
            await exchange.respond(refusal)
        else:
            await self.library.answer(exchange, request)

    async def _send_transcript(
        self, exchange: Exchange, request: Request, session: str, query: str
    ) -> None:
        if (refusal := self._auth.check(request)) is not None:
            answer = refusal
        elif self.transcripts is None:
            answer = plain(404, "this server writes no transcripts")
        else:
            answer = await exchange.unless_gone(self.transcripts.answer(session, query))
        body = b"" if exchange.method == "HEAD" else bytes(answer.body or b"")
        await exchange.respond(answer, in_parts(body))

    async def _handle(self, accepted: ws.ServerConnection) -> None:
        socket = WebSocket(accepted, self._limits)
        url = accepted.request.path if accepted.request else STREAM_PATH
        path, _, query = url.partition("?")
        dialect, first = DIALECTS[path](query), None
        try:
            if path == ROOT_PATH:
                first = await socket.receive()
                dialect = introduced(query, first)
        except (ConnectionClosed, StuckError):
            return
        request = accepted.request
        access = self._auth.access(request) if request else None
        access = access or Access(Rights.LISTEN, sessions=())  # it was withdrawn meanwhile
        client = self._client(accepted.transport, request, access)
        await self._converse(socket, dialect, first, replace(access, name=client))

    async def _speak_wyoming(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        socket = WyomingSocket(reader, writer, info=self._info, limits=self._limits)
        dialect = Wyoming()
        try:
            first = await socket.receive()
            is_full = self._is_full(Role.BOTH)
            refusal = self._authorize(writer.transport, Role.BOTH, is_full=is_full)
            if refusal is not None:
                raise WireError("too_many_streams", refusal.body.decode().strip())
            # From here on it is ended as other connections are.
            self._exchanges -= {task for task in (asyncio.current_task(),) if task}
            access = Access(Rights.SPEAK, self._client(writer.transport, None, None))
            await self._converse(socket, dialect, first, access)
        except WireError as error:
            await refuse(socket, dialect, error)
        except (ConnectionClosed, StuckError):
            pass
        finally:
            writer.transport.abort()
            self._registry.remove(writer.transport)

    async def _converse(
        self, socket: Socket, dialect: Dialect, first: str | bytes | None, access: Access
    ) -> None:
        try:
            await self._ingests.prepare(dialect.request())
            connection = Connection(
                socket,
                dialect,
                ingests=self._ingests,
                info=self._info,
                limits=self._announced_limits,
                access=access,
            )
        except WireError as error:
            self._count_refusal(access.name, error)
            await refuse(socket, dialect, error)
            return
        task = asyncio.current_task()
        self._connections[task] = connection
        try:
            await connection.run(first)
        finally:
            del self._connections[task]
            if connection.slow:
                self._metrics.slow.inc()
            if connection.fault is not None:
                self._count_refusal(access.name, connection.fault)

    def _count_refusal(self, client: str, error: WireError) -> None:
        self._metrics.refused.labels(error.code).inc()
        self._log_refusal(f"{client}: {error.code}, {printable(str(error))[:_MOST_OF_A_TEXT]}")


def _begin(work: Coroutine[Any, Any, None], *groups: set[asyncio.Task[None]]) -> None:
    """Begin a task that is in these groups until it ends."""
    # asyncio would make one itself, but its 3.11 reports the end as a bug if it was cancelled.
    task = asyncio.create_task(work)
    for tasks in groups:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    task.add_done_callback(_log_bug)


def _log_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a request has failed because of a bug", exc_info=error)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    # Without tracebacks of failed handshakes (websockets 15), and without details, which would
    # reveal tokens and transcripts.
    error = record.exc_info[1] if record.exc_info else None
    harmless = isinstance(error, WebSocketException | EOFError | OSError)
    return record.levelno >= logging.INFO and not harmless


async def _bound(host: str, port: int, *, option: str = "--port") -> list[socket.socket]:
    """Bind all addresses of the host; raises `BindError`, which names the option."""
    bound: list[socket.socket] = []
    try:
        info = asyncio.get_running_loop().getaddrinfo
        found = await info(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound.append(socket.socket(family, kind, protocol))
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            if family == socket.AF_INET6:
                bound[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
            bound[-1].bind((address[0], port))  # getaddrinfo takes any number for a port
    except (OSError, OverflowError) as error:
        for each in bound:
            each.close()
        check = "--host and --port" if option == "--port" else option
        match getattr(error, "errno", None):
            case errno.EADDRINUSE:
                where = f"port {port} on {host}"
                why = f"{where} is in use: choose another with {option} (0: any free one)"
            case errno.EACCES:
                why = f"no permission to use port {port}: choose one above 1023 with {option}"
            case _:
                why = f"cannot listen on {host}, port {port}: {error}; check {check}"
        raise BindError(why) from error
    return bound
