"""What a session of OpenAI's Realtime API makes of its audio, as ``session.update`` says."""

from typing import Annotated, Any, Literal

import msgspec

from streamd.server.dialects.byte_stream import ByteStream
from streamd.server.dialects.dialect import start_for

_ENCODINGS = {"audio/pcm": "pcm_s16le", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}


class _InputFormat(msgspec.Struct):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Annotated[int, msgspec.Meta(ge=4_000, le=192_000)] | None = None


class _Transcription(msgspec.Struct):
    language: str | None = None
    languages: list[str] | None = None
    keywords: list[str] | None = None
    prompt: str | None = None


class _Turns(msgspec.Struct):
    silence_duration_ms: int | None = None


class _Input(msgspec.Struct):
    format: _InputFormat = msgspec.field(default_factory=_InputFormat)
    transcription: _Transcription | None = None
    turn_detection: _Turns | None = None


class RealtimeInput:
    """The field ``audio.input`` of a session, besides which there is nothing to set."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "server_vad"},
            "noise_reduction": None,
        }
        self._input = msgspec.convert(self._told, _Input)

    @property
    def ends_turns(self) -> bool:
        """Whether silence ends an item; otherwise the client's commits do."""
        return self._input.turn_detection is not None

    def session(self, name: str) -> dict[str, object]:
        """Return the session as its client is told of it."""
        kind = {"type": "transcription", "object": "realtime.transcription_session"}
        return {**kind, "id": f"sess_{name}", "audio": {"input": self._told}}

    def update(self, session: dict[str, Any], *, is_used: bool) -> bool:
        """Take the fields of a ``session.update``.

        Return False if that changes what `is_used` already. Raises `msgspec.ValidationError`.
        """
        audio = msgspec.convert(session.get("audio", {}), dict[str, dict[str, Any]])
        told = {**self._told, **audio.get("input", {})}
        wanted = msgspec.convert(told, _Input)
        if is_used and wanted != self._input:
            return False
        self._input, self._told = wanted, told
        return True

    def stream(self) -> ByteStream:
        """Return what turns the audio into samples; raises `WireError`."""
        form, chosen = self._input.format, self._input.transcription or _Transcription()
        turns = self._input.turn_detection
        start = start_for(
            form.rate or (24_000 if form.type == "audio/pcm" else 8_000),
            tags=chosen.languages or [chosen.language],
            prompt=chosen.prompt,
            terms=chosen.keywords or (),
            pause_ms=turns.silence_duration_ms if turns else None,
        )
        return ByteStream(_ENCODINGS[form.type], start)
