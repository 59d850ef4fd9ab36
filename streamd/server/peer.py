"""A websocket whose other end cannot hold us up.

`websockets`' own keep-alive does not cut off a client that stops reading: once the buffer is full
its ping waits for the buffer, and its timer for the ping. So every send here has a deadline. The
pings are ours too, sent only while we wait for the client: one that waits for us, because the
engine is behind and its audio is not read, is not taken for dead.
"""

import asyncio
import logging
from dataclasses import dataclass
from socket import SO_LINGER, SOL_SOCKET
from struct import pack

from websockets.asyncio.server import ServerConnection

_log = logging.getLogger(__name__)


class StuckError(Exception):
    """The other end neither reads nor answers; it was cut off."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a client may cost."""

    max_message_bytes: int = 1 << 20
    max_connections: int = 256
    write_buffer_bytes: int = 32 << 10
    """What may wait in our buffer before a send waits too."""
    send_deadline_ms: int = 10_000
    """How long a message, or the closing handshake, may wait for a client that does not read."""
    ping_ms: int = 20_000
    """Silence after which a client is pinged, and the time it has to answer."""
    shutdown_ms: int = 10_000
    """Time for the last finals when the server ends."""
    resume_ms: int = 30_000
    """How long a session waits for its speaker to come back, if that counts samples."""
    max_session_ms: int = 0
    """Audio after which a session of a client ends; 0: never."""
    max_lag_ms: int = 5_000
    """How far the engine may be behind until other clients are sent away by `/readyz`."""
    max_per_address: int = 0
    """Connections from one other machine; 0: any number."""
    max_opening: int = 256
    """Connections that have not said yet what they want, or `max_connections` if that is more.

    Of more than that one is cut off: the oldest of the address from which most come.
    """

    @property
    def most_opening(self) -> int:
        """Connections that may not have said yet what they want: all may come in at once."""
        return max(self.max_opening, self.max_connections)


class Peer:
    """The other end of `connection`."""

    def __init__(self, connection: ServerConnection, bounds: Bounds) -> None:
        self._connection = connection
        self._deadline_s = bounds.send_deadline_ms / 1000
        self._ping_s = bounds.ping_ms / 1000

    async def send(self, text: bytes) -> None:
        """Send a text message.

        Raises
        ------
        ConnectionClosed : there is nobody any more
        StuckError : it could not be sent before the deadline, and the connection was cut
        """
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._connection.send(text, text=True)
        except TimeoutError:
            raise self._cut("does not read") from None

    async def receive(self) -> str | bytes:
        """Wait for the next message, for ever if the other end answers pings.

        Raises
        ------
        ConnectionClosed : there will be none
        StuckError : no answer to a ping, and the connection was cut
        """
        while True:
            try:
                async with asyncio.timeout(self._ping_s):
                    return await self._connection.recv()
            except TimeoutError:
                await self._ping()

    async def _ping(self) -> None:
        try:
            async with asyncio.timeout(self._ping_s):
                await (await self._connection.ping())
        except TimeoutError:
            raise self._cut("does not answer a ping") from None

    async def hang_up(self, code: int, reason: str) -> None:
        """Close; returns when the connection is closed, whatever the other end does."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._connection.close(code, reason)
        except TimeoutError:
            self._cut("does not close")

    def _cut(self, why: str) -> StuckError:
        _log.info("client %s cut off: it %s", self._connection.remote_address, why)
        transport = self._connection.transport
        if not transport.is_closing():
            # A reset: otherwise the kernel keeps for minutes what nobody reads.
            transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
        transport.abort()
        return StuckError(why)
