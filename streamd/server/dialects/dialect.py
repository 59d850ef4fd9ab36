"""What every dialect is, and what one can ask the connection to do."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from streamd.errors import WireError
from streamd.events import SessionEvent
from streamd.server.wire import (
    Command,
    Hello,
    Query,
    Role,
    Start,
    decoded,
    parse_query,
)

_MIN_ENDPOINT_MS = 200
"""Clients ask for pauses of 10 ms, but Whisper needs phrases."""

QueryT = TypeVar("QueryT", bound=Query)


class Tell(msgspec.Struct, frozen=True):
    """Send `message` to the client as JSON; an event is encoded once for all who get it."""

    message: object


class Close(msgspec.Struct, frozen=True):
    """Close the websocket; `reason` has at most 123 bytes (RFC 6455, section 5.5)."""

    code: int
    reason: str


class Dialect(Protocol):
    """A protocol as one client speaks it: one object per connection, made with the URL's query.

    It is pure: it knows neither socket nor clock, and says what to do. The connection takes all
    that one call yields before the next call, does it in this order, and ends with `fault` if a
    call raises `WireError`. Nothing else may be raised, whatever the client sends.
    """

    def __init__(self, query: str) -> None: ...

    def request(self) -> Query:
        """Return what the client asks for; called first, and possibly again.

        Raises `WireError` with `bad_query`.
        """

    def opened(self, hello: Hello) -> Iterator[Tell]:
        """The session of the request is there; comes before `hear` and `say`."""
        yield from ()

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        """Handle a message of the client, which may feed the session; `bytes` are audio for it.

        A `Start` comes at most once, and before the first audio. After a `Stop` or the end of the
        session it is not called.
        """

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        """Tell the client of an event.

        `Eos` is the last: the connection then closes the websocket with 1000, or 1001 when the
        server ends. Answers to commands are events, too: `Flushed` follows the last final.
        """

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        """Report the error that ends the connection, at any time.

        The last act may be a `Close`; without, the websocket is closed as streamd.v1 does it.
        """
        yield from ()


class _Typed(msgspec.Struct):
    type: str


_typed_decoder = msgspec.json.Decoder(_Typed)


def type_of(message: str) -> str:
    """Return the ``type`` of a JSON message; raises `WireError` with `bad_message`."""
    return decoded(message, _typed_decoder, "JSON with a type").type


def both(query: str, kind: type[QueryT]) -> QueryT:
    """Return what a client asks for that feeds a session and listens to it; raises `WireError`."""
    return msgspec.structs.replace(parse_query(query, kind), role=Role.BOTH)


def start_for(
    rate: int,
    *,
    channels: int = 1,
    tags: Sequence[str | None] = (),
    prompt: str | None = None,
    terms: Iterable[str] = (),
    pause_ms: int | None = None,
) -> Start:
    """Return the `Start` for language tags such as ``en-US``, key terms and the pause of an end.

    Several languages, or ``multi``, are ``auto``.
    """
    tag = "multi" if len(tags) > 1 else next(iter(tags), None)
    return Start(
        rate=rate,
        channels=channels,
        language="auto" if tag == "multi" else tag and tag.partition("-")[0].lower(),
        prompt=prompt,
        hotwords=", ".join(terms) or None,
        endpoint_ms=None if pause_ms is None else max(_MIN_ENDPOINT_MS, pause_ms),
    )


class GrowingText:
    """A text of which each part is sent once, and never taken back."""

    def __init__(self) -> None:
        self._sent = ""

    def more(self, text: str) -> str:
        """Return what `text` adds; nothing if it does not continue what was sent."""
        if not text.startswith(self._sent):
            return ""
        added, self._sent = text[len(self._sent) :], text
        return added


def tell(kind: str, **fields: object) -> Tell:
    """Return a message of this ``type``."""
    return Tell({"type": kind, **fields})
