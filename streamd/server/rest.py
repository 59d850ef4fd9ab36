"""OpenAI's REST interface for recordings: a form with a file. Deepgram's shares parts of it."""

import logging
from asyncio import CancelledError
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from streamd.errors import ConfigError, EngineError, SourceError, WireError, for_clients
from streamd.events import EndReason, Final, Sound
from streamd.labels import by_speaker
from streamd.options import ServerLimits
from streamd.server.exchange import Exchange, in_json, respond
from streamd.server.wire import naming_field
from streamd.system.disk import is_nearly_full

UNNAMED = "the recording"
"""What a recording without a name is called."""
_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 16_384
STATUS: Mapping[str, int] = {
    "bad_form": HTTPStatus.BAD_REQUEST,
    "bad_option": HTTPStatus.BAD_REQUEST,
    "too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "too_slow": HTTPStatus.REQUEST_TIMEOUT,
    "storage": HTTPStatus.INSUFFICIENT_STORAGE,
    "engine": HTTPStatus.INTERNAL_SERVER_ERROR,
    "busy": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Statuses of the error codes."""

Task = Literal["transcribe", "translate"]
_log = logging.getLogger(__name__)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How one recording is to be transcribed; None: as the server is configured."""

    task: Task
    model: str = ""  # a name that the server may know; empty: its own
    language: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    speakers: bool = False  # if false, as the server is configured
    sounds: bool | None = None
    num_speakers: Annotated[int, Meta(ge=0, le=64)] = 0  # they are told apart; 0: unknown

    @property
    def chosen(self) -> Mapping[str, object]:
        """What clients of live sessions may choose, too (`Choices`)."""
        names = ("task", "language", "prompt", "hotwords", "sounds")
        every = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in every if value is not None}


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that was read; taking `events` transcribes it, or raises `EngineError`.

    `warnings` says what is wrong with its sound, such as how much of a damaged file is missing.
    `model` is the name of what transcribes it.
    """

    duration_ms: int
    events: AsyncIterator[Final | Sound]
    warnings: Sequence[str] = ()
    model: str = ""

    @property
    def finals(self) -> AsyncIterator[Final]:
        """The events for a protocol that does not know sounds."""
        return (event async for event in self.events if isinstance(event, Final))


class Recordings(Protocol):
    """What the daemon does with recordings."""

    async def check(self, wanted: Wanted) -> None:
        """Raise `WireError` with `bad_form` if the model is known to be unable to do that."""

    async def read(self, file: int, name: str, wanted: Wanted, *, epoch: str = "") -> Recording:
        """Read a sound file from its descriptor as far as it can be decoded; it is called `name`.

        `epoch`: of the session that it becomes, if it is kept.

        Raises `SourceError` if that is nothing, `ConfigError` if the server's own options prevent
        it, `WireError` with `bad_form` or `bad_option` if the model cannot do what is wanted, with
        `busy` if there is no memory for it now, and with `too_large` if the recording is too long.
        """

    def is_writing(self, epoch: str) -> bool:
        """Whether a recording becomes the session of this epoch. Any thread may ask."""

    def models(self) -> Sequence[str]:
        """Return the names that `Wanted.model` may have, the server's own model first."""

    def written(self, events: Sequence[Final | Sound], form: str) -> str:
        """Return a transcript in a format of files: ``json``, ``srt`` or ``vtt``."""


class _FormFields(Wanted, frozen=True, kw_only=True):
    """What a form asks for; other fields are ignored."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    stream: bool = False
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = ("segment",)


class Rest:
    """Answers requests for the transcript of a recording, of which the limits state the size."""

    def __init__(self, recordings: Recordings, limits: ServerLimits) -> None:
        self.recordings, self._max_bytes = recordings, limits.max_upload_bytes

    async def answer(self, task: Task, request: Request, exchange: Exchange) -> None:
        """Receive the recording, and send its transcript or what is wrong with the request."""
        async with self.received(exchange) as file:
            form = _Form(file)
            await self._receive(form, request.headers, exchange)
            await exchange.unless_gone(self._transcribe(task, form, exchange))

    @asynccontextmanager
    async def read(
        self, file: IO[bytes], name: str, wanted: Wanted, exchange: Exchange
    ) -> AsyncIterator[Recording]:
        """Read the recording that was received; the log says when its transcript is sent."""
        file.flush()
        what = name if name == UNNAMED else f"recording {name}"
        n_bytes, duration_ms, reason = file.tell(), 0, EndReason.ERROR
        _log.info("%s begun by %s: %d bytes", what, exchange.client, n_bytes)
        try:
            recording = await self.recordings.read(file.fileno(), name, wanted)
            duration_ms = recording.duration_ms
            yield recording
            reason = EndReason.END
        except CancelledError:
            reason = EndReason.DISCONNECT
            raise
        finally:
            ended = "%s of %s ended (%s): %.1f s of audio"
            _log.info(ended, what, exchange.client, reason, duration_ms / 1000)

    @asynccontextmanager
    async def received(self, exchange: Exchange) -> AsyncIterator[IO[bytes]]:
        """Give a temporary file for the request, and send what is then found wrong with it."""
        fault: WireError | None = None
        try:
            if is_nearly_full(Path(gettempdir())):
                raise WireError("storage", "the disk of temporary files is nearly full")
            # It has no name: not even `kill -9` leaves it behind.
            with TemporaryFile(prefix="streamd-") as file:
                yield file
        except WireError as error:
            fault = error
        except SourceError as error:
            fault = WireError("bad_form", str(error))
        except ConfigError as error:  # of the server's own options
            _log.error("recordings cannot be transcribed: %s", error)
            fault = WireError("engine", for_clients("recordings cannot be transcribed", error))
        except EngineError as error:
            fault = WireError("engine", str(error))
        except OSError as error:
            fault = WireError("storage", f"the recording cannot be stored: {error.strerror}")
        if fault is not None:
            exchange.fault = fault
            await exchange.respond(failure(STATUS[fault.code], str(fault), fault.code))

    async def _receive(self, form: "_Form", headers: Headers, exchange: Exchange) -> None:
        kind, options = parse_options_header("".join(headers.get_all("Content-Type")))
        if kind != "multipart/form-data" or "boundary" not in options:
            raise WireError("bad_form", "send multipart/form-data with the recording in: file")
        try:
            parser = PushMultipartParser(options["boundary"], max_segment_count=_MAX_FIELDS)
            async for data in self.body(headers, exchange):
                for part in parser.parse(data):
                    form.take(part)
            parser.close()
        except (MultipartError, UnicodeError) as error:  # a boundary need not be ASCII
            raise WireError("bad_form", f"the form cannot be read: {error}") from error

    async def body(self, headers: Headers, exchange: Exchange) -> AsyncIterator[bytes]:
        """Yield the body of a request; raises `WireError` if it is too large or too slow."""
        too_large = WireError("too_large", f"a recording has at most {self._max_bytes} bytes")
        with suppress(ValueError):
            if int("".join(headers.get_all("Content-Length"))) > self._max_bytes:
                raise too_large
        n_bytes = 0
        async for data in exchange.body():
            n_bytes += len(data)
            if n_bytes > self._max_bytes:
                raise too_large
            yield data

    async def _transcribe(self, task: Task, form: "_Form", exchange: Exchange) -> None:
        asked = form.asked(task)
        wanted = msgspec.convert(asked, Wanted, from_attributes=True)
        if asked.response_format == "diarized_json":
            wanted = msgspec.structs.replace(wanted, speakers=True)
        async with self.read(form.file, form.name, wanted, exchange) as recording:
            await self._send(asked, recording, exchange)

    async def _send(self, asked: _FormFields, recording: Recording, exchange: Exchange) -> None:
        if asked.stream:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
            head = respond(HTTPStatus.OK, b"", headers)
            del head.headers["Content-Length"]
            warn(head, recording)
            await exchange.respond(head, self._events(recording))
            return
        events = [event async for event in recording.events]
        finals = [event for event in events if isinstance(event, Final)]
        match asked.response_format:
            case "json":
                document = {"text": self._text(finals), "usage": _usage(recording)}
                answer = in_json(HTTPStatus.OK, document)
            case "verbose_json":
                answer = in_json(HTTPStatus.OK, self._verbose(asked, recording, events))
            case "diarized_json":
                answer = in_json(HTTPStatus.OK, self._diarized(asked, recording, finals))
            case "text":
                answer = _in_text(self._text(finals) + "\n")
            case form_of_file:
                answer = _in_text(self.recordings.written(events, form_of_file))
        warn(answer, recording)
        await exchange.respond(answer)

    async def _events(self, recording: Recording) -> AsyncIterator[bytes]:
        """Yield each segment when it is there, as server-sent events."""
        text = ""
        try:
            async for final in recording.finals:
                delta = self._document([final])["text"]
                delta = delta if text else delta.lstrip()
                text += delta
                yield _event({"type": "transcript.text.delta", "delta": delta})
            yield _event({"type": "transcript.text.done", "text": text})
        except EngineError as error:
            yield _event(_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), "engine"))

    def _document(self, events: Sequence[Final | Sound]) -> Any:  # noqa: ANN401 - openai-whisper's JSON
        return msgspec.json.decode(self.recordings.written(events, "json"))

    def _text(self, finals: Sequence[Final]) -> str:
        text: str = self._document(finals)["text"]
        return text.strip()

    def _verbose(
        self, asked: _FormFields, recording: Recording, events: Sequence[Final | Sound]
    ) -> dict[str, Any]:
        document = self._document(events)
        words = [word for segment in document["segments"] for word in segment.pop("words")]
        verbose = {
            "task": asked.task,
            "language": document["language"],
            "duration": recording.duration_ms / 1000,
            "text": document["text"].strip(),
            "usage": _usage(recording),
        }
        if "segment" in asked.timestamp_granularities:
            verbose["segments"] = document["segments"]
        if "word" in asked.timestamp_granularities:
            verbose["words"] = [
                {"word": each["word"].strip(), "start": each["start"], "end": each["end"]}
                for each in words
            ]
        if "sounds" in document:
            verbose["sounds"] = document["sounds"]
        return verbose

    def _diarized(
        self, asked: _FormFields, recording: Recording, finals: Sequence[Final]
    ) -> dict[str, Any]:
        parts = [part for final in finals for part in by_speaker(final)]
        segments = [
            {
                "type": "transcript.text.segment",
                "id": f"seg_{i:03}",
                "start": part.start,
                "end": part.end,
                "speaker": chr(ord("A") + (part.speaker or 1) - 1),
                "text": part.text,
            }
            for i, part in enumerate(parts)
        ]
        return {
            "task": asked.task,
            "duration": recording.duration_ms / 1000,
            "text": self._text(finals),
            "segments": segments,
            "usage": _usage(recording),
        }


class _Form:
    """The parts of a form: the file, whose contents go into `file`, and the fields."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.name = ""
        """What the client calls the file; empty before it comes."""
        self._values: dict[str, list[str]] = {}
        self._part = ""
        self._value = bytearray()

    def take(self, part: MultipartSegment | bytes | bytearray | None) -> None:
        """Take the next event of the parser; raises `WireError`, or `OSError` of the file."""
        if isinstance(part, MultipartSegment):
            self._begin(part)
        elif part is None:
            if self._value:
                text = self._value.decode(errors="replace")
                self._values.setdefault(self._part.removesuffix("[]"), []).append(text)
        elif self._part == "file":
            self.file.write(part)
        else:
            self._value += part
            if len(self._value) > _MAX_FIELD_BYTES:
                raise WireError("bad_form", f"{self._part} has more than {_MAX_FIELD_BYTES} bytes")

    def _begin(self, part: MultipartSegment) -> None:
        self._part, self._value = part.name or "", bytearray()
        if self._part == "file":
            if self.name:
                raise WireError("bad_form", "send one recording in: file")
            self.name = printable((part.filename or "")[:100]).strip() or UNNAMED

    def asked(self, task: Task) -> _FormFields:
        """Return what the fields ask for; raises `WireError`."""
        if not self.name:
            raise WireError("bad_form", "the form has no recording: send it in: file")
        given: dict[str, Any] = {name: values[-1] for name, values in self._values.items()}
        if "timestamp_granularities" in given:
            given["timestamp_granularities"] = self._values["timestamp_granularities"]
        try:
            return msgspec.convert({**given, "task": task}, _FormFields, strict=False)
        except msgspec.ValidationError as error:
            raise WireError("bad_form", naming_field(error, _FormFields)) from error


def failure(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that OpenAI's clients raise as an error of their own."""
    return in_json(status, _error(status, message, code), headers)


def _error(status: int, message: str, code: str | None) -> dict[str, Any]:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def as_failure(answer: Response) -> Response:
    """Return a refusal in plain text as OpenAI's clients expect it."""
    names = ("Retry-After", "WWW-Authenticate", "Allow")
    kept = {name: answer.headers[name] for name in names if name in answer.headers}
    return failure(answer.status_code, (answer.body or b"").decode().strip(), None, kept)


def warn(answer: Response, recording: Recording) -> None:
    """Add a header for each warning: transcripts in most formats have no place for them."""
    for text in recording.warnings:
        value = printable(text).encode("ascii", "replace").decode()
        answer.headers["X-Streamd-Warning"] = value.strip()


def _usage(recording: Recording) -> dict[str, object]:
    return {"type": "duration", "seconds": ceil(recording.duration_ms / 1000)}


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _in_text(text: str) -> Response:
    return respond(HTTPStatus.OK, text.encode(), {"Content-Type": "text/plain; charset=utf-8"})


def printable(text: str) -> str:
    """Return a text of a client without what commands a terminal, such as one with the log."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
