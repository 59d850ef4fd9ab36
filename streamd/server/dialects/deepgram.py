"""Deepgram's live API, version 1 (https://developers.deepgram.com/reference/streaming)."""

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from streamd.errors import WireError
from streamd.events import Eos, Fault, Final, Flushed, Partial, SessionEvent, Vad
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
from streamd.server.dialects.results import Results
from streamd.server.wire import Command, Flush, Hello, Query, Stop


class _Listening(Query, frozen=True, kw_only=True):
    encoding: Encodings = "container"
    sample_rate: int | None = None
    channels: int = 1
    language: str | None = None
    keyterm: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    partials: bool = msgspec.field(default=False, name="interim_results")
    vad_events: bool = False
    endpointing: int | bool = True
    utterance_end_ms: int | bool = False
    diarize: bool = False
    diarize_model: str = ""  # asks for it, too
    multichannel: bool = False
    callback: Literal[""] = ""


class Deepgram:
    """A partial is an interim result; a final has `is_final`, an utterance's last `speech_final`.

    The id of the request is the name of the session, by which it can be found.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        # By channel, 0 if they are mixed:
        self._last_word_end_ms: dict[int, int] = {}  # until its `UtteranceEnd`
        self._held: dict[int, Final] = {}  # the answer to a `Finalize`, if no other final follows
        self._n_finalizing = 0  # that have no answer yet: the client may be slow to read

    def request(self) -> Query:
        asked = self._asked = both(self._text, _Listening)
        start = start_for(
            rate_of(asked.encoding, asked.sample_rate),
            channels=asked.channels,
            tags=[asked.language],
            terms=[*asked.keyterm, *(word.partition(":")[0] for word in asked.keywords)],
            pause_ms=None if isinstance(asked.endpointing, bool) else asked.endpointing,
        )
        if asked.diarize or asked.diarize_model:
            start = replace(start, speakers=True)
        if asked.multichannel:
            start = replace(start, split=True)
        self._channels = range(1, asked.channels + 1) if asked.multichannel else range(1)
        self._audio = ByteStream(asked.encoding, start)
        return asked

    def opened(self, hello: Hello) -> Iterator[Tell]:
        """Say nothing: the first message is a result."""
        ends_speech = self._asked.endpointing is not False
        self._results = Results(hello, ends_speech=ends_speech, n_channels=len(self._channels))
        yield from ()

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        """Take audio or a control message; an empty message means ``CloseStream``."""
        if isinstance(message, bytes):
            yield from self._audio.take(message) if message else (Stop(),)
            yield from self._utterance_end(self._audio.heard_ms)
            return
        match type_of(message):
            case "Finalize":
                self._n_finalizing += 1
                yield Flush()
            case "CloseStream":
                yield Stop()
            case "KeepAlive":
                pass
            case unknown:  # such as Configure
                yield tell("Error", variant="bad_message", description=f"no {unknown!r} here")

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        if isinstance(event, Partial | Final):
            self._audio.told(event.end_ms)
        match event:
            case Vad(speech=True):
                yield from self._speech_started(event)
            case Partial():
                yield from self._release(event.channel or 0)
                yield self._results.of(event)
            case Final():
                yield from self._release(event.channel or 0)
                self._held[event.channel or 0] = event
                if not self._n_finalizing:
                    yield from self._release(event.channel or 0)
            case Flushed() if self._n_finalizing:
                yield from self._finalized()
            case Fault():
                yield tell("Error", variant=event.code, description=event.message)
            case Eos():
                for channel in self._channels:
                    yield from self._release(channel)
                yield self._results.metadata(self._audio.heard_ms, self._asked.channels)

    def _speech_started(self, event: Vad) -> Iterator[Tell]:
        channel = event.channel or 0
        yield from self._utterance_end(event.t_ms)
        self._last_word_end_ms.pop(channel, None)  # otherwise the pause was too short
        if self._asked.vad_events:
            index = self._results.index(channel) if channel else [0]
            yield tell("SpeechStarted", channel=index, timestamp=event.t_ms / 1000)

    def _finalized(self) -> Iterator[Tell]:
        self._n_finalizing -= 1
        for channel in self._channels:
            if channel not in self._held:  # some clients wait for an answer
                yield self._results.empty(self._audio.heard_ms, channel)
            yield from self._release(channel, from_finalize=True)

    def _release(self, channel: int, *, from_finalize: bool = False) -> Iterator[Tell]:
        if (final := self._held.pop(channel, None)) is not None:
            yield self._results.of(final, from_finalize=from_finalize)
            self._last_word_end_ms.pop(channel, None)
            if final.words:
                self._last_word_end_ms[channel] = final.words[-1].end_ms
            if not final.continues:
                yield from self._utterance_end(self._audio.heard_ms)

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        """Send an ``Error``, and close with Deepgram's code if it is for what cannot be decoded."""
        yield tell("Error", variant=error.code, description=str(error))
        if error.code == "bad_audio":
            yield Close(1008, "DATA-0000")

    def _utterance_end(self, now_ms: int) -> Iterator[Tell]:
        wanted_ms = self._asked.utterance_end_ms
        for channel, end_ms in [*self._last_word_end_ms.items()] if wanted_ms else ():
            if now_ms - end_ms >= wanted_ms:
                del self._last_word_end_ms[channel]
                index = self._results.index(channel)
                yield tell("UtteranceEnd", channel=index, last_word_end=end_ms / 1000)
