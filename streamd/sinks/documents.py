"""Transcripts as one JSON document: json, json-full. Pure; `files` writes them.

`Result` is what openai-whisper returns from ``transcribe`` and writes as ``json``. `FullResult` is
what whisper.cpp writes with ``--output-json-full``, with openai-whisper's names for what that
lacks. Their JSON schemas are docs/json.schema.json and docs/json-full.schema.json.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct

from streamd.events import Details, Event, Final, Gap
from streamd.search.tokenizer import SPACELESS
from streamd.sinks.subtitles import timestamp
from streamd.sinks.text import aligned, clean

Prob = Annotated[float, Meta(ge=0.0, le=1.0)]
Ms = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0)]


class Word(Struct, frozen=True, kw_only=True):
    """A word with its place in the sound, in seconds; it keeps the blank before it."""

    word: str
    start: Seconds
    end: Seconds
    probability: Prob


class Segment(Struct, frozen=True, kw_only=True):
    """What one final says, under openai-whisper's names.

    `seek` is where the window began that it was heard in, in steps of 10 ms. A text heard live
    comes from several windows: then `seek` is its own start, `temperature` 0, `tokens` empty.
    """

    id: int
    seek: int
    start: Seconds
    end: Seconds
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: Prob
    words: tuple[Word, ...]


class Result(Struct, frozen=True, kw_only=True):
    """openai-whisper's result; `language` is the first segment's, empty while there is none."""

    segments: tuple[Segment, ...]
    text: str
    language: str


class Timestamps(Struct, frozen=True, kw_only=True):
    """A stretch of the sound, as ``hh:mm:ss,ttt``."""

    from_: str = msgspec.field(name="from")
    to: str


class Offsets(Struct, frozen=True, kw_only=True):
    """The same in milliseconds."""

    from_: Ms = msgspec.field(name="from")
    to: Ms


class FullToken(Struct, frozen=True, kw_only=True):
    """One token of the model, under whisper.cpp's names; its time is that of its word.

    `text` has U+FFFD for a part of a character; `p` is its probability.
    """

    text: str
    timestamps: Timestamps
    offsets: Offsets
    id: int
    p: Prob


class FullSegment(Struct, frozen=True, kw_only=True):
    """What one final says; `Segment` tells what is different in a text heard live."""

    timestamps: Timestamps
    offsets: Offsets
    text: str
    tokens: tuple[FullToken, ...]
    id: int
    seek: int
    language: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: Prob
    words: tuple[Word, ...]


class Heard(Struct, frozen=True, kw_only=True):
    """What is known of the whole; `language` is the first segment's."""

    language: str


class Loss(Struct, frozen=True, kw_only=True):
    """Sound that never reached us, here: not silence."""

    offsets: Offsets
    why: str


class FullResult(Struct, frozen=True, kw_only=True):
    """whisper.cpp's full result, without what it says of the program and the model."""

    transcription: tuple[FullSegment, ...]
    gaps: tuple[Loss, ...]
    text: str
    result: Heard


_encoder = msgspec.json.Encoder()
_TIMESTAMP = re.compile(r"<\|(\d+\.\d\d)\|>")
_MAX_UNREADABLE = 8
"""Characters that tokens without readable text may have spelt."""


_MOST_TEXT, _MOST_GAPS = 4096, 32
"""What an unfinished document repeats with each segment: minutes of speech; not days of it."""


class Json:
    """`Result`, or `FullResult` if it is to be `full`; one segment on a line.

    While it grows, a long document has no `text` and no `gaps`, which are at its end.
    """

    def __init__(self, *, full: bool = False) -> None:
        self._full = full
        self.header = '{"transcription":[' if full else '{"segments":['
        self._n = 0
        self._gaps: list[Loss] = []
        self._texts: list[str] = []
        self._n_chars = 0
        self._language = ""

    @property
    def tail(self) -> str:
        """What completes the document for now: a few KiB."""
        texts = self._texts if self._n_chars <= _MOST_TEXT else ()
        return self._ended(texts, self._gaps if len(self._gaps) <= _MOST_GAPS else ())

    @property
    def end(self) -> str:
        """What completes the document."""
        return self._ended(self._texts, self._gaps)

    def _ended(self, texts: Sequence[str], gaps: Sequence[Loss]) -> str:
        text, language = map(_json, ("".join(texts), self._language))
        if not self._full:
            return f'\n],"text":{text},"language":{language}}}\n'
        lost = _json(gaps)
        return f'\n],"gaps":{lost},"text":{text},"result":{{"language":{language}}}}}\n'

    def append(self, event: Event) -> str:
        """The final's segment."""
        if isinstance(event, Gap):
            offsets = Offsets(from_=event.t_ms, to=event.t_ms + event.duration_ms)
            self._gaps.append(Loss(offsets=offsets, why=clean(event.why)))
        if not isinstance(event, Final) or not event.text:
            return ""
        segment = _segment(event, self._n)
        before = ",\n" if self._n else "\n"
        self._n += 1
        self._texts.append(segment.text)
        self._n_chars += len(segment.text)
        self._language = self._language or event.language
        return before + _json(_full(segment, event) if self._full else segment)


def _json(value: object) -> str:
    return _encoder.encode(value).decode()


def _segment(final: Final, number: int) -> Segment:
    text = _lead(final) + clean(final.text)
    details = final.details
    if details is UNSET:
        data = text.encode()
        details = Details(
            seek_ms=final.start_ms,
            tokens=(),
            temperature=0.0,
            compression_ratio=round(len(data) / len(zlib.compress(data)), 4),
        )
    return Segment(
        id=number,
        seek=details.seek_ms // 10,
        start=final.start_ms / 1000,
        end=final.end_ms / 1000,
        text=text,
        tokens=tuple(token.id for token in details.tokens),
        temperature=details.temperature,
        avg_logprob=final.avg_logprob,
        compression_ratio=details.compression_ratio,
        no_speech_prob=final.no_speech_prob,
        words=tuple(_words(final)),
    )


def _lead(final: Final) -> str:
    """What stands before the text when it is joined to other text, as the model writes it."""
    # The language is the spoken one; what is written may be its translation into English.
    return "" if final.language in SPACELESS and not final.text.isascii() else " "


def _words(final: Final) -> Iterator[Word]:
    lead, text = _lead(final), clean(final.text)
    ends = [end for _, end, _ in aligned(final.text, final.words)]
    starts = [0, *ends]
    for i, word in enumerate(final.words):
        in_place = lead * (i == 0) + text[starts[i] : ends[i]] if i < len(ends) else ""
        yield Word(
            word=in_place or lead + clean(word.text),
            start=word.start_ms / 1000,
            end=word.end_ms / 1000,
            probability=word.prob,
        )


def _full(segment: Segment, final: Final) -> FullSegment:
    tokens = () if final.details is UNSET else _tokens(final, final.details)
    timestamps, offsets = _span(final.start_ms, final.end_ms)
    return FullSegment(
        timestamps=timestamps,
        offsets=offsets,
        text=segment.text,
        tokens=tuple(tokens),
        id=segment.id,
        seek=segment.seek,
        language=final.language,
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_prob=segment.no_speech_prob,
        words=segment.words,
    )


def _tokens(final: Final, details: Details) -> Iterator[FullToken]:
    """The tokens, each found in the text behind the one before it, with the time of its word."""
    words = list(aligned(final.text, final.words))
    at = 0
    for token in details.tokens:
        if stamp := _TIMESTAMP.fullmatch(token.text):
            start_ms = end_ms = details.seek_ms + round(float(stamp[1]) * 1000)
        else:
            readable = token.text.strip().strip("\ufffd")
            found = final.text.find(readable, at, at + len(readable) + _MAX_UNREADABLE)
            begins = max(found, at)
            start_ms, end_ms = next(
                ((word.start_ms, word.end_ms) for _, end, word in words if end > begins),
                (final.end_ms, final.end_ms),
            )
            at = begins + len(readable) if found >= 0 else at
        timestamps, offsets = _span(start_ms, end_ms)
        yield FullToken(
            text=clean(token.text),
            timestamps=timestamps,
            offsets=offsets,
            id=token.id,
            p=token.prob,
        )


def _span(start_ms: int, end_ms: int) -> tuple[Timestamps, Offsets]:
    times = Timestamps(from_=timestamp(start_ms), to=timestamp(end_ms))
    return times, Offsets(from_=start_ms, to=end_ms)
