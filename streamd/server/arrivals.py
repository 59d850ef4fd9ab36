"""Who is connected: those who were let in, and those who have not come so far.

Whoever connects and says nothing costs a socket until its time is over. There may only be so many
of them, and they take nobody's place: when there are too many, the oldest is cut off of the address
from which most come. Whoever means it has said what it wants long before.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import websockets.asyncio.server as ws

from streamd.server.door import is_loopback


class Arrivals:
    """The connections of a server.

    Parameters
    ----------
    max_opening : how many may not have been let in yet
    """

    def __init__(self, max_opening: int) -> None:
        self._max_opening = max_opening
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
        self._opening[connection] = _host(connection)
        if len(self._opening) > self._max_opening:
            ((crowded, _),) = Counter(self._opening.values()).most_common(1)
            oldest = next(other for other, host in self._opening.items() if host == crowded)
            del self._opening[oldest]
            oldest.transport.abort()

    def lost(self, connection: ws.ServerConnection) -> None:
        """It has gone."""
        self._opening.pop(connection, None)
        self._inside.pop(connection, None)


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
