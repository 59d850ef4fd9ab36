"""OpenAI's Realtime API, for transcription (https://platform.openai.com/docs/api-reference/realtime)."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from streamd.errors import WireError
from streamd.events import (
    Fault,
    Final,
    Flushed,
    Partial,
    SessionEvent,
    TurnEvent,
    TurnState,
    Vad,
)
from streamd.server.dialects.dialect import ByteStream, Close, Tell, both, from_base64
from streamd.server.dialects.realtime import Items, RealtimeInput
from streamd.server.dialects.vllm import VllmRealtime
from streamd.server.wire import Command, Flush, Hello, Query, decoded

_CLEAR, _TURN = "clear", "turn"
"""The ids of flushes that are no commits."""
_LEAST_COMMIT_MS = 100


class _Asked(Query, frozen=True, kw_only=True):
    intent: Literal["transcription"] = "transcription"


class _Message(msgspec.Struct):
    type: str
    event_id: str | None = None
    audio: str = ""
    session: msgspec.Raw = msgspec.Raw(b"null")
    model: str | None = None
    final: bool = False


_decoder = msgspec.json.Decoder(_Message)
_session_decoder = msgspec.json.Decoder(dict[str, Any] | None)
_MOST_SESSION_BYTES = 128 << 10
"""What is in it stays in memory and is sent back; a MiB of empty lists takes 150 ms to read."""


class OpenAIRealtime:
    """A final is an item; without turn detection, all speech before a commit is one.

    Deltas only append: they are the words that do not change any more. A client whose first
    ``session.update`` names a model, but no session, speaks `VllmRealtime`.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        self._input = RealtimeInput()
        self._stream: ByteStream | None = None
        self._vllm: VllmRealtime | None = None
        self._committed_ms = 0
        self._flushes: deque[str] = deque()  # that have no answer yet
        self._is_answered = False  # the first of them, which is a commit: an item has ended since
        self._name, self._items = "", Items("")
        self._speaks_since_ms: int | None = None
        self._texts: list[str] = []  # of the item, that are final
        self._languages: dict[str, None] = {}  # of these texts
        self._start_ms = self._end_ms = 0  # of the item
        self._turn_prob = 0.0  # in the last pause
        self._paused_ms: int | None = None  # since when, while the turn may go on

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
            yield self._wrong("invalid_json", error)
            return
        names_model_only = asked.model is not None and bytes(asked.session) == b"null"
        if asked.type == "session.update" and names_model_only and self._stream is None:
            self._vllm = self._vllm or VllmRealtime()
        try:
            if self._vllm:
                yield from self._vllm.hear(asked.type, asked.audio, is_final=asked.final)
            else:
                yield from self._take(asked)
        except (ValueError, RecursionError) as error:  # of base64, or msgspec's
            yield self._wrong("invalid_value", error, asked.event_id)

    def _wrong(self, code: str, error: Exception, cause: str | None = None) -> Tell:
        if self._vllm:
            return self._vllm.error(code, str(error))
        return self._items.error(code, str(error), cause)

    def _take(self, asked: _Message) -> Iterator[bytes | Command | Tell]:
        has_audio = self._stream is not None
        heard_ms = self._stream.heard_ms if self._stream else 0
        match asked.type:
            case "session.update":
                update = self._input.update(_session_of(asked), is_used=has_audio)
                yield self._items.tell("session.updated", session=self._input.session(self._name))
                if has_audio and update.chosen:  # otherwise the stream's start has it
                    yield update
            case "input_audio_buffer.append":
                audio = from_base64(asked.audio)
                self._stream = self._stream or self._input.stream()
                yield from self._stream.take(audio)
                yield from self._end_if_over(self._stream.heard_ms)
            case "input_audio_buffer.commit" if heard_ms - self._committed_ms < _LEAST_COMMIT_MS:
                code = "input_audio_buffer_commit_empty"
                yield self._items.error(code, "there is less than 100 ms of audio", asked.event_id)
            case "input_audio_buffer.commit":
                yield self._flush(str(heard_ms - self._committed_ms))
                self._committed_ms = heard_ms
            case "input_audio_buffer.clear":
                self._committed_ms = heard_ms
                yield self._flush(_CLEAR)
                yield self._items.tell("input_audio_buffer.cleared")
            case other:
                what = f"{other!r} is not supported"
                yield self._items.error("unknown_event", what, asked.event_id)

    def _flush(self, flush: str) -> Flush:
        if not self._flushes:
            self._is_answered = False
        self._flushes.append(flush)
        return Flush(id=flush)

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        # What comes before the answer to a clear is cleared, but not what was committed before it.
        is_cleared = bool(self._flushes) and self._flushes[0] == _CLEAR
        if self._vllm:
            yield from self._vllm.say(event)
        elif not (is_cleared and isinstance(event, Partial | Final)):
            yield from self._tell_of(event)

    def _tell_of(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Vad() if self._input.ends_turns:
                yield from self._voice(event)
            case TurnEvent(state=TurnState.PAUSED):
                self._turn_prob, self._paused_ms = event.prob, event.t_ms
            case TurnEvent(state=TurnState.RESUMED):
                self._turn_prob, self._paused_ms = 0.0, None
            case Partial():
                if self._input.ends_turns:
                    yield from self._items.begin(event.start_ms, has_text=True)
                text = event.text[: event.stable].rstrip()
                yield from self._items.grow(text, len(self._texts))
            case Final():
                yield from self._keep(event)
            case Flushed() if self._flushes:
                yield from self._answer(self._flushes.popleft())
            case Fault():
                yield self._items.error(event.code, event.message, of_server=True)

    def _answer(self, flush: str) -> Iterator[Tell]:
        ends_turns, is_commit = self._input.ends_turns, flush != _TURN
        if flush == _CLEAR:
            self._texts, self._languages = [], {}
            self._items.drop()
        elif ends_turns and self._texts:
            yield from self._end()
        elif is_commit and not (ends_turns and self._is_answered):
            yield from self._items.stop(self._committed_ms)
            yield from self._complete(int(flush))
        self._is_answered = False

    def _voice(self, vad: Vad) -> Iterator[Tell]:
        self._speaks_since_ms = vad.t_ms if vad.speech else None
        if vad.speech:
            self._turn_prob, self._paused_ms = 0.0, None
            yield from self._items.begin(vad.t_ms)
        elif not (self._input.eagerness and self._items.has_text):
            yield from self._items.stop(vad.t_ms)

    def _end_if_over(self, now_ms: int) -> Iterator[Command | Tell]:
        """End a turn that sounds as if it were over, or after which it was quiet for long."""
        eagerness = self._input.eagerness
        if eagerness is None or self._paused_ms is None:
            return
        if self._turn_prob < eagerness.prob and now_ms - self._paused_ms < eagerness.longest_ms:
            return
        self._paused_ms = None
        if self._speaks_since_ms is None:
            yield from self._end()
        else:  # the session has more patience
            yield self._flush(_TURN)

    def _keep(self, final: Final) -> Iterator[Tell]:
        if not self._texts:
            self._start_ms = final.start_ms
        self._texts.append(final.text)
        self._end_ms = final.end_ms
        self._languages |= dict.fromkeys([final.language] if final.language else [])
        if self._input.ends_turns:
            yield from self._items.begin(final.start_ms, has_text=True)
        eagerness = self._input.eagerness
        goes_on = eagerness is not None and self._turn_prob < eagerness.prob
        if final.continues:
            yield from self._items.grow(final.text, len(self._texts) - 1)
        elif goes_on or not self._input.ends_turns:
            self._paused_ms = final.end_ms
            yield from self._items.grow(final.text, len(self._texts) - 1)
        else:
            yield from self._end()

    def _end(self) -> Iterator[Tell]:
        self._turn_prob, self._paused_ms, end_ms = 0.0, None, self._end_ms
        yield from self._items.stop(end_ms)
        yield from self._complete(end_ms - self._start_ms)
        if self._speaks_since_ms is not None and self._speaks_since_ms >= end_ms:
            yield from self._items.begin(self._speaks_since_ms)  # the text was late

    def _complete(self, duration_ms: int) -> Iterator[Tell]:
        texts, languages = self._texts, [*self._languages]
        self._texts, self._languages, self._is_answered = [], {}, True
        yield from self._items.complete(texts, duration_ms, languages)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        yield from self._vllm.fault(error) if self._vllm else (self._wrong(error.code, error),)


def _session_of(asked: _Message) -> dict[str, Any]:
    if len(bytes(asked.session)) > _MOST_SESSION_BYTES:
        raise ValueError(f"a session has at most {_MOST_SESSION_BYTES} bytes")
    return _session_decoder.decode(asked.session) or {}
