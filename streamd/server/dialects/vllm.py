"""vLLM's variant of the Realtime API, on the same path as OpenAI's.

Its clients name the model in a ``session.update`` without a session, begin with a commit of
nothing, send 16-bit samples at 16 kHz, and end with a commit that is ``final``
(vllm/entrypoints/openai/realtime of vllm 0.33).
"""

from collections.abc import Iterator

from streamd.errors import WireError
from streamd.events import Fault, Final, Flushed, Partial, SessionEvent
from streamd.server.dialects.dialect import (
    ByteStream,
    GrowingText,
    Tell,
    from_base64,
    start_for,
    tell,
)
from streamd.server.wire import Command, Flush

_RATE_HZ = 16_000


class VllmRealtime:
    """All speech until the commit that is ``final`` is one text, whose deltas only append."""

    def __init__(self) -> None:
        self._stream = ByteStream("pcm_s16le", start_for(_RATE_HZ))
        self._said = GrowingText()

    def hear(self, kind: str, audio: str, *, is_final: bool) -> Iterator[bytes | Command | Tell]:
        """Take an event of this type; raises `ValueError` for audio that is not base64."""
        match kind:
            case "session.update":
                pass
            case "input_audio_buffer.append":
                yield from self._stream.take(from_base64(audio))
            case "input_audio_buffer.commit" if is_final:
                yield Flush()
            case "input_audio_buffer.commit":
                pass
            case unknown:
                yield self.error("unknown_event", f"{unknown!r} is not supported")

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        """As `Dialect.say`."""
        match event:
            case Partial() | Final():
                if added := self._said.take(event):
                    yield tell("transcription.delta", delta=added)
            case Flushed():
                yield tell("transcription.done", text=" ".join(self._said.texts))
                self._said = GrowingText()
            case Fault():
                yield self.error(event.code, event.message)

    def fault(self, error: WireError) -> Iterator[Tell]:
        """As `Dialect.fault`."""
        yield self.error(error.code, str(error))

    def error(self, code: str, message: str) -> Tell:
        """Return an error in vLLM's form: a text, where OpenAI's is an object."""
        return tell("error", error=message, code=code)
