"""The open connections, counted from the moment at which they are accepted."""

import asyncio
import errno
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any

import h11
import websockets.asyncio.server as ws

from streamd.server.auth import is_loopback
from streamd.server.exchange import MAX_HEAD_BYTES
from streamd.server.pacing import PacedConnection
from streamd.server.routes import is_of_library, session_in
from streamd.server.wire import Role

HandleOther = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_OF_A_BODY = (b"content-length", b"transfer-encoding")
"""Headers with which the library closes the connection; a body is not read."""


class ConnectionRegistry:
    """The open connections: pending until their request is granted, authorized after that.

    Above `max_pending` the oldest pending connection from the busiest address is dropped, since a
    real client has sent its request long before. Pending connections take no client's place.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self.is_closing = False
        """Set to accept no more connections."""
        self._pending: dict[int, tuple[socket, str]] = {}  # by descriptor, oldest first
        self._authorized: dict[asyncio.WriteTransport, tuple[str, Role | None]] = {}

    def count(self, *roles: Role) -> int:
        """Return how many connections are authorized for one of these roles."""
        return sum(role in roles for _, role in self._authorized.values())

    def n_authorized_from(self, transport: asyncio.WriteTransport) -> tuple[int, int]:
        """How many from its address are authorized, and how many of them are uploads.

        It is none for this machine, where a proxy may run.
        """
        host = _host(transport.get_extra_info("peername"))
        if is_loopback(host):
            return 0, 0
        roles = [role for other, role in self._authorized.values() if other == host]
        return len(roles), roles.count(None)

    def authorize(self, transport: asyncio.WriteTransport, role: Role | None) -> None:
        """Mark a pending connection as authorised; without a role, it is an upload."""
        descriptor = transport.get_extra_info("socket").fileno()
        if (pending := self._pending.pop(descriptor, None)) is not None:
            self._authorized[transport] = pending[1], role

    def add(self, accepted: socket, address: object) -> None:
        """A connection was accepted; it is pending."""
        descriptor = accepted.fileno()
        self._pending.pop(descriptor, None)  # its connection is closed: it had the same number
        self._pending[descriptor] = accepted, _host(address)
        if len(self._pending) > self._max_pending:
            self.drop_oldest(above=self._max_pending)

    def drop_oldest(self, *, above: int = 0) -> bool:
        """Drop the oldest pending connection from the busiest address; return whether it did.

        It does nothing if there are not more than `above`.
        """
        # asyncio closes the socket of a connection that is lost.
        self._pending = {n: each for n, each in self._pending.items() if each[0].fileno() == n}
        if len(self._pending) <= above:
            return False
        ((busiest, _),) = Counter(host for _, host in self._pending.values()).most_common(1)
        oldest = next(n for n, (_, host) in self._pending.items() if host == busiest)
        _hang_up(self._pending.pop(oldest)[0])
        return True

    def remove(self, transport: asyncio.WriteTransport) -> None:
        """A connection was lost."""
        self._authorized.pop(transport, None)

    def abort(self) -> None:
        """Drop all connections."""
        for accepted, _ in self._pending.values():
            _hang_up(accepted)
        for transport in list(self._authorized):
            transport.abort()

    def connection_type(self, other: HandleOther) -> type[ws.ServerConnection]:
        """Return the class of connections that say here when they are lost.

        `other` handles what the library cannot read: requests by another method than GET and HEAD,
        what is no HTTP, and what takes longer than a handshake: transcripts.
        """
        known = {"registry": self, "handle_other": staticmethod(other)}
        return type("RegisteredConnection", (HttpConnection,), known)


class HttpConnection(PacedConnection):
    """Answers GET and HEAD, and hands connections with anything else over to `handle_other`.

    The head of a request is complete before the library sees it, which closes the connection if it
    does not come in time: h11 reads more of what HTTP allows, and says what is wrong with the rest.
    """

    method = ""
    registry: ConnectionRegistry
    handle_other: HandleOther

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read a request."""
        self._head, self._is_websocket = b"", False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the registry."""
        super().connection_lost(exc)
        self.registry.remove(self.transport)

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if not self.method:
            self._read_head(data)
        elif self._is_websocket:
            super().data_received(data)
        # Else it is the body of a GET or another request, and the answer closes the connection.

    def _read_head(self, data: bytes) -> None:
        if not self._head:
            data = data.lstrip(b"\r\n")  # which may precede a request: RFC 9112, 2.2
        if not data:
            return
        self._head += data
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError:
            self._hand_over(self._head)
            return
        if not isinstance(event, h11.Request):
            return  # the rest is still to come
        self.method = event.method.decode()
        headers = [
            b"%s: %s" % (name, value)
            for name, value in event.headers.raw_items()
            if name.lower() not in _OF_A_BODY
        ]
        head = b"\r\n".join((b"GET %s HTTP/1.1" % event.target, *headers, b"", b""))
        path = event.target.decode(errors="replace").partition("?")[0]
        self._is_websocket = any(name.lower() == b"upgrade" for name, _ in event.headers)
        if any(_CONTROL.search(value) for _, value in event.headers.raw_items()):
            self._hand_over(b"\0")  # h11 allows what the library closes without an answer for
        elif self.method in ("GET", "HEAD") and not (session_in(path) or is_of_library(path)):
            frames, _ = self._http.trailing_data if self._is_websocket else (b"", False)
            super().data_received(head + frames)
        else:
            self._hand_over(self._head)

    def _hand_over(self, data: bytes) -> None:
        # To the library, the connection is lost. It then aborts the transport, which it must not.
        transport, self.transport = self.transport, _DetachedTransport()
        self.connection_lost(None)
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self.handle_other)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)


class _DetachedTransport(asyncio.Transport):
    def abort(self) -> None:
        pass


class ListeningSocket(socket):
    """Registers connections when they are accepted.

    asyncio reports a connection only after its TLS handshake, so silent clients could otherwise
    take all descriptors.
    """

    def __init__(self, bound: socket, registry: ConnectionRegistry) -> None:
        super().__init__(fileno=bound.detach())
        self._registry = registry

    def accept(self) -> tuple[socket, Any]:
        """Accept a connection; raises as the method of `socket` does."""
        if self._registry.is_closing:
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._registry.drop_oldest():
                raise BlockingIOError from error  # asyncio tries again in its next turn
            raise
        self._registry.add(accepted, address)
        return accepted, address


def _hang_up(accepted: socket) -> None:
    with suppress(OSError):  # it is closed already
        accepted.shutdown(SHUT_RDWR)  # asyncio then closes it


def _host(address: object) -> str:
    """Return the host of a client's address; an IPv4 address in IPv6 form counts as IPv4."""
    if not isinstance(address, tuple):
        return "localhost"  # a Unix socket
    return str(address[0]).removeprefix("::ffff:")
