"""Who is connected: those who were let in, and those who have not come so far.

Whoever connects and says nothing costs a socket until its time is over. There may only be so many
of them, and they take nobody's place: when there are too many, the oldest is cut off. Whoever means
it has said what it wants long before.
"""

import asyncio
from collections.abc import Iterator

import websockets.asyncio.server as ws

from streamd.server.door import is_loopback


class Arrivals:
    """The connections of a server.

    Parameters
    ----------
    max_opening : how many may not have been let in yet
    max_opening_per_address : how many of them may come from one other machine; 0: any number
    """

    def __init__(self, *, max_opening: int, max_opening_per_address: int) -> None:
        self._max_opening = max_opening
        self._max_per_address = max_opening_per_address
        self._opening: dict[ws.ServerConnection, str] = {}
        self._inside: dict[ws.ServerConnection, str] = {}

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._opening) + len(self._inside)

    def __iter__(self) -> Iterator[ws.ServerConnection]:
        """All of them, as they are now."""
        return iter([*self._opening, *self._inside])

    @property
    def n_inside(self) -> int:
        """How many were let in."""
        return len(self._inside)

    def n_inside_from(self, connection: ws.ServerConnection) -> int:
        """How many from its address were let in; none count from this machine.

        For a proxy here may stand for everybody.
        """
        host = _host(connection)
        return 0 if is_loopback(host) else list(self._inside.values()).count(host)

    def let_in(self, connection: ws.ServerConnection) -> None:
        """It has said what it wants, and may have it."""
        if (host := self._opening.pop(connection, None)) is not None:
            self._inside[connection] = host

    def connected(self, connection: ws.ServerConnection) -> None:
        """It has come, and has said nothing yet."""
        host = _host(connection)
        self._opening[connection] = host
        if self._max_per_address > 0 and not is_loopback(host):
            neighbours = [other for other, where in self._opening.items() if where == host]
            self._cut(neighbours, self._max_per_address)
        self._cut(list(self._opening), self._max_opening)

    def lost(self, connection: ws.ServerConnection) -> None:
        """It has gone."""
        self._opening.pop(connection, None)
        self._inside.pop(connection, None)

    def _cut(self, opening: list[ws.ServerConnection], most: int) -> None:
        if len(opening) > most:
            del self._opening[opening[0]]
            opening[0].transport.abort()


def connections_of(arrivals: Arrivals) -> type[ws.ServerConnection]:
    """The connections that a server is to make, so that `arrivals` knows all of them."""

    class Known(ws.ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            arrivals.connected(self)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            arrivals.lost(self)

    return Known


def _host(connection: ws.ServerConnection) -> str:
    """The address of the other end, whatever the family."""
    peer = connection.remote_address
    return str(peer[0]).removeprefix("::ffff:") if peer else ""
