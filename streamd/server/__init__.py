"""The websocket server: authentication, listeners of sessions, and clients that feed them.

`Server` runs it. docs/protocol.md describes the protocol,
`wire` defines its messages, and `streamd.server.client` is the other end.
"""

from streamd.server.access import LIVE, Rights, grants, guest_token
from streamd.server.auth import is_loopback
from streamd.server.connection import ServerInfo
from streamd.server.listener import TELL_S, LibraryAnswers, Server
from streamd.server.readers import LanguageReader
from streamd.server.rest import Recording, Recordings, Wanted
from streamd.server.routes import Invitation
from streamd.server.transcripts import Transcripts

__all__ = [
    "LIVE",
    "TELL_S",
    "Invitation",
    "LanguageReader",
    "LibraryAnswers",
    "Recording",
    "Recordings",
    "Rights",
    "Server",
    "ServerInfo",
    "Transcripts",
    "Wanted",
    "grants",
    "guest_token",
    "is_loopback",
]
