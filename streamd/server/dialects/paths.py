"""Which dialect a client speaks, by the path of the websocket's URL.

At `ROOT_PATH`, the first message tells them apart.
"""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from streamd.errors import WireError
from streamd.server.dialects.assemblyai import AssemblyAI
from streamd.server.dialects.deepgram import Deepgram
from streamd.server.dialects.dialect import Dialect
from streamd.server.dialects.flux import Flux
from streamd.server.dialects.native import Native
from streamd.server.dialects.openai_realtime import OpenAIRealtime
from streamd.server.dialects.vosk import Vosk
from streamd.server.dialects.whisperlive import WhisperLive
from streamd.server.wire import STREAM_PATH, Role, decoded

ROOT_PATH = "/"

DIALECTS: Mapping[str, type[Dialect]] = {
    STREAM_PATH: Native,
    "/v1/realtime": OpenAIRealtime,
    "/v1/listen": Deepgram,
    "/v2/listen": Flux,
    "/v3/ws": AssemblyAI,
    ROOT_PATH: Vosk,
}
"""The dialects by path."""


class _Introduction(msgspec.Struct):
    uid: str


_introduction_decoder = msgspec.json.Decoder(_Introduction)


def introduced(query: str, first: str | bytes) -> Dialect:
    """Return the dialect of a client at `ROOT_PATH`, whose `first` message is yet to be heard."""
    with suppress(WireError):
        if isinstance(first, str):
            return WhisperLive(query, decoded(first, _introduction_decoder, "a uid").uid)
    return Vosk(query)


def requested(url: str) -> tuple[Role, str | None]:
    """Return the role and the session that the path and query of a websocket ask for.

    They are `Role.LISTEN` and None if they are not valid; then the connection will be refused.
    """
    path, _, query = url.partition("?")
    try:
        asked = DIALECTS[path](query).request()
    except (KeyError, WireError):
        return Role.LISTEN, None
    return asked.role, asked.session
