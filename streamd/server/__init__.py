"""The websocket server: who may connect, who listens to a session and who feeds one.

`Server` runs it, with the daemon as its `Sessions`. docs/protocol.md describes the protocol,
`wire` defines its messages, and `streamd.client` is the other end.
"""

from streamd.server.auth import is_loopback
from streamd.server.connection import LIVE, ServerInfo
from streamd.server.ingest import IngestSession, Sessions
from streamd.server.listener import Server
from streamd.server.metrics import Metrics
from streamd.server.rest import Recording, Recordings, Wanted
from streamd.server.routes import Invitation

__all__ = [
    "LIVE",
    "IngestSession",
    "Invitation",
    "Metrics",
    "Recording",
    "Recordings",
    "Server",
    "ServerInfo",
    "Sessions",
    "Wanted",
    "is_loopback",
]
