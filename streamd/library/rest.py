"""The library over HTTP (``/v1/library/...``, docs/protocol.md): for its page, and for programs."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, BinaryIO
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Meta, Struct
from websockets.http11 import Request, Response

from streamd.errors import ConfigError, WireError, for_clients
from streamd.events import Correction
from streamd.library.files import replaced_list, transcript_file
from streamd.library.shelf import OvertakenCorrectionError, Shelf, UnreadableQueryError, sought
from streamd.server.exchange import READ_BYTES, Exchange, in_json, in_parts, plain, respond
from streamd.server.routes import LIBRARY_PATH
from streamd.server.transcripts import WriteTranscript
from streamd.server.wire import decoded, naming_field
from streamd.streams.journal.journals import JournalError

_MAX_BODY_BYTES = 16_384
_MOST = 200
"""Sessions or sentences in an answer, unless the client asks for fewer."""
_MOST_NUMBER = 2**63 - 1
"""That SQLite has."""
_PART_BYTES = 4 << 20
"""Audio in an answer to a request for a range; players ask for the rest when they need it."""
_AUDIO_PATH = f"{LIBRARY_PATH}/audio/"
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_TYPES: Mapping[str, str] = {".opus": "audio/ogg", ".flac": "audio/flac", ".wav": "audio/wav"}

_log = logging.getLogger(__name__)


class _LibraryQuery(Struct, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=1000)] = ""
    limit: Annotated[int, Meta(ge=1, le=_MOST)] = _MOST
    before: Annotated[int, Meta(ge=0, le=_MOST_NUMBER)] = 0
    ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 120_000
    format: str = ""
    anonymous: bool = False


class Amendment(Struct, frozen=True, kw_only=True):
    """What was said, in place of words of a final: see `Correction`.

    `revision` is that of the session which the client has seen.
    """

    text: Annotated[str, Meta(max_length=1000)]
    seq: Annotated[int, Meta(ge=1)]
    first: Annotated[int, Meta(ge=0)]
    last: Annotated[int, Meta(ge=0)]
    revision: Annotated[int, Meta(ge=0)]


Names = dict[Annotated[int, Meta(ge=1, le=9_999)], Annotated[str, Meta(max_length=100)]]

_names_decoder: msgspec.json.Decoder[Names] = msgspec.json.Decoder(Names, strict=False)
_amendment_decoder = msgspec.json.Decoder(Amendment)


class LibraryRest:
    """Answers requests for the sessions of a library, one after the other, in a thread."""

    def __init__(self, shelf: Shelf, write: WriteTranscript) -> None:
        self._shelf, self._write = shelf, write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="library")

    def close(self) -> None:
        """Begin no further answer."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer a request that was allowed."""
        body = b""
        async for part in exchange.body():
            body += part
            if len(body) > _MAX_BODY_BYTES:
                await exchange.respond(plain(413, f"send at most {_MAX_BODY_BYTES} bytes"))
                return
        is_get, (path, *_) = exchange.method in ("GET", "HEAD"), request.path.split("?")
        if is_get and path.startswith(_AUDIO_PATH):
            await self._send_sound(exchange, request, unquote(path.removeprefix(_AUDIO_PATH)))
            return
        work = partial(self._answer, exchange.method, request, body)
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        if exchange.method == "HEAD":
            answer.body = b""
        await exchange.respond(answer, in_parts(bytes(answer.body or b"")))

    def _answer(self, method: str, request: Request, body: bytes) -> Response:
        path, _, query = request.path.partition("?")
        try:
            asked = msgspec.convert(dict(parse_qsl(query)), _LibraryQuery, strict=False)
            return self._route(method, path.removeprefix(f"{LIBRARY_PATH}/"), asked, body)
        except OvertakenCorrectionError as error:
            return in_json(409, {"error": str(error), "revision": error.revision})
        except (UnreadableQueryError, WireError) as error:
            return plain(400, str(error))
        except ConfigError as error:
            return plain(404, str(error))
        except msgspec.ValidationError as error:
            return plain(400, naming_field(error, _LibraryQuery))
        except JournalError as error:
            _log.error("the library: %s", error)
            return plain(503, for_clients("the library cannot be read or written", error))

    def _route(self, method: str, path: str, asked: _LibraryQuery, body: bytes) -> Response:
        kind, _, rest = path.partition("/")
        is_get = method in ("GET", "HEAD")
        if is_get and not rest and (read := self._lists().get(kind)):
            return read(asked)
        number, _, part = rest.partition("/")
        if kind != "sessions" or not number.isdecimal() or len(number) > 18:
            return plain(404, "not found: docs/protocol.md lists what the library answers")
        if is_get and part == "transcript":
            return transcript_file(
                self._shelf, self._write, int(number), asked.format, anonymous=asked.anonymous
            )
        return self._of_session(method, int(number), part, body)

    def _lists(self) -> Mapping[str, Callable[[_LibraryQuery], Response]]:
        shelf = self._shelf
        return {
            "sessions": lambda asked: in_json(
                200, {"sessions": shelf.sessions(asked.limit, before=asked.before)}
            ),
            "search": lambda asked: in_json(
                200, {"hits": shelf.search(sought(asked.q), asked.limit)}
            ),
            "now": lambda asked: in_json(200, {"said": shelf.now(asked.ms)}),
        }

    def _of_session(self, method: str, number: int, part: str, body: bytes) -> Response:
        shelf = self._shelf
        match method, part:
            case (("GET" | "HEAD"), ""):
                return in_json(200, self._whole(number))
            case "DELETE", "":
                shelf.run(number)
                shelf.delete(number)
                return respond(204, b"", {})
            case "PUT", "names":
                shelf.run(number)
                for speaker, name in decoded(body, _names_decoder, "names").items():
                    shelf.rename(number, speaker, name)
                return in_json(200, {"names": shelf.names(number)})
            case "POST", "corrections":
                wanted = decoded(body, _amendment_decoder, "a correction")
                correction = msgspec.convert(wanted, Correction, from_attributes=True)
                revision = shelf.correct(number, correction, wanted.revision)
                return in_json(201, {"revision": revision})
            case (("GET" | "HEAD"), "replaced"):
                return replaced_list(shelf, number)
        return plain(405, "the methods here are: GET, DELETE; PUT names; POST corrections")

    def _whole(self, number: int) -> dict[str, Any]:
        run, events = self._shelf.run(number), [*self._shelf.events(number)]
        return {
            "id": number,
            "name": run.session,
            "epoch": run.epoch,
            "started": run.started,
            "duration_ms": run.end_ms,
            "names": {str(key): name for key, name in self._shelf.names(number).items()},
            "sounds": self._shelf.sounds(number),
            "revision": sum(isinstance(event, Correction) for event in events),
            "events": events,
        }

    async def _send_sound(self, exchange: Exchange, request: Request, name: str) -> None:
        path = self._shelf.sound(name)
        if not path.is_file():
            await exchange.respond(plain(404, f"the library has no audio {name}"))
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = _range(request, size)
            if wanted is not None and wanted.start >= size:
                answer = respond(416, b"", {"Content-Range": f"bytes */{size}"})
                await exchange.respond(answer)
                return
            part = range(size) if wanted is None else wanted[:_PART_BYTES]
            headers = {
                "Content-Type": _TYPES.get(path.suffix, "application/octet-stream"),
                "Content-Length": str(len(part)),
                "Accept-Ranges": "bytes",
                "Cache-Control": "no-store",
            }
            if wanted is not None:
                headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
            answer = respond(200 if wanted is None else 206, b"", headers)
            sent = part if exchange.method == "GET" else range(0)
            await exchange.respond(answer, _read(file, sent))


async def _read(file: BinaryIO, part: range) -> AsyncIterator[bytes]:
    file.seek(part.start)
    for first in range(0, len(part), READ_BYTES):
        yield await asyncio.to_thread(file.read, min(READ_BYTES, len(part) - first))


def _range(request: Request, size: int) -> range | None:
    """Return the bytes that are wanted; None for all, also where nobody can say which they are.

    ``If-Range`` has a version of the file, of which there is none (RFC 9110, 13.1.5 and 14.2).
    """
    found = _RANGE.fullmatch("".join(request.headers.get_all("Range")))
    if found is None or not (found[1] or found[2]) or "If-Range" in request.headers:
        return None
    if not found[1]:
        return range(max(0, size - int(found[2])), size)
    start, last = int(found[1]), int(found[2] or size)
    return None if last < start and found[2] else range(start, min(last + 1, size))
