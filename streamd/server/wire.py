"""The messages of streamd.v1 besides the events, and its error codes (docs/protocol.md).

Unknown fields are ignored, so that a newer client can talk to an older server.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qs

import msgspec

from streamd.errors import WireError
from streamd.events import Correction, SpeakerName
from streamd.labels import MOST_NAME
from streamd.options import Choices
from streamd.sources.framing import MAX_RATE_HZ, MIN_RATE_HZ

STREAM_PATH = "/v1/stream"
MAX_CHANNELS = 8
MAX_SAMPLES = 2**53
"""Limit of sample numbers: JavaScript's integers are exact up to here, and it takes centuries."""

SESSION: Final = r"\A[A-Za-z0-9_.-]{1,64}\Z"
"""The names that sessions may have."""
_MAX_FIELDS = 200
"""Of a query: Deepgram's clients may name 100 key terms."""

CLOSE_CODES: Final[Mapping[str, int]] = {
    "bad_query": 1008,
    "no_such_session": 1008,
    "session_busy": 1008,
    "too_many_streams": 1013,
    "storage": 1013,
    "busy": 1013,
    "not_ingest": 1003,
    "bad_message": 1007,
    "late_start": 1008,
    "bad_rate": 1008,
    "bad_option": 1008,
    "bad_audio": 1007,
    "slow": 4503,
    "replaced": 4409,
    "session_over": 1008,
}
"""Error code -> close code. Only a fatal error closes the connection."""


def close_code(error_code: str) -> int:
    """Return the close code of an error; 1008 for errors that only the daemon defines."""
    return CLOSE_CODES.get(error_code, 1008)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the server accepts, as ``hello`` announces it.

    `max_session_ms` is the audio after which a session ends (0: never), `resume_ms` how long a
    session waits for a client that counts samples and whose connection broke.
    """

    max_message_bytes: int
    min_rate: int = MIN_RATE_HZ
    max_rate: int = MAX_RATE_HZ
    max_channels: int = MAX_CHANNELS
    max_session_ms: int = 0
    resume_ms: int = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """First message of the server.

    `seq` is the number of the last final, `rate` the model's sample rate, `started` the wall time
    of session time 0. What the session's speaker has chosen is as in `Start`, or `Choices`.
    `corrects`: whether the client may send `Correct` and `Name`; `translates`: the languages for
    `Translate`. `keeps_voices`: it may have voices kept of those whom it names.
    """

    proto: str
    session: str
    epoch: str
    seq: int
    model: str
    language: str
    task: str = ""
    prompt: str = ""
    hotwords: str = ""
    endpoint: str = ""
    endpoint_ms: int = 0
    speakers: bool | msgspec.UnsetType = msgspec.UNSET
    sounds: bool | msgspec.UnsetType = msgspec.UNSET
    split: bool | msgspec.UnsetType = msgspec.UNSET
    rate: int
    corrects: bool = False
    keeps_voices: bool | msgspec.UnsetType = msgspec.UNSET
    translates: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    limits: Limits
    started: datetime | None = None


class Encoding(StrEnum):
    """Sample formats of binary messages, little endian, channels interleaved; or a container.

    WebM, Ogg or MPEG-4 says itself what it holds, and may be cut anywhere.
    """

    S16 = "pcm_s16le"
    F32 = "pcm_f32le"
    CONTAINER = "container"

    @property
    def n_bytes(self) -> int:
        """Size of one sample of one channel."""
        return {Encoding.S16: 2, Encoding.F32: 4}.get(self, 1)


class _Choosing(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may choose of a session at any time; None: as it is."""

    language: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    endpoint: str | None = None
    endpoint_ms: int | None = None
    sounds: bool | None = None

    @property
    def chosen(self) -> Mapping[str, object]:
        """The fields of `Choices` that are not None."""
        every = ((name, getattr(self, name, None)) for name in Choices.__struct_fields__)
        return {name: value for name, value in every if value is not None}


class Start(_Choosing, frozen=True, kw_only=True, tag_field="type", tag="start"):
    """The format of the binary messages; optional, and only before the first of them.

    With `samples` the client promises to keep what is not acknowledged and to reconnect if the
    connection breaks: it is the number of the first sample (per channel) that it still has. The
    other fields are what the client chooses for the session (`Choices`), and whether it wants
    `words`; None: as they are.
    """

    encoding: Encoding = Encoding.S16
    rate: int = 16_000
    channels: int = 1
    samples: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLES)] | None = None
    task: str | None = None
    speakers: bool | None = None
    split: bool | None = None
    model: str | None = None
    words: bool | None = None


class Flush(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="flush"):
    """Make all audio so far final and answer ``flushed`` with this `id`; the session continues."""

    id: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="stop"):
    """Make all audio final and end the session."""


class Update(_Choosing, frozen=True, kw_only=True, tag_field="type", tag="update"):
    """Change what `Start` has chosen, from the next window on; None: it stays as it is."""


class Correct(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="correct"):
    """Expect a word or name from now on, as `text` spells it: it was misheard.

    With `keep` it is added to the list in the user's folder, too, for all later sessions. Finals
    that were sent do not change; `seq`, `first` and `last` say for which of their words it stands,
    as in `Correction`.
    """

    text: Annotated[
        str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^,\n\r]*\w[^,\n\r]*$")
    ]
    keep: bool = False
    seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    first: Annotated[int, msgspec.Meta(ge=0)] = 0
    last: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def correction(self) -> Correction:
        """What listeners learn of it."""
        text = " ".join(self.text.split())
        return Correction(text=text, seq=self.seq, first=self.first, last=self.last)


class Name(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="name"):
    """Say what a speaker is called, to all listeners; an empty `name` takes that back.

    With `keep` their voice is kept on the server, to be known in later sessions.
    """

    speaker: Annotated[int, msgspec.Meta(ge=1, le=9_999)]
    name: Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
    keep: bool = False

    @property
    def naming(self) -> SpeakerName:
        """What listeners learn of it."""
        return SpeakerName(speaker=self.speaker, name=self.name)


class Translate(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="translate"):
    """Send translations into this language from now on; empty: no more of them.

    With `after`, also those of the finals after this number.
    """

    into: Annotated[str, msgspec.Meta(max_length=20)]
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None


Command = Start | Flush | Stop | Update | Correct | Name | Translate

_command_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
T = TypeVar("T")


def decoded(message: str | bytes, decoder: msgspec.json.Decoder[T], expected: str) -> T:
    """Return what the JSON of a message says; raises `WireError` with `bad_message`."""
    try:
        return decoder.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        choices = _choices(error, decoder.type)
        raise WireError("bad_message", f"expected {expected}: {error}{choices}") from error


def decode_command(text: str) -> Command:
    """Read a client's text message.

    Raises `WireError` with `bad_message`, or `bad_rate` for a sample rate that is not supported.
    """
    command = decoded(
        text, _command_decoder, "start, update, correct, name, translate, flush or stop"
    )
    if isinstance(command, Start):
        check_format(command)
    return command


def check_format(start: Start) -> None:
    """Raise `WireError` with `bad_rate` or `bad_message` if such audio is not supported."""
    if not MIN_RATE_HZ <= start.rate <= MAX_RATE_HZ:
        limits = f"rate must be {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz"
        raise WireError("bad_rate", f"{limits}, got {start.rate}")
    if start.split and start.samples is not None:
        raise WireError("bad_message", "a session whose channels are split cannot be resumed")
    if start.encoding is Encoding.CONTAINER and (start.split or start.samples is not None):
        raise WireError("bad_message", "a container has one mixed channel, and cannot be resumed")
    if not 1 <= start.channels <= MAX_CHANNELS:
        limits = f"channels must be 1 to {MAX_CHANNELS}"
        raise WireError("bad_message", f"{limits}, got {start.channels}")


class Role(StrEnum):
    """What a client does: listen to a session, feed one, or feed one and listen to it."""

    LISTEN = "listen"
    INGEST = "ingest"
    BOTH = "both"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The query of the websocket's address, with the defaults of what is left out.

    `model` is for other protocols: in streamd.v1 `Start` names it.
    """

    role: Role = Role.LISTEN
    session: Annotated[str, msgspec.Meta(pattern=SESSION)] | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    epoch: str | None = None
    partials: bool = True
    words: bool = True
    stats: bool = False
    translate: Annotated[str, msgspec.Meta(max_length=20)] = ""
    model: str = ""


QueryT = TypeVar("QueryT", bound=msgspec.Struct)


def parse_query(query: str, kind: type[QueryT], code: str = "bad_query") -> QueryT:
    """Parse the query; the last value of a repeated name counts, unknown names are ignored.

    All values count for a field that is a tuple. Raises `WireError` with the `code`.
    """
    lists = {field.name for field in msgspec.structs.fields(kind) if field.type == tuple[str, ...]}
    try:
        found = parse_qs(query, max_num_fields=_MAX_FIELDS).items()
        pairs = {name: values if name in lists else values[-1] for name, values in found}
        return msgspec.convert(pairs, kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise WireError(code, naming_field(error, kind)) from error


_PATH = re.compile(r" - at `\$\.(\w+)(\[.*)?`$")
"""At the end of msgspec's messages: ``- at `$.after[0]```."""


def naming_field(error: Exception, kind: type[msgspec.Struct]) -> str:
    """Return msgspec's message about a value of this kind, with the field, and what it may be."""
    return _PATH.sub(r" for \1", str(error)) + _choices(error, kind)


def _choices(error: Exception, kind: Any) -> str:  # noqa: ANN401 - a type, or several
    """Return the end of a message about a value that is none of a few: those that are allowed."""
    place = _PATH.search(str(error))
    if place is None or "Invalid enum value" not in str(error):
        return ""
    structs = [each for each in get_args(kind) or (kind,) if hasattr(each, "__struct_fields__")]
    known = [get_type_hints(each).get(place[1]) for each in structs]
    values = [str(value) for each in known for value in _values(each)]
    return f"; allowed: {', '.join(dict.fromkeys(values))}"


def _values(kind: Any) -> Iterator[object]:  # noqa: ANN401 - any type
    """Yield the values of the enumerations and literals in a type."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        yield from kind
    for part in get_args(kind):
        if get_origin(kind) is Literal:
            yield part
        else:
            yield from _values(part)


def unknown_fields(message: str, command: Command) -> Iterator[str]:
    """Yield a sentence for each field of a command's message that it does not have."""
    tag, known = str(command.__struct_config__.tag), command.__struct_fields__
    for name in msgspec.json.decode(message):
        if name not in ("type", *known):
            near = get_close_matches(name, known, n=1, cutoff=0.6) or [
                field for field in known if field.startswith(name)
            ]
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"{tag} has no field {name[:50]!r}{hint}"
