"""The open connections, counted from the moment at which they are accepted."""

import asyncio
import errno
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any

import websockets.asyncio.server as ws

from streamd.server.auth import is_loopback
from streamd.server.wire import Role

HandleOther = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


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

        `other` handles requests by another method than GET and HEAD, which the library cannot read.
        """
        known = {"registry": self, "handle_other": staticmethod(other)}
        return type("RegisteredConnection", (HttpConnection,), known)


class HttpConnection(ws.ServerConnection):
    """Answers HEAD, and hands connections with other methods over to `handle_other`."""

    method = ""
    registry: ConnectionRegistry
    handle_other: HandleOther

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the registry."""
        super().connection_lost(exc)
        self.registry.remove(self.transport)

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if self.method:
            super().data_received(data)
            return
        found = re.match(rb"([A-Z]+) ", data)
        self.method = found[1].decode() if found else "GET"
        if self.method == "GET":
            super().data_received(data)
        elif self.method == "HEAD":
            super().data_received(b"GET" + data[4:])
        else:
            self._hand_over(data)

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
