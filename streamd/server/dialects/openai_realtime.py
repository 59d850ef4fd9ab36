"""OpenAI's Realtime API, for transcription (https://platform.openai.com/docs/api-reference/realtime)."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from streamd.errors import WireError
from streamd.events import Fault, Final, Flushed, Partial, SessionEvent
from streamd.server.dialects.dialect import ByteStream, Close, Tell, both
from streamd.server.dialects.realtime import Items, RealtimeInput
from streamd.server.wire import Command, Flush, Hello, Query, decoded

_CLEAR = "clear"
_LEAST_COMMIT_MS = 100


class _Asked(Query, frozen=True, kw_only=True):
    intent: Literal["transcription"] = "transcription"


class _Message(msgspec.Struct):
    type: str
    event_id: str | None = None
    audio: str = ""
    session: dict[str, Any] = msgspec.field(default_factory=dict)


_decoder = msgspec.json.Decoder(_Message)


class OpenAIRealtime:
    """A final is an item; without turn detection, all that is said before a commit is one.

    Deltas only append: they are the words that do not change any more.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        self._input = RealtimeInput()
        self._stream: ByteStream | None = None
        self._committed_ms = 0
        self._name, self._items = "", Items("")
        self._texts: list[str] = []  # that wait for a commit

    def request(self) -> Query:
        return both(self._text, _Asked)

    def opened(self, hello: Hello) -> Iterator[Tell]:
        self._name, self._items = hello.session, Items(hello.session)
        yield self._items.tell("session.created", session=self._input.session(self._name))

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        """Take an event of the client; one that is wrong is answered with an error."""
        try:
            asked = decoded(message, _decoder, "an event")
        except WireError as error:
            yield self._items.error("invalid_json", str(error))
            return
        try:
            yield from self._take(asked)
        except (ValueError, RecursionError) as error:  # of base64, or msgspec's
            yield self._items.error("invalid_value", str(error), asked.event_id)

    def _take(self, asked: _Message) -> Iterator[bytes | Command | Tell]:
        has_audio = self._stream is not None
        heard_ms = self._stream.heard_ms if self._stream else 0
        match asked.type:
            case "session.update" if self._input.update(asked.session, is_used=has_audio):
                yield self._items.tell("session.updated", session=self._input.session(self._name))
            case "session.update":
                what = "a session cannot be changed once there is audio"
                yield self._items.error("invalid_value", what, asked.event_id)
            case "input_audio_buffer.append":
                audio = b64decode(asked.audio, validate=True)
                self._stream = self._stream or self._input.stream()
                yield from self._stream.take(audio)
            case "input_audio_buffer.commit" if heard_ms - self._committed_ms < _LEAST_COMMIT_MS:
                code = "input_audio_buffer_commit_empty"
                yield self._items.error(code, "there is less than 100 ms of audio", asked.event_id)
            case "input_audio_buffer.commit":
                yield Flush(id=str(heard_ms - self._committed_ms))
                self._committed_ms = heard_ms
            case "input_audio_buffer.clear":
                self._committed_ms = heard_ms
                yield Flush(id=_CLEAR)
                yield self._items.tell("input_audio_buffer.cleared")
            case other:
                what = f"{other!r} is not supported"
                yield self._items.error("unknown_event", what, asked.event_id)

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Partial() if self._input.ends_turns:
                yield from self._items.begin(event.start_ms)
                yield from self._items.grow(event.text[: event.stable])
            case Final() if self._input.ends_turns:
                yield from self._items.begin(event.start_ms)
                yield from self._items.stop(event.end_ms)
                yield from self._items.complete(event.text, event.end_ms - event.start_ms)
            case Final():
                self._texts.append(event.text)
            case Flushed(id=duration_ms) if not self._input.ends_turns:
                texts, self._texts = self._texts, []
                if duration_ms.isdecimal():
                    yield from self._items.complete(" ".join(texts), int(duration_ms))
            case Fault():
                yield self._items.error(event.code, event.message, of_server=True)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        yield self._items.error(error.code, str(error))
