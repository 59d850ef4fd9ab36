"""AssemblyAI's streaming API, version 3 (https://www.assemblyai.com/docs/api-reference/streaming-api)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal
from typing import Final as Constant

import msgspec
from msgspec.structs import replace

from streamd.errors import WireError
from streamd.events import (
    Eos,
    Fault,
    Final,
    Flushed,
    Partial,
    SessionEvent,
    TimedWord,
    TurnEvent,
    TurnState,
    Vad,
    speaker_of,
)
from streamd.server.dialects.dialect import (
    ByteStream,
    Close,
    Tell,
    both,
    rate_of,
    start_for,
    tell,
    type_of,
)
from streamd.server.dialects.results import confidence
from streamd.server.wire import Command, Flush, Hello, Query, Stop, decoded

_CLOSE_CODES: Constant[Mapping[str, int]] = {
    "too_many_streams": 3009,
    "storage": 3005,
    "internal": 3005,
    "slow": 3005,
}
"""What its clients know our errors as; the others are `_INVALID`."""
_INVALID = 3006


class _Streaming(Query, frozen=True, kw_only=True):
    sample_rate: int | None = None
    encoding: Literal["pcm_s16le", "pcm_mulaw", "ogg_opus", "aac"] = "pcm_s16le"
    language_code: str | None = None  # in older versions
    language_codes: str = "[]"
    prompt: str | None = None
    keyterms_prompt: str = "[]"
    min_turn_silence: int | None = None
    end_of_turn_confidence_threshold: float = 0.0
    labels: bool = False


class _Configuration(msgspec.Struct):
    """What may change while there is audio; None: it stays as it is."""

    prompt: str | None = None
    keyterms_prompt: list[str] | None = None
    min_turn_silence: Annotated[int, msgspec.Meta(ge=0, le=30_000)] | None = None
    end_of_turn_confidence_threshold: float | None = None


_configuration_decoder = msgspec.json.Decoder(_Configuration)
_texts_decoder = msgspec.json.Decoder(list[str])


class AssemblyAI:
    """An utterance is a turn; its transcript has the words that do not change any more.

    A turn is always formatted: Whisper writes punctuation. The session's name is its id.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        self._n_turns = 0
        self._sentences: list[Final] = []  # of the turn, that are final
        self._turn_prob: float | None = None  # in the last pause

    def request(self) -> Query:
        asked = both(self._text, _Streaming)
        start = start_for(
            rate_of(asked.encoding, asked.sample_rate),
            tags=_texts(asked.language_codes) or [asked.language_code],
            prompt=asked.prompt,
            terms=_texts(asked.keyterms_prompt),
            pause_ms=asked.min_turn_silence,
        )
        if asked.end_of_turn_confidence_threshold > 0:
            start = replace(start, endpoint="smart")
        if asked.labels:
            start = replace(start, speakers=True)
        self._start = start
        self._audio = ByteStream(asked.encoding, start)
        return asked

    def opened(self, hello: Hello) -> Iterator[Tell]:
        """Begin; there is no limit, but clients want one."""
        began_s = int(hello.started.timestamp()) if hello.started else 0
        yield tell("Begin", id=hello.session, expires_at=began_s + 3 * 3600)

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        if isinstance(message, bytes):
            yield from self._audio.take(message)
            return
        match type_of(message):
            case "Terminate":
                yield Stop()
            case "ForceEndpoint":
                yield Flush()
            case "UpdateConfiguration":
                yield from self._configure(decoded(message, _configuration_decoder, "options"))
            case "KeepAlive":
                pass
            case other:
                yield tell("Warning", warning_code=_INVALID, warning=f"{other!r} is not supported")

    def _configure(self, wanted: _Configuration) -> Iterator[Command]:
        before, smart = self._start, wanted.end_of_turn_confidence_threshold
        terms, pause_ms = wanted.keyterms_prompt, wanted.min_turn_silence
        given = start_for(before.rate, terms=terms or (), pause_ms=pause_ms)
        self._start = replace(
            before,
            prompt=before.prompt if wanted.prompt is None else wanted.prompt or None,
            hotwords=before.hotwords if terms is None else given.hotwords,
            endpoint_ms=before.endpoint_ms if pause_ms is None else given.endpoint_ms,
            endpoint=before.endpoint if smart is None else "smart" if smart > 0 else None,
        )
        yield from self._audio.change(self._start)

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Vad(speech=True):
                yield tell("SpeechStarted", timestamp=event.t_ms)
            case TurnEvent():
                self._turn_prob = event.prob if event.state == TurnState.PAUSED else None
            case Partial():
                yield self._turn(event.text[: event.stable], event.words, ends=False)
            case Final():
                yield self._turn(event.text, event.words, ends=not event.continues)
                self._sentences.append(event)
                self._audio.told(event.end_ms)
                if not event.continues:
                    self._n_turns, self._sentences = self._n_turns + 1, []
            case Flushed() if self._sentences:  # nothing followed them in their turn
                yield self._turn("", (), ends=True)
                self._n_turns, self._sentences = self._n_turns + 1, []
            case Fault():
                yield tell("Warning", warning_code=_INVALID, warning=event.message)
            case Eos():
                durations = ("audio_duration_seconds", "session_duration_seconds")
                yield tell("Termination", **dict.fromkeys(durations, self._audio.heard_ms // 1000))

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        code = _CLOSE_CODES.get(error.code, _INVALID)
        yield tell("Error", error_code=code, error=str(error))
        yield Close(code, error.code)

    def _turn(self, transcript: str, words: tuple[TimedWord, ...], *, ends: bool) -> Tell:
        before = self._sentences
        every = (*(word for final in before for word in final.words), *words)
        who = {"speaker_label": _label(most)} if (most := speaker_of(every)) else {}
        return tell(
            "Turn",
            turn_order=self._n_turns,
            turn_is_formatted=ends,
            end_of_turn=ends,
            end_of_turn_confidence=float(ends) if self._turn_prob is None else self._turn_prob,
            transcript=" ".join([*(final.text for final in before), transcript]).rstrip(),
            words=[_word(word) for word in every],
            **who,
        )


def _texts(encoded: str) -> list[str]:
    return decoded(encoded, _texts_decoder, f"a list of texts, got {encoded}")


def _word(word: TimedWord) -> Mapping[str, object]:
    times = {"start": word.start_ms, "end": word.end_ms}
    who = {"speaker": _label(word.speaker)} if word.final and word.speaker else {}
    facts = {"text": word.text, "confidence": confidence([word]), "word_is_final": word.final}
    return {**facts, **times, **who}


def _label(speaker: int) -> str:
    """Return the letter of a speaker; there are at most 16 (`streamd.speakers`)."""
    return chr(ord("A") + speaker - 1)
