"""Home Assistant's Wyoming protocol (https://github.com/OHF-Voice/wyoming), but for its framing."""

from collections.abc import Iterator

import msgspec
import numpy as np

from streamd.errors import WireError
from streamd.events import Fault, Final, Flushed, Partial, SessionEvent
from streamd.server.dialects.dialect import ByteStream, Close, Dialect, GrowingText, Tell, start_for
from streamd.server.wire import Command, Flush, Query, Role, Start, check_format, decoded
from streamd.sources.framing import Framer
from streamd.types import SAMPLE_RATE


class _Data(msgspec.Struct):
    rate: int | None = None
    width: int | None = None
    channels: int | None = None
    language: str | None = None
    transcript_names: tuple[str, ...] | None = None
    transcript_terms: tuple[str, ...] | None = None


class _Heard(msgspec.Struct):
    type: str
    data: _Data = msgspec.field(default_factory=_Data)


_decoder = msgspec.json.Decoder(_Heard)


class _Audio:
    """Samples of one format: integers of 1 to 4 bytes, of which those of one byte have no sign."""

    def __init__(self, rate: int = 16_000, width: int = 2, channels: int = 1) -> None:
        """Raise `WireError` if such audio is not supported."""
        check_format(Start(rate=rate, channels=channels))
        if not 1 <= width <= 4:
            raise WireError("bad_message", f"samples must have 1 to 4 bytes, got {width}")
        self._shape = rate, width, channels
        self._framer = Framer(rate, channels)
        self._rest = b""

    def changed(self, data: _Data) -> "_Audio":
        """Return this, or another one for what an event states of its format."""
        known = zip((data.rate, data.width, data.channels), self._shape, strict=True)
        shape = tuple(before if told is None else told for told, before in known)
        return self if shape == self._shape else _Audio(*shape)

    def frames(self, audio: bytes) -> bytes:
        """Return the frames at 16 kHz that these bytes complete, as float32."""
        _, width, channels = self._shape
        audio = self._rest + audio
        n_whole = len(audio) - len(audio) % (width * channels)
        audio, self._rest = audio[:n_whole], audio[n_whole:]
        samples = np.frombuffer(audio, np.uint8).reshape(-1, channels, width)
        if width == 1:
            return self._framer.push(samples[..., 0]).tobytes()
        wide = np.zeros((len(samples), channels, 4), np.uint8)
        wide[..., 4 - width :] = samples  # the lowest byte comes first
        return self._framer.push(wide.view("<i4")[..., 0]).tobytes()

    def flush(self) -> bytes:
        """Return the last frame, with silence after it."""
        return self._framer.flush().tobytes()


class Wyoming(Dialect):
    """From ``audio-start`` to ``audio-stop`` is one transcript, whose chunks come as it is made.

    Each ``audio-chunk`` may state another format.
    """

    def __init__(self, query: str = "") -> None:
        self._chosen, self._audio = _Data(), _Audio()
        self._stream: ByteStream | None = None
        self._said = GrowingText()
        self._has_begun = False

    def request(self) -> Query:
        return Query(role=Role.BOTH)

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        if isinstance(message, bytes):
            self._stream = self._stream or self._begin()
            yield from self._stream.take(self._audio.frames(message))
            return
        event = decoded(message, _decoder, "a Wyoming event")
        match event.type:
            case "transcribe":
                self._chosen = event.data
            case "audio-start" | "audio-chunk":  # that of a chunk comes right behind
                before, self._audio = self._audio, self._audio.changed(event.data)
                if self._stream and before is not self._audio:
                    yield from self._stream.take(before.flush())
            case "audio-stop":
                yield Flush()

    def _begin(self) -> ByteStream:
        chosen = self._chosen
        terms = *(chosen.transcript_names or ()), *(chosen.transcript_terms or ())
        start = start_for(SAMPLE_RATE, tags=[chosen.language], terms=terms)
        return ByteStream("float32", start)

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Partial() | Final():
                if added := self._said.take(event):
                    yield from self._start()
                    yield _event("transcript-chunk", text=added)
            case Flushed():
                yield from self._start()
                yield _event("transcript", text=" ".join(self._said.texts))
                yield _event("transcript-stop")
                self._said, self._has_begun = GrowingText(), False
            case Fault():
                yield _event("error", text=event.message, code=event.code)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        yield _event("error", text=str(error), code=error.code)

    def _start(self) -> Iterator[Tell]:
        if not self._has_begun:
            self._has_begun = True
            yield _event("transcript-start")


def _event(kind: str, **data: object) -> Tell:
    return Tell({"type": kind, "data": data})
