"""The protocol of WhisperLive (https://github.com/collabora/WhisperLive), at ``/``."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from streamd.errors import WireError
from streamd.events import Fault, Final, Partial, SessionEvent, TimedWord
from streamd.server.dialects.dialect import ByteStream, Close, Dialect, Tell, both
from streamd.server.wire import Command, Query, Start, Stop, decoded

_END = b"END_OF_AUDIO"
_WAIT_MIN = 1.0
"""When a client should try again, in minutes."""


class _Options(msgspec.Struct):
    send_last_n_segments: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10
    word_timestamps: bool = False
    audio_format: Literal["float32", "int16"] = "float32"
    language: str | None = None
    task: str | None = None
    initial_prompt: str | None = None
    hotwords: str | None = None


_decoder = msgspec.json.Decoder(_Options)


class WhisperLive(Dialect):
    """A final is a completed segment; the last ones are sent again with each.

    `uid` is the client's name for itself; it ignores messages with another.
    """

    def __init__(self, query: str, uid: str) -> None:
        self._text, self._uid = query, uid
        self._audio: ByteStream | None = None
        self._has_words = False
        self._completed: deque[object] = deque()

    def request(self) -> Query:
        return both(self._text, Query)

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        if self._audio is None:
            options = decoded(message, _decoder, "options")
            start = Start(
                language=options.language,
                task=options.task,
                prompt=options.initial_prompt,
                hotwords=options.hotwords,
            )
            self._audio = ByteStream(options.audio_format, start)
            self._has_words = options.word_timestamps
            self._completed = deque(maxlen=options.send_last_n_segments)
            # Clients keep completed segments of this backend only.
            yield self._tell(message="SERVER_READY", backend="faster_whisper")
        elif message == _END:
            yield Stop()
        elif isinstance(message, bytes):
            yield from self._audio.take(message)

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Partial():
                yield self._tell(segments=[*self._completed, self._segment(event)])
            case Final():
                self._completed.append(self._segment(event, completed=True))
                yield self._tell(segments=[*self._completed])
            case Fault():
                yield self._tell(status="WARNING", message=event.message)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        if error.code == "too_many_streams":
            yield self._tell(status="WAIT", message=_WAIT_MIN)
        else:
            yield self._tell(status="ERROR", message=str(error))

    def _tell(self, **fields: object) -> Tell:
        return Tell({"uid": self._uid, **fields})

    def _segment(self, event: Partial | Final, *, completed: bool = False) -> Mapping[str, object]:
        # Clients join the texts as they are: Whisper's segments begin with a blank.
        segment = {"text": f" {event.text}", "completed": completed, **_times(event)}
        if self._has_words:
            segment["words"] = [
                {"word": f" {word.text}", "probability": word.prob, **_times(word)}
                for word in event.words
            ]
        return segment


def _times(span: Partial | Final | TimedWord) -> Mapping[str, str]:
    return {"start": f"{span.start:.3f}", "end": f"{span.end:.3f}"}
