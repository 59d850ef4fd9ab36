"""Deepgram's live API, version 1 (https://developers.deepgram.com/reference/streaming)."""

import string
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec.structs import replace

from streamd.errors import WireError
from streamd.events import Eos, Fault, Final, Flushed, Partial, SessionEvent, TimedWord, Vad
from streamd.server.dialects.byte_stream import ByteStream
from streamd.server.dialects.dialect import (
    Close,
    Tell,
    closing,
    endpoint_ms,
    language,
    tell,
    type_of,
)
from streamd.server.wire import Command, Flush, Hello, Query, Role, Start, Stop, parse_query

_MAX_FIELDS = 200
"""Of the query: a client may name 100 key terms."""


class _Listening(Query, frozen=True, kw_only=True):
    encoding: Literal["linear16", "linear32", "mulaw", "alaw"]
    sample_rate: int
    channels: int = 1
    language: str | None = None
    keyterm: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    interim_results: bool = False
    vad_events: bool = False
    endpointing: int | bool = True
    utterance_end_ms: int | bool = False
    multichannel: bool = False
    callback: str = ""


class Deepgram:
    """A partial is an interim result; a final has `is_final` and `speech_final`.

    The id of the request is the name of the session, by which it can be found.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        self._is_finalizing = False
        self._last_word_end_ms: int | None = None  # until its `UtteranceEnd`

    def request(self) -> Query:
        """Feed a session and listen to it; raises `WireError` for what is not supported."""
        asked = self._asked = parse_query(self._text, _Listening, max_fields=_MAX_FIELDS)
        if asked.callback or asked.multichannel:
            raise WireError("bad_query", "neither callback nor multichannel is supported")
        terms = [*asked.keyterm, *(word.partition(":")[0] for word in asked.keywords)]
        pause_ms = None if isinstance(asked.endpointing, bool) else asked.endpointing
        start = Start(
            rate=asked.sample_rate,
            channels=asked.channels,
            language=language(asked.language),
            hotwords=", ".join(terms) or None,
            endpoint_ms=endpoint_ms(pause_ms),
        )
        self._audio = ByteStream(asked.encoding, start)
        return replace(asked, role=Role.BOTH, partials=asked.interim_results)

    def opened(self, hello: Hello) -> Iterator[Tell]:
        """Say nothing: the first message is a result."""
        self._hello = hello
        yield from ()

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        """Take audio or a control message; an empty message means ``CloseStream``."""
        if isinstance(message, bytes):
            yield from self._audio.take(message) if message else (Stop(),)
            yield from self._utterance_end(self._audio.heard_ms)
            return
        match type_of(message):
            case "Finalize":
                self._is_finalizing = True
                yield Flush()
            case "CloseStream":
                yield Stop()
            case "KeepAlive":
                pass
            case unknown:  # such as Configure
                yield tell("Error", variant="bad_message", description=f"no {unknown!r} here")

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        """Send results and what belongs to them."""
        match event:
            case Vad(speech=True, t_ms=t_ms):
                yield from self._utterance_end(t_ms)
                self._last_word_end_ms = None  # otherwise the pause was too short
                if self._asked.vad_events:
                    yield tell("SpeechStarted", channel=[0], timestamp=t_ms / 1000)
            case Partial():
                yield self._results(event)
            case Final():
                yield self._results(event, is_final=True)
                self._last_word_end_ms = event.words[-1].end_ms if event.words else None
                yield from self._utterance_end(self._audio.heard_ms)
            case Flushed() if self._is_finalizing:  # some clients wait for an answer
                now_ms = self._audio.heard_ms
                empty = Final(seg=0, start_ms=now_ms, end_ms=now_ms, text="", language="")
                yield self._results(empty, is_final=True)
            case Fault():
                yield tell("Error", variant=event.code, description=event.message)
            case Eos():
                yield self._metadata()

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        """Send an ``Error``."""
        yield tell("Error", variant=error.code, description=str(error))
        yield closing(error)

    def _metadata(self) -> Tell:
        of_audio = {"duration": self._audio.heard_ms / 1000, "channels": self._asked.channels}
        of_request = {"request_id": self._hello.session, "created": self._hello.started}
        return tell("Metadata", **of_request, **of_audio, transaction_key="", sha256="")

    def _utterance_end(self, now_ms: int) -> Iterator[Tell]:
        wanted_ms, end_ms = self._asked.utterance_end_ms, self._last_word_end_ms
        if wanted_ms and end_ms is not None and now_ms - end_ms >= wanted_ms:
            self._last_word_end_ms = None
            yield tell("UtteranceEnd", channel=[0, 1], last_word_end=end_ms / 1000)

    def _results(self, event: Partial | Final, *, is_final: bool = False) -> Tell:
        from_finalize = is_final and self._is_finalizing
        self._is_finalizing &= not is_final
        probs = [word.prob for word in event.words]
        confidence = round(sum(probs) / max(1, len(probs)), 3)
        words = [_word(word) for word in event.words]
        best = {"transcript": event.text, "confidence": confidence, "words": words}
        ids = {"request_id": self._hello.session, "model_uuid": self._hello.model}
        model = {"name": self._hello.model, "version": "1", "arch": "whisper"}
        return tell(
            "Results",
            channel_index=[0, 1],
            start=event.start_ms / 1000,
            duration=(event.end_ms - event.start_ms) / 1000,
            is_final=is_final,
            speech_final=is_final and self._asked.endpointing is not False,
            from_finalize=from_finalize,
            channel={"alternatives": [best]},
            metadata={**ids, "model_info": model},
        )


def _word(word: TimedWord) -> Mapping[str, object]:
    times = {"start": word.start_ms / 1000, "end": word.end_ms / 1000}
    bare = word.text.strip(string.punctuation).lower() or word.text
    return {"word": bare, "punctuated_word": word.text, "confidence": word.prob, **times}
