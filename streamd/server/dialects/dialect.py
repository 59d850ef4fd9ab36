"""What every dialect is, what one can ask the connection to do, and what several need."""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import Final as Constant
from typing import Literal, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import soundfile
from msgspec.structs import replace

from streamd.errors import WireError
from streamd.events import Final, Partial, SessionEvent
from streamd.language import MARKS
from streamd.server.wire import (
    Command,
    Encoding,
    Hello,
    Query,
    Role,
    Start,
    Update,
    check_format,
    decoded,
    parse_query,
)
from streamd.types import SAMPLE_RATE

_MIN_ENDPOINT_MS = 200
"""Clients ask for pauses of 10 ms, but Whisper needs phrases."""

QueryT = TypeVar("QueryT", bound=Query)


class Tell(msgspec.Struct, frozen=True):
    """Send `message` to the client as JSON; an event is encoded once for all who get it."""

    message: object


class Close(msgspec.Struct, frozen=True):
    """Close the websocket; `reason` has at most 123 bytes (RFC 6455, section 5.5)."""

    code: int
    reason: str


class Dialect(Protocol):
    """A protocol as one client speaks it: one object per connection, made with the URL's query.

    It is pure: it knows neither socket nor clock, and says what to do. The connection takes all
    that one call yields before the next call, does it in this order, and ends with `fault` if a
    call raises `WireError`. Nothing else may be raised, whatever the client sends.
    """

    def __init__(self, query: str) -> None: ...

    def request(self) -> Query:
        """Return what the client asks for; called first, and possibly again.

        Raises `WireError` with `bad_query`.
        """

    def opened(self, hello: Hello) -> Iterator[Tell]:
        """The session of the request is there; comes before `hear` and `say`."""
        yield from ()

    def hear(self, message: str | bytes) -> Iterator[bytes | Command | Tell]:
        """Handle a message of the client, which may feed the session; `bytes` are audio for it.

        A `Start` comes at most once, and before the first audio. After a `Stop` or the end of the
        session it is not called.
        """

    def say(self, event: SessionEvent) -> Iterator[Tell]:
        """Tell the client of an event.

        `Eos` is the last: the connection then closes the websocket with 1000, or 1001 when the
        server ends. Answers to commands are events, too: `Flushed` follows the last final.
        """

    def fault(self, error: WireError) -> Iterator[Tell | Close]:
        """Report the error that ends the connection, at any time.

        The last act may be a `Close`; without, the websocket is closed as streamd.v1 does it.
        """
        yield from ()


class _Typed(msgspec.Struct):
    type: str


_typed_decoder = msgspec.json.Decoder(_Typed)


def type_of(message: str) -> str:
    """Return the ``type`` of a JSON message; raises `WireError` with `bad_message`."""
    return decoded(message, _typed_decoder, "JSON with a type").type


def both(query: str, kind: type[QueryT]) -> QueryT:
    """Return what a client asks for that feeds a session and listens to it; raises `WireError`."""
    return msgspec.structs.replace(parse_query(query, kind), role=Role.BOTH)


def start_for(
    rate: int,
    *,
    channels: int = 1,
    tags: Sequence[str | None] = (),
    prompt: str | None = None,
    terms: Iterable[str] = (),
    pause_ms: int | None = None,
) -> Start:
    """Return the `Start` for language tags, key terms and the silence that ends an utterance.

    A tag is such as ``en-US``; ``multi`` means ``auto``.
    """
    codes = dict.fromkeys(tag.partition("-")[0].lower() for tag in tags if tag)
    return Start(
        rate=rate,
        channels=channels,
        language="auto" if "multi" in codes else ",".join(codes) or None,
        prompt=prompt,
        hotwords=", ".join(terms) or None,
        endpoint_ms=None if pause_ms is None else max(_MIN_ENDPOINT_MS, pause_ms),
    )


def changes(before: Start, after: Start) -> Update:
    """Return what turns the one session into the other; a text that is taken back is empty."""
    new = {name: value for name, value in after.chosen.items() if value != getattr(before, name)}
    gone = before.chosen.keys() - after.chosen.keys()
    undone = {name: _NONE[name] for name in gone & _NONE.keys()}
    return msgspec.convert({**new, **undone}, Update)


_NONE: Constant[Mapping[str, str]] = {
    "language": "auto",
    "prompt": "",
    "hotwords": "",
    "endpoint": "silence",
}
"""What stands for a choice that is taken back; there is nothing for a pause."""


class GrowingText:
    """Texts, one after the other, of which each word is sent once, and never taken back.

    What was committed may get other marks and capitals later; they stay as they were sent.
    """

    def __init__(self) -> None:
        self._n_before = 0
        self._sent = ""  # of the text after those; with them, each partial would cost more and more

        self.texts: list[str] = []
        """The finals that were taken."""

    def __bool__(self) -> bool:
        return bool(self._n_before or self._sent)

    def take(self, event: Partial | Final) -> str:
        """Return what a caption adds behind the finals that were taken, of which it may be one."""
        if isinstance(event, Partial):
            return self.more(event.text[: event.stable].rstrip(), len(self.texts))
        self.texts.append(event.text)
        return self.more(event.text, len(self.texts) - 1)

    def more(self, text: str, n_before: int) -> str:
        """Return what `text` adds, which follows `n_before` others after a space.

        It is nothing if its words do not continue what was sent of it.
        """
        if n_before != self._n_before:
            self._n_before, self._sent = n_before, ""
        at = _end_of(self._sent, text)
        if at is None or not text[at:]:
            return ""
        space = " " if n_before and not self._sent else ""
        self._sent += text[at:]
        return space + text[at:]


def _end_of(words: str, text: str) -> int | None:
    """Return where in `text` these words, with which it begins, end; None: it does not."""
    if text.startswith(words):
        return len(words)
    sent, found = re.findall(_WORD, words), list(re.finditer(_WORD, text))
    now = [match.group().casefold() for match in found[: len(sent)]]
    if not sent or now != [word.casefold() for word in sent]:
        return None
    end = found[len(sent) - 1].end()
    has_mark = not words.endswith(sent[-1])
    return end + (len(text[end:]) - len(text[end:].lstrip(MARKS)) if has_mark else 0)


_WORD = re.compile(r"[\w'’]+")


def tell(kind: str, **fields: object) -> Tell:
    """Return a message of this ``type``."""
    return Tell({"type": kind, **fields})


def from_base64(text: str) -> bytes:
    """Return audio that was sent as base64, with line breaks as in MIME or without.

    Raises `ValueError` for other characters that are not of base64 (RFC 4648), and without padding.
    """
    return b64decode("".join(text.split()), validate=True)


Encodings = Literal["container", "opus", "ogg-opus", "linear16", "linear32", "mulaw", "alaw"]
"""Deepgram's names; a container needs none, and Opus comes in Ogg."""
Law = Literal["ULAW", "ALAW"]
"""libsndfile's names of the telephone encodings (ITU-T G.711)."""
_FORMATS: Constant[Mapping[str, tuple[Encoding, Law | None]]] = {
    **dict.fromkeys(("int16", "linear16", "pcm_s16le"), (Encoding.S16, None)),
    **dict.fromkeys(("float32", "linear32"), (Encoding.F32, None)),
    **dict.fromkeys(("mulaw", "pcm_mulaw"), (Encoding.S16, "ULAW")),
    "alaw": (Encoding.S16, "ALAW"),
    **dict.fromkeys(
        ("container", "opus", "ogg-opus", "ogg_opus", "aac"), (Encoding.CONTAINER, None)
    ),
}
"""What the encodings are that other protocols name."""


def rate_of(encoding: str, rate_hz: int | None) -> int:
    """Return the rate of samples; raises `WireError` if it is not known."""
    if _FORMATS[encoding][0] is Encoding.CONTAINER:
        return SAMPLE_RATE
    if rate_hz is None:
        raise WireError("bad_audio", f"samples in {encoding} need their rate: give sample_rate")
    return rate_hz


@cache
def _samples(law: Law) -> npt.NDArray[np.int16]:
    """Return the sample that each byte stands for."""
    every, form = BytesIO(bytes(range(256))), {"samplerate": 8000, "channels": 1, "format": "RAW"}
    samples, _ = soundfile.read(every, dtype="int16", subtype=law, **form)
    return np.asarray(samples, np.int16)


class ByteStream:
    """Turns bytes into `start`, with the `encoding` of this name, and whole samples.

    Raises `WireError` if such audio is not supported.
    """

    def __init__(self, encoding: str, start: Start) -> None:
        check_format(start)
        samples, self._law = _FORMATS[encoding]
        self._start = replace(start, encoding=samples)
        self._sample_bytes = start.channels * (1 if self._law else samples.n_bytes)
        self.has_begun = False
        self._rest = b""
        self._n_samples = self._told_ms = 0

    @property
    def heard_ms(self) -> int:
        """How much audio has come; of a container, how much of it is known to have come."""
        if self.is_container:
            return self._told_ms
        return self._n_samples * 1000 // self._start.rate

    @property
    def is_container(self) -> bool:
        """Whether the bytes do not tell how much audio they are."""
        return self._start.encoding is Encoding.CONTAINER

    def told(self, end_ms: int) -> None:
        """Note that so much audio has come."""
        self._told_ms = max(self._told_ms, end_ms)

    def change(self, start: Start) -> Iterator[Update]:
        """Begin with other choices, or if it has begun, say what changes."""
        update = changes(self._start, start)
        self._start = replace(start, encoding=self._start.encoding)
        if self.has_begun and update.chosen:
            yield update

    def take(self, audio: bytes) -> Iterator[Start | bytes]:
        """Take audio of any length; the bytes of a sample that is not complete wait."""
        if not self.has_begun:
            self.has_begun = True
            yield self._start
        audio = self._rest + audio
        n_samples = len(audio) // self._sample_bytes
        self._n_samples += n_samples
        whole = n_samples * self._sample_bytes
        audio, self._rest = audio[:whole], audio[whole:]
        if self._law:
            audio = _samples(self._law)[np.frombuffer(audio, np.uint8)].tobytes()
        if audio:
            yield audio
