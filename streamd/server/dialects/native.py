"""streamd.v1, our own protocol (docs/protocol.md)."""

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from streamd.errors import WireError
from streamd.events import (
    Fault,
    Final,
    Missed,
    Notice,
    Partial,
    SessionEvent,
    Sound,
    Translation,
    TurnEvent,
    Vad,
)
from streamd.server.dialects.dialect import Close, Tell
from streamd.server.wire import (
    Command,
    Hello,
    Query,
    Role,
    Start,
    decode_command,
    parse_query,
    unknown_fields,
)

_SPOKEN = (Partial, Final, Translation, Vad, TurnEvent, Sound, Notice, Missed)
"""What a client does not get that only feeds a session."""


class Native:
    """What the client gets are the events themselves."""

    def __init__(self, query: str) -> None:
        self._text = query
        self._wants_words = True
        self._unwanted: tuple[type[SessionEvent], ...] = ()

    def request(self) -> Query:
        query = parse_query(self._text, Query)
        self._wants_words = query.words
        self._unwanted = _SPOKEN if query.role is Role.INGEST else ()
        return query

    def opened(self, hello: Hello) -> Iterator[Tell]:
        yield Tell(hello)

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        command = message if isinstance(message, bytes) else decode_command(message)
        if isinstance(message, str) and isinstance(command, Start):
            # A newer client may have more; somebody who mistypes one should hear of it.
            yield from _warning(unknown_fields(message, command))
        if isinstance(command, Start) and command.words is not None:
            self._wants_words = command.words
        yield command

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        if isinstance(event, self._unwanted):
            return
        if not self._wants_words and isinstance(event, Partial | Final):
            event = msgspec.structs.replace(event, words=())
        yield Tell(event)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        heard_ms = msgspec.UNSET if error.heard_ms is None else error.heard_ms
        yield Tell(Fault(code=error.code, message=str(error), fatal=True, heard_ms=heard_ms))


def _warning(sentences: Iterable[str]) -> Iterator[Tell]:
    # No more are looked at: a message has room for 100,000, and each takes 30 µs.
    if unknown := list(islice(sentences, 5)):
        yield Tell(Fault(code="unknown_field", message="; ".join(unknown)))
