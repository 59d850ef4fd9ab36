"""OpenAI's Realtime API: the items of a transcription, and what the session makes of its audio."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from streamd.server.dialects.dialect import (
    ByteStream,
    GrowingText,
    Tell,
    changes,
    start_for,
    tell,
)
from streamd.server.wire import Start, Update

_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class Items:
    """Numbers events and items of the session `name`; the deltas of an item join to its text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._n_events = self._n_items = 0
        self._previous: str | None = None
        self._is_begun = self._is_speech = False  # of the next item
        self._text = GrowingText()

    def tell(self, kind: str, **fields: object) -> Tell:
        """Return the next event."""
        self._n_events += 1
        return tell(kind, event_id=f"event_{self._n_events}", **fields)

    def error(
        self, code: str, message: str, cause: str | None = None, *, of_server: bool = False
    ) -> Tell:
        """Return an error; `cause` is the client's event that is wrong."""
        kind = "server_error" if of_server else "invalid_request_error"
        error = {"type": kind, "code": code, "message": message, "param": None, "event_id": cause}
        return self.tell("error", error=error)

    @property
    def has_text(self) -> bool:
        """Whether the item has words."""
        return bool(self._text)

    def begin(self, start_ms: int, *, has_text: bool = False) -> Iterator[Tell]:
        """Somebody speaks, maybe again: what was heard before may have been a cough.

        With a text that follows, it is enough to have said so before.
        """
        if not (self._is_begun if has_text else self._is_speech):
            self._is_begun = self._is_speech = True
            started = {"audio_start_ms": start_ms, "item_id": self._id}
            yield self.tell("input_audio_buffer.speech_started", **started)

    def grow(self, text: str, n_before: int) -> Iterator[Tell]:
        """`text` will not change any more; the item has `n_before` others before it."""
        if added := self._text.more(text, n_before):
            item = {"item_id": self._id, "content_index": 0}
            yield self.tell(f"{_TRANSCRIPTION}.delta", **item, delta=added)

    def stop(self, end_ms: int) -> Iterator[Tell]:
        """Nobody speaks any more."""
        if self._is_speech:
            self._is_speech = False
            stopped = {"audio_end_ms": end_ms, "item_id": self._id}
            yield self.tell("input_audio_buffer.speech_stopped", **stopped)

    def complete(
        self, texts: Sequence[str], duration_ms: int, languages: Iterable[str] = ()
    ) -> Iterator[Tell]:
        """The item has these texts."""
        item_id = self._id
        committed = {"item_id": item_id, "previous_item_id": self._previous}
        self._previous = item_id
        yield self.tell("input_audio_buffer.committed", **committed)
        for text in texts[-1:]:
            yield from self.grow(text, len(texts) - 1)
        item = {"item_id": item_id, "content_index": 0}
        yield self.tell(
            f"{_TRANSCRIPTION}.completed",
            **item,
            transcript=" ".join(texts),
            languages=[{"code": code} for code in languages],
            usage={"type": "duration", "seconds": ceil(duration_ms / 1000)},
        )
        self.drop()

    def drop(self) -> None:
        """Nothing more belongs to the item."""
        self._n_items, self._text = self._n_items + 1, GrowingText()
        self._is_begun = self._is_speech = False

    @property
    def _id(self) -> str:
        return f"item_{self._name}_{self._n_items + 1}"


_ENCODINGS = {"audio/pcm": "pcm_s16le", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}


class _InputFormat(msgspec.Struct):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Annotated[int, msgspec.Meta(ge=4_000, le=192_000)] | None = None


class _Transcription(msgspec.Struct):
    model: str | None = None
    language: str | None = None
    languages: list[str] | None = None
    keywords: list[str] | None = None
    prompt: str | None = None


class _Turns(msgspec.Struct):
    type: str = "server_vad"
    silence_duration_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"

    @property
    def is_semantic(self) -> bool:
        return self.type == "semantic_vad"


class Eagerness(NamedTuple):
    """The probability that ends a turn, and the silence that does so at a lower one."""

    prob: float
    longest_ms: int


_EAGERNESS: Final[Mapping[str, Eagerness]] = {
    "low": Eagerness(0.7, 4_000),
    "medium": Eagerness(0.5, 2_000),
    "auto": Eagerness(0.5, 2_000),
    "high": Eagerness(0.3, 1_000),
}
"""OpenAI waits 8, 4 and 2 s at most; of our pauses of 1.5 s every one ended a turn."""
_SEMANTIC_PAUSE_MS = 200


class _Input(msgspec.Struct):
    format: _InputFormat = msgspec.field(default_factory=_InputFormat)
    transcription: _Transcription | None = None
    turn_detection: _Turns | None = None


class RealtimeInput:
    """The field ``audio.input`` of a session, besides which there is nothing to set."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "server_vad"},
            "noise_reduction": None,
        }
        self._input = msgspec.convert(self._settings, _Input)
        self._names_model = False  # and not only the address does

    @property
    def ends_turns(self) -> bool:
        """Whether silence ends an item; otherwise the client's commits do."""
        return self._input.turn_detection is not None

    @property
    def eagerness(self) -> Eagerness | None:
        """When a turn ends by how it sounds; None: silence alone ends it."""
        turns = self._input.turn_detection
        return _EAGERNESS[turns.eagerness] if turns and turns.is_semantic else None

    def session(self, name: str) -> dict[str, object]:
        """Return the session as its client gets it."""
        kind = {"type": "transcription", "object": "realtime.transcription_session"}
        return {**kind, "id": f"sess_{name}", "audio": {"input": self._settings}}

    def update(self, session: dict[str, Any], *, is_used: bool) -> Update:
        """Take the fields of a ``session.update``; return what it changes in the session.

        Unknown ones are dropped, or the answer would grow with each message. Raises
        `msgspec.ValidationError`, and `ValueError` if it changes the format of audio that `is_used`
        already.
        """
        audio = msgspec.convert(session.get("audio", {}), dict[str, dict[str, Any]])
        given = audio.get("input", {})
        merged = {name: given.get(name, before) for name, before in self._settings.items()}
        wanted = msgspec.convert(merged, _Input)
        if is_used and wanted.format != self._input.format:
            raise ValueError("the format cannot be changed once there is audio")
        self._names_model |= bool(given.get("transcription"))
        before = self._start
        self._input, self._settings = wanted, merged
        return changes(before, self._start)

    def stream(self) -> ByteStream:
        """Return what turns the audio into samples; raises `WireError`."""
        return ByteStream(_ENCODINGS[self._input.format.type], self._start)

    @property
    def _start(self) -> Start:
        form, chosen = self._input.format, self._input.transcription or _Transcription()
        turns = self._input.turn_detection
        pause_ms = turns.silence_duration_ms if turns else None
        is_semantic = turns is not None and turns.is_semantic
        start = start_for(
            form.rate or (24_000 if form.type == "audio/pcm" else 8_000),
            tags=chosen.languages or [chosen.language],
            prompt=chosen.prompt,
            terms=chosen.keywords or (),
            pause_ms=_SEMANTIC_PAUSE_MS if is_semantic else pause_ms,
        )
        if self._names_model:
            start = replace(start, model=chosen.model)
        return replace(start, endpoint="smart") if is_semantic else start
