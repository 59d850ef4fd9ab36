"""The websocket door: who listens to a session, who feeds one, and who is cut off.

`serve` opens it. What it needs from the daemon is `Streams`; what passes through it is described in
docs/protocol.md and lives in `wire`. `watch` is the other end: it reads a server's events.
"""

from streamd.server.conversation import LIVE, SHUTDOWN, ServerInfo
from streamd.server.entrance import Entrance
from streamd.server.listener import Server, serve
from streamd.server.metrics import Metrics
from streamd.server.peer import Bounds
from streamd.server.streams import Ingest, Streams
from streamd.server.watch import watch

__all__ = [
    "LIVE",
    "SHUTDOWN",
    "Bounds",
    "Entrance",
    "Ingest",
    "Metrics",
    "Server",
    "ServerInfo",
    "Streams",
    "serve",
    "watch",
]
