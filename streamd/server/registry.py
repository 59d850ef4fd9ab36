"""The open connections, counted from the moment at which they are accepted."""

import errno
import re
from collections import Counter
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any

import websockets.asyncio.server as ws

from streamd.server.auth import is_loopback
from streamd.server.routes import plain
from streamd.server.wire import Role


class ConnectionRegistry:
    """The open connections: pending until their request is granted, authorized after that.

    Above `max_pending` the oldest pending connection from the busiest address is dropped, since a
    real client has sent its request long before. Pending connections take no client's place.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._pending: dict[int, tuple[socket, str]] = {}  # by descriptor, oldest first
        self._authorized: dict[ws.ServerConnection, tuple[str, Role]] = {}

    def count(self, *roles: Role) -> int:
        """Return how many connections are authorized for one of these roles."""
        return sum(role in roles for _, role in self._authorized.values())

    def n_authorized_from(self, connection: ws.ServerConnection) -> int:
        """How many from its address are authorized; 0 for this machine, where a proxy may run."""
        host = _host(connection.remote_address)
        others = [other for other, _ in self._authorized.values()]
        return 0 if is_loopback(host) else others.count(host)

    def authorize(self, connection: ws.ServerConnection, role: Role) -> None:
        """The request of a pending connection was granted."""
        descriptor = connection.transport.get_extra_info("socket").fileno()
        if (pending := self._pending.pop(descriptor, None)) is not None:
            self._authorized[connection] = pending[1], role

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

    def remove(self, connection: ws.ServerConnection) -> None:
        """An authorized connection was lost."""
        self._authorized.pop(connection, None)

    def abort(self) -> None:
        """Drop all connections."""
        for accepted, _ in self._pending.values():
            _hang_up(accepted)
        for connection in list(self._authorized):
            connection.transport.abort()

    def connection_type(self) -> type[ws.ServerConnection]:
        """Return the class of connections that say here when they are lost."""
        registry = self

        class RegisteredConnection(HttpConnection):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                registry.remove(self)

        return RegisteredConnection


class HttpConnection(ws.ServerConnection):
    """Answers HEAD, and refuses other methods, for which the library may close the connection."""

    method = ""

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client; those of a request that was refused are ignored."""
        if not self.method:
            found = re.match(rb"([A-Z]+) ", data)
            self.method = found[1].decode() if found else "GET"
            if self.method == "HEAD":
                data = b"GET" + data[4:]
            elif self.method != "GET":
                refusal = plain(405, "only GET and HEAD are supported", {"Allow": "GET, HEAD"})
                self.transport.write(refusal.serialize())
        if self.method in ("GET", "HEAD"):
            super().data_received(data)


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
