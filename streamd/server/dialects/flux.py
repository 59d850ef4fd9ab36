"""Deepgram's Flux API for voice agents, version 2 (https://developers.deepgram.com/docs/flux)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

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
    Stats,
    TimedWord,
    TurnEvent,
    TurnState,
    Vad,
)
from streamd.server.dialects.dialect import (
    ByteStream,
    Close,
    Encodings,
    Tell,
    both,
    rate_of,
    start_for,
    tell,
    type_of,
)
from streamd.server.dialects.results import confidence
from streamd.server.wire import Command, Flush, Hello, Query, Start, Stop, decoded, parse_query

_SHORTEST_PAUSE_MS = 200
"""How much silence the model hears before it judges; if it is sure, that ends the turn."""
_SURE, _SURE_MS = 0.95, 1_000
"""The share of pauses of so many milliseconds that end a turn (benchmarks/turns.py: 97 %)."""
_UNHEARD_MS = 1_000
"""How long after a voice its words may come, before it is taken for a cough."""

_LONGEST_TURN_MS = 600_000
"""Each partial sends the turn so far: 115 kB after ten minutes of speech, 685 kB after an hour."""

_Threshold = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Timeout = Annotated[int, msgspec.Meta(ge=0, le=60_000)]


class _Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """When a turn ends: at a confidence, or after a silence; an eager end comes first."""

    eot_threshold: _Threshold = 0.7
    eager_eot_threshold: _Threshold | None = None
    eot_timeout_ms: _Timeout = 5_000

    def __post_init__(self) -> None:
        if (self.eager_eot_threshold or 0.0) > self.eot_threshold:
            raise ValueError("eager_eot_threshold must not be greater than eot_threshold")


class _FluxQuery(Query, frozen=True, kw_only=True):
    encoding: Encodings = "container"
    sample_rate: int | None = None
    keyterm: tuple[str, ...] = ()
    language_hint: tuple[str, ...] = ()


class _Configure(msgspec.Struct, frozen=True, kw_only=True):
    thresholds: dict[str, float | None] = {}
    keyterms: list[str] | None = None
    language_hints: list[str] | None = None


_configure_decoder = msgspec.json.Decoder(_Configure)


class _TurnSoFar:
    """The words of a turn: those of its finals, and those of the partial after them."""

    def __init__(self) -> None:
        self.start_ms = self.end_ms = 0
        self.language = ""
        self._finals: list[Final] = []
        self._partial: Partial | None = None

    def take(self, event: Partial | Final) -> None:
        if not self._parts:
            self.start_ms = event.start_ms
        self.end_ms = event.end_ms
        if isinstance(event, Final):
            self._finals.append(event)
            self.language, self._partial = event.language, None
        else:
            self._partial = event if event.text else None

    @property
    def _parts(self) -> list[Partial | Final]:
        return [*self._finals, *([self._partial] if self._partial else [])]

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self._parts)

    @property
    def words(self) -> list[TimedWord]:
        return [word for part in self._parts for word in part.words]


class Flux:
    """A turn goes on until somebody sounds as if they were done, or is silent for long.

    Its start is told with the voice, before there are words. The id of the request is the name of
    the session, by which it can be found.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        self._request_id = ""
        self._n_told = self._n_turns = 0
        self._said: _TurnSoFar | None = None  # in the turn that has begun
        self._is_eager = False  # an end was told that may be withdrawn
        self._is_voice = False
        self._confidence = 0.0  # of the last pause
        self._paused_ms: int | None = None  # since when, in an utterance that may go on
        self._silent_ms = 0  # since when, after an utterance
        self._trigger = "manual"  # of the end that the next answer to a flush brings

    def request(self) -> Query:
        asked, self._ends = both(self._text, _FluxQuery), parse_query(self._text, _Thresholds)
        self._rate = rate_of(asked.encoding, asked.sample_rate)
        self._terms, self._hints = [*asked.keyterm], [*asked.language_hint]
        self._audio = ByteStream(asked.encoding, self._start())
        # Only the session knows how much audio a container has brought, and says so once a second.
        return replace(asked, stats=self._audio.is_container)

    def _start(self) -> Start:
        rate, tags, terms = self._rate, self._hints, self._terms
        start = start_for(rate, tags=tags, terms=terms, pause_ms=_SHORTEST_PAUSE_MS)
        return replace(start, endpoint="smart")

    def opened(self, hello: Hello) -> Iterator[Tell]:
        self._request_id = hello.session
        yield self._tell("Connected")

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        if isinstance(message, bytes):
            yield from self._audio.take(message)
            yield from self._flush_if_over(self._audio.heard_ms)
            yield from self._end_if_silent(self._audio.heard_ms)
            return
        match type_of(message):
            case "Configure":
                yield from self._configure(message)
            case "ForceEndTurn":
                yield Flush()
            case "CloseStream":
                yield Stop()
            case "KeepAlive":
                pass
            case unknown:
                yield self._problem("Warning", "UNKNOWN", f"no {unknown!r} here")

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Stats():
                self._audio.told(event.audio_ms)
            case Vad():
                yield from self._voice(event)
            case Partial() | Final():
                yield from self._take(event)
            case TurnEvent(state=TurnState.PAUSED):
                yield from self._pause(event)
            case TurnEvent(state=TurnState.RESUMED):
                yield from self._resume()
            case Flushed() if self._said:
                yield from self._end(self._trigger)
            case Fault():
                kind = "Error" if event.fatal else "Warning"
                yield self._problem(kind, event.code.upper(), event.message)
            case Eos() if self._said and self._said.text:
                yield from self._end("manual")

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        yield self._problem("Error", error.code.upper(), str(error))

    def _voice(self, vad: Vad) -> Iterator[Tell]:
        self._is_voice = vad.speech
        if vad.speech:
            yield from self._begin(vad.t_ms) if self._said is None else self._resume()
        else:
            self._silent_ms = vad.t_ms

    def _begin(self, start_ms: int) -> Iterator[Tell]:
        self._said, self._confidence = _TurnSoFar(), 0.0
        self._said.start_ms = self._said.end_ms = start_ms
        yield self._turn("StartOfTurn")

    def _take(self, event: Partial | Final) -> Iterator[Tell]:
        if self._said is None:
            if not event.text:
                return
            yield from self._begin(event.start_ms)
        said = self._said or _TurnSoFar()
        said.take(event)
        if isinstance(event, Final) and said.end_ms - said.start_ms >= _LONGEST_TURN_MS:
            yield from self._end("timeout")
            return
        if isinstance(event, Partial) or event.continues:
            yield self._turn("Update")
            return
        self._silent_ms, self._paused_ms = event.end_ms, None
        if self._confidence >= self._ends.eot_threshold:
            yield from self._end("model")
        else:
            yield self._turn("Update")

    def _pause(self, turn: TurnEvent) -> Iterator[Tell]:
        self._confidence, self._paused_ms = turn.prob, turn.t_ms
        eager = self._ends.eager_eot_threshold
        is_sure = turn.prob >= self._ends.eot_threshold  # the end itself follows
        if self._said and eager is not None and turn.prob >= eager and not is_sure:
            self._is_eager = True
            yield self._turn("EagerEndOfTurn")

    def _resume(self) -> Iterator[Tell]:
        self._confidence, self._paused_ms = 0.0, None
        if self._is_eager:
            self._is_eager = False
            yield self._turn("TurnResumed")

    def _flush_if_over(self, now_ms: int) -> Iterator[Flush]:
        """End a pause that is over by the client's thresholds; the session has its own."""
        if self._paused_ms is None:
            return
        if trigger := self._trigger_of(now_ms - self._paused_ms):
            self._trigger, self._paused_ms = trigger, None
            yield Flush()

    def _end_if_silent(self, now_ms: int) -> Iterator[Tell]:
        if self._said is None or self._is_voice:
            return
        silent_ms = now_ms - self._silent_ms
        if self._said.text:
            trigger = self._trigger_of(silent_ms)
        else:
            trigger = "timeout" if silent_ms >= _UNHEARD_MS else ""
        if trigger:
            yield from self._end(trigger)

    def _trigger_of(self, silent_ms: int) -> str:
        """What ends a turn after so much silence; empty if nothing does."""
        if silent_ms >= _SURE_MS:
            self._confidence = max(self._confidence, _SURE)
        if self._confidence >= self._ends.eot_threshold:
            return "model"
        return "timeout" if silent_ms >= self._ends.eot_timeout_ms else ""

    def _end(self, trigger: str) -> Iterator[Tell]:
        yield self._turn("EndOfTurn", trigger=trigger)
        self._said, self._is_eager, self._trigger = None, False, "manual"
        self._n_turns += 1

    def _turn(self, event: str, **fields: object) -> Tell:
        said = self._said or _TurnSoFar()
        if said.language:
            fields["languages"] = [said.language]
        return self._tell(
            "TurnInfo",
            event=event,
            turn_index=self._n_turns,
            audio_window_start=said.start_ms / 1000,
            audio_window_end=said.end_ms / 1000,
            transcript=said.text,
            words=[_word(word) for word in said.words],
            end_of_turn_confidence=self._confidence,
            **fields,
        )

    def _configure(self, message: str) -> Iterator[Command | Tell]:
        try:
            asked = decoded(message, _configure_decoder, "a configuration")
            kept = msgspec.structs.asdict(self._ends)
            self._ends = msgspec.convert(kept | asked.thresholds, _Thresholds)
        except (WireError, msgspec.ValidationError) as error:
            yield self._problem("ConfigureFailure", "INVALID", str(error))
            return
        self._terms = self._terms if asked.keyterms is None else asked.keyterms
        self._hints = self._hints if asked.language_hints is None else asked.language_hints
        yield from self._audio.change(self._start())
        told: Mapping[str, Any] = msgspec.structs.asdict(self._ends)
        fields = {"thresholds": told, "keyterms": self._terms, "language_hints": self._hints}
        yield self._tell("ConfigureSuccess", **fields)

    def _problem(self, kind: str, code: str, description: str) -> Tell:
        return self._tell(kind, code=code, description=description)

    def _tell(self, kind: str, **fields: object) -> Tell:
        numbered = {"request_id": self._request_id, "sequence_id": self._n_told}
        self._n_told += 1
        return tell(kind, **numbered, **fields)


def _word(word: TimedWord) -> Mapping[str, object]:
    times = {"start": word.start, "end": word.end}
    return {"word": word.text, "confidence": confidence([word]), **times}
