"""The protocol of vosk-server (https://github.com/alphacep/vosk-server), at ``/``."""

from collections.abc import Iterator, Mapping

import msgspec

from streamd.events import Eos, Final, Flushed, Partial, SessionEvent, TimedWord
from streamd.server.dialects.dialect import ByteStream, Dialect, Tell, both, start_for
from streamd.server.wire import Command, Flush, Query, Start, Stop, decoded

_DEFAULT_RATE_HZ = 8_000


class _Setup(msgspec.Struct):
    sample_rate: int = _DEFAULT_RATE_HZ
    words: bool = False
    phrase_list: list[str] = []


class _Spoken(msgspec.Struct):
    config: _Setup | None = None
    eof: int = 0
    reset: int = 0


_decoder = msgspec.json.Decoder(_Spoken, strict=False)


class Vosk(Dialect):
    """Every message with audio has one answer: the next final, or else the partial as it is.

    Finals that wait for one at the end, or at a ``reset``, come together.
    """

    def __init__(self, query: str) -> None:
        self._text = query
        self._has_words = False
        self._partial = ""
        self._finals: list[Final] = []
        self._audio = ByteStream("linear16", Start(rate=_DEFAULT_RATE_HZ))

    def request(self) -> Query:
        return both(self._text, Query)

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        if isinstance(message, bytes):
            yield from self._audio.take(message)
            if self._finals:
                yield self._result([self._finals.pop(0)])
            else:
                yield Tell({"partial": self._partial})
            return
        said = decoded(message, _decoder, "config, eof or reset")
        if said.config is not None and not self._audio.has_begun:
            self._has_words = said.config.words
            phrases = (phrase for phrase in said.config.phrase_list if phrase != "[unk]")
            self._audio = ByteStream("linear16", start_for(said.config.sample_rate, terms=phrases))
        if said.eof:
            yield Stop()
        elif said.reset:
            yield Flush()

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        match event:
            case Partial():
                self._partial = event.text
            case Final():
                self._partial = ""
                self._finals.append(event)
            case Flushed() | Eos():
                yield self._result(self._finals)
                self._finals = []

    def _result(self, finals: list[Final]) -> Tell:
        result: dict[str, object] = {"text": " ".join(final.text for final in finals)}
        if self._has_words:
            result["result"] = [_word(word) for final in finals for word in final.words]
        return Tell(result)


def _word(word: TimedWord) -> Mapping[str, object]:
    return {"word": word.text, "conf": word.prob, "start": word.start, "end": word.end}
