"""The protocols that clients speak on the port, told apart by the path of the websocket's URL.

A dialect is pure: `Connection` does what it says. A new one is a file here and an entry in
`DIALECTS`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from streamd.errors import WireError
from streamd.server.dialects.deepgram import Deepgram
from streamd.server.dialects.dialect import Close, Dialect, Tell
from streamd.server.dialects.native import Native
from streamd.server.wire import STREAM_PATH, Role

__all__ = ["DIALECTS", "Close", "Dialect", "Tell", "requested_role"]

DIALECTS: Mapping[str, type[Dialect]] = MappingProxyType(
    {STREAM_PATH: Native, "/v1/listen": Deepgram}
)
"""The dialects by path."""


def requested_role(url: str) -> Role:
    """Return the role that the path and query of a websocket ask for.

    It is `Role.LISTEN` if they are not valid; then the connection will be refused.
    """
    path, _, query = url.partition("?")
    try:
        return DIALECTS[path](query).request().role
    except (KeyError, WireError):
        return Role.LISTEN
