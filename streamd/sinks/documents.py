"""Transcripts as one JSON document: json, json-full.

json is the result of openai-whisper's ``transcribe`` and its ``json`` format. json-full is
whisper.cpp's ``--output-json-full``, with openai-whisper's names for what that lacks. Their schemas
are docs/json.schema.json and docs/json-full.schema.json.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from streamd.events import Details, Final, Gap, Sound, aligned, encode
from streamd.language import SPACELESS
from streamd.sinks import Format
from streamd.sinks.text import clean, timestamp
from streamd.types import compression_ratio

Prob = Annotated[float, Meta(ge=0.0, le=1.0)]
Ms = Annotated[int, Meta(ge=0)]
Speaker = Annotated[int, Meta(ge=1)] | UnsetType
Seconds = Annotated[float, Meta(ge=0.0)]


class JsonWord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A word with its times in seconds; the text includes the blank before it.

    `shares_time`: the model tells no times, and the word is placed by its length.
    """

    word: str
    start: Seconds
    end: Seconds
    probability: Prob | None = None
    shares_time: bool = False
    speaker: Speaker = UNSET


class JsonSegment(Struct, frozen=True, kw_only=True):
    """A final under openai-whisper's names.

    `seek` is the start of its window, in units of 10 ms. A live final comes from several windows:
    then `seek` is its own start, `temperature` 0 and `tokens` empty. `heard` is the text before
    somebody corrected it.
    """

    id: int
    seek: int
    start: Seconds
    end: Seconds
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: Prob | None
    words: tuple[JsonWord, ...]
    speaker: Speaker = UNSET
    heard: str | UnsetType = UNSET


class Timestamps(Struct, frozen=True, kw_only=True):
    """Start and end as ``hh:mm:ss,ttt``."""

    from_: str = msgspec.field(name="from")
    to: str


class Offsets(Struct, frozen=True, kw_only=True):
    """Start and end in milliseconds."""

    from_: Ms = msgspec.field(name="from")
    to: Ms


class JsonFullToken(Struct, frozen=True, kw_only=True):
    """A token of the model under whisper.cpp's names, with the times of its word.

    `p` is the probability. Tokens that spell one character are one, as in whisper.cpp, with the
    `id` and `p` of the first.
    """

    text: str
    timestamps: Timestamps
    offsets: Offsets
    id: int
    p: Prob


class JsonFullSegment(Struct, frozen=True, kw_only=True):
    """A final under whisper.cpp's names; for live finals see `JsonSegment`."""

    timestamps: Timestamps
    offsets: Offsets
    text: str
    tokens: tuple[JsonFullToken, ...]
    id: int
    seek: int
    language: str
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: Prob | None
    words: tuple[JsonWord, ...]
    speaker: Speaker = UNSET
    heard: str | UnsetType = UNSET


class JsonGap(Struct, frozen=True, kw_only=True):
    """A place where audio was lost, which is not silence."""

    offsets: Offsets
    why: str


class JsonSound(Struct, frozen=True, kw_only=True):
    """A sound other than speech, such as ``music``; `probability`: that of its surest second."""

    label: str
    start: Seconds
    end: Seconds
    probability: Prob


_TIMESTAMP = re.compile(r"<\|(\d+\.\d\d)\|>")
_MAX_UNREADABLE = 8
"""Characters of the text that tokens without readable text of their own may stand for."""
_MAX_FOOTER_CHARS, _MAX_FOOTER_PARTS = 4096, 32
"""Limits of what an unfinished document's footer repeats, as each segment writes it anew."""


class Json(Format):
    """Writes json, or json-full if `full`, with one segment per line.

    While a long document grows, its `text`, `gaps` and `sounds`, which stand at the end, are empty.
    There are no `sounds` if none was heard.
    """

    def __init__(self, *, full: bool = False) -> None:
        self._full = full
        self.header = '{"transcription":[' if full else '{"segments":['
        self._gaps: list[JsonGap] = []
        self._sounds: list[JsonSound] = []
        self._texts: list[str] = []
        self._n_chars = 0
        self._language = ""

    def end(self, *, complete: bool) -> str:
        """Return what completes the document, at most a few KiB of it for now."""
        texts = self._texts if complete or self._n_chars <= _MAX_FOOTER_CHARS else []
        gaps = self._gaps if complete or len(self._gaps) <= _MAX_FOOTER_PARTS else []
        sounds = self._sounds if complete or len(self._sounds) <= _MAX_FOOTER_PARTS else []
        heard = f',"sounds":{encode(sounds)}' if sounds else ""
        text, language = map(encode, ("".join(texts), self._language))
        called = {str(speaker): clean(name) for speaker, name in sorted(self.names.items())}
        named = f',"speakers":{encode(called)}' if called else ""
        if not self._full:
            return f'\n]{heard},"text":{text},"language":{language}{named}}}\n'
        lost, result = encode(gaps), f'{{"language":{language}}}'
        return f'\n],"gaps":{lost}{heard},"text":{text},"result":{result}{named}}}\n'

    def _parts(self, final: Final) -> Sequence[Final]:
        return (final,)

    def _final(self, final: Final) -> str:
        segment = _segment(final, len(self._texts), full=self._full)
        before = ",\n" if self._texts else "\n"
        self._texts.append(segment.text)
        self._n_chars += len(segment.text)
        self._language = self._language or final.language
        return before + encode(segment)

    def _gap(self, gap: Gap) -> str:
        offsets = Offsets(from_=gap.t_ms, to=gap.t_ms + gap.duration_ms)
        self._gaps.append(JsonGap(offsets=offsets, why=clean(gap.why)))
        return ""

    def _sound(self, sound: Sound) -> str:
        label = clean(sound.label)
        self._sounds.append(
            JsonSound(label=label, start=sound.start, end=sound.end, probability=sound.prob)
        )
        return ""


def _segment(final: Final, number: int, *, full: bool) -> JsonSegment | JsonFullSegment:
    text = _lead(final) + clean(final.text)
    details = final.details
    if details is UNSET:
        ratio = round(compression_ratio(text), 4)
        start_ms = final.start_ms
        details = Details(seek_ms=start_ms, tokens=(), temperature=0.0, compression_ratio=ratio)
    facts: dict[str, Any] = {
        "id": number,
        "seek": details.seek_ms // 10,
        "text": text,
        "temperature": details.temperature,
        "avg_logprob": final.avg_logprob,
        "compression_ratio": details.compression_ratio,
        "no_speech_prob": final.no_speech_prob,
        "words": tuple(_words(final)),
        "speaker": final.speaker or UNSET,
        "heard": final.heard,
    }
    if full:
        facts |= _span(final.start_ms, final.end_ms)
        tokens = tuple(_tokens(final, details))
        return JsonFullSegment(**facts, tokens=tokens, language=final.language)
    ids = tuple(token.id for token in details.tokens)
    return JsonSegment(**facts, tokens=ids, start=final.start, end=final.end)


def _lead(final: Final) -> str:
    """Return what joins the text to the text before it: a blank, but in some languages nothing."""
    # `language` is the spoken one; the text may be its translation into English.
    return "" if final.language in SPACELESS and not final.text.isascii() else " "


def _words(final: Final) -> Iterator[JsonWord]:
    lead, text = _lead(final), clean(final.text)
    ends = [end for _, end, _ in aligned(final.text, final.words)]
    starts = [0, *ends]
    for i, word in enumerate(final.words):
        in_place = lead * (i == 0) + text[starts[i] : ends[i]] if i < len(ends) else ""
        yield JsonWord(
            word=in_place or lead + clean(word.text),
            start=word.start,
            end=word.end,
            probability=word.prob,
            shares_time=word.shares_time,
            speaker=word.speaker,
        )


def _tokens(final: Final, details: Details) -> Iterator[JsonFullToken]:
    """Yield the tokens with the times of their words: each is searched after the previous one."""
    words = list(aligned(final.text, final.words))
    at = 0
    for token in details.tokens:
        if not token.text:
            continue  # it is a part of the character before
        if stamp := _TIMESTAMP.fullmatch(token.text):
            start_ms = end_ms = details.seek_ms + round(float(stamp[1]) * 1000)
        else:
            readable = token.text.strip()
            found = final.text.find(readable, at, at + len(readable) + _MAX_UNREADABLE)
            begins = max(found, at)
            start_ms, end_ms = next(
                ((word.start_ms, word.end_ms) for _, end, word in words if end > begins),
                (final.end_ms, final.end_ms),
            )
            at = begins + len(readable) if found >= 0 else at
        times = _span(start_ms, end_ms)
        yield JsonFullToken(**times, text=clean(token.text), id=token.id, p=token.prob)


def _span(start_ms: int, end_ms: int) -> dict[str, Any]:
    times = Timestamps(from_=timestamp(start_ms), to=timestamp(end_ms))
    return {"timestamps": times, "offsets": Offsets(from_=start_ms, to=end_ms)}
