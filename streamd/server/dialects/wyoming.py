"""Home Assistant's Wyoming protocol (https://github.com/OHF-Voice/wyoming), but for its framing."""

from collections.abc import Iterator

import msgspec

from streamd.errors import WireError
from streamd.events import Fault, Final, Flushed, Partial, SessionEvent
from streamd.server.dialects.dialect import ByteStream, Close, Dialect, GrowingText, Tell, start_for
from streamd.server.wire import Command, Flush, Query, Role, decoded


class _Data(msgspec.Struct):
    rate: int = 16_000
    width: int = 2
    channels: int = 1
    language: str | None = None
    transcript_names: tuple[str, ...] | None = None
    transcript_terms: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rate, self.width, self.channels


class _Heard(msgspec.Struct):
    type: str
    data: _Data = msgspec.field(default_factory=_Data)


_decoder = msgspec.json.Decoder(_Heard)


class Wyoming(Dialect):
    """From ``audio-start`` to ``audio-stop`` is one transcript, whose chunks come as it is made."""

    def __init__(self, query: str = "") -> None:
        self._chosen = self._format = _Data()
        self._stream: ByteStream | None = None
        self._texts: list[str] = []
        self._text = GrowingText()
        self._has_begun = False

    def request(self) -> Query:
        return Query(role=Role.BOTH)

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        if isinstance(message, bytes):
            self._stream = self._stream or self._begin()
            yield from self._stream.take(message)
            return
        event = decoded(message, _decoder, "a Wyoming event")
        match event.type:
            case "transcribe":
                self._chosen = event.data
            case "audio-start":
                if self._stream and event.data.shape != self._format.shape:
                    raise WireError("late_start", "all audio of a connection has one format")
                self._format = event.data
            case "audio-stop":
                yield Flush()

    def _begin(self) -> ByteStream:
        rate, width, channels = self._format.shape
        if width != 2:
            raise WireError("bad_message", f"samples must have 2 bytes, got {width}")
        chosen = self._chosen
        terms = *(chosen.transcript_names or ()), *(chosen.transcript_terms or ())
        start = start_for(rate, channels=channels, tags=[chosen.language], terms=terms)
        return ByteStream("pcm_s16le", start)

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Partial():
                yield from self._grow(event.text[: event.stable])
            case Final():
                yield from self._grow(event.text)
                self._texts.append(event.text)
            case Flushed():
                yield from self._start()
                yield _event("transcript", text=" ".join(self._texts))
                yield _event("transcript-stop")
                self._texts, self._text, self._has_begun = [], GrowingText(), False
            case Fault():
                yield _event("error", text=event.message, code=event.code)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        yield _event("error", text=str(error), code=error.code)

    def _grow(self, text: str) -> Iterator[Tell]:
        if text and (added := self._text.more(" ".join([*self._texts, text]))):
            yield from self._start()
            yield _event("transcript-chunk", text=added)

    def _start(self) -> Iterator[Tell]:
        if not self._has_begun:
            self._has_begun = True
            yield _event("transcript-start")


def _event(kind: str, **data: object) -> Tell:
    return Tell({"type": kind, "data": data})
