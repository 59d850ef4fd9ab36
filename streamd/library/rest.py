"""The library over HTTP (``/v1/library/...``): for its page, and for programs.

docs/library-of-sessions.md describes it.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, BinaryIO
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from websockets.http11 import Request, Response

from streamd.errors import ConfigError, WireError, for_clients
from streamd.events import Edit
from streamd.library.edits import Edits
from streamd.library.files import replaced_list, transcript_file
from streamd.library.jobs_rest import JobsRest
from streamd.library.listeners import Listeners
from streamd.library.shelf import (
    MOST_NUMBER,
    Kept,
    OvertakenEditError,
    Shelf,
    UnreadableQueryError,
    sought,
)
from streamd.server.exchange import READ_BYTES, Exchange, in_json, in_parts, plain, respond
from streamd.server.rest import STATUS
from streamd.server.routes import LIBRARY_PATH, is_upload_to_library
from streamd.server.transcripts import WriteTranscript
from streamd.server.wire import decoded, parse_query
from streamd.streams.journal.journals import JournalError

_MAX_BODY_BYTES = 1 << 20
"""The edits that undo the merge of two speakers in hours of talk."""
_MOST = 200
"""Sessions or sentences in an answer, unless the client asks for fewer."""
_PART_BYTES = 4 << 20
"""Audio in an answer to a request for a range; players ask for the rest when they need it."""
_AUDIO_PATH = f"{LIBRARY_PATH}/audio/"
_RANGE = re.compile(r"bytes=([0-9]{0,999})-([0-9]{0,999})")
_TYPES: Mapping[str, str] = {".opus": "audio/ogg", ".flac": "audio/flac", ".wav": "audio/wav"}

_log = logging.getLogger(__name__)


class _LibraryQuery(Struct, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=1000)] = ""
    limit: Annotated[int, Meta(ge=1, le=_MOST)] = _MOST
    before: Annotated[int, Meta(ge=0, le=MOST_NUMBER)] = 0
    after: Annotated[int, Meta(ge=0, le=MOST_NUMBER)] = 0
    ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 120_000
    format: str = ""
    anonymous: bool = False


_edits_decoder = msgspec.json.Decoder(Edits)


class LibraryRest:
    """Answers requests for the sessions of a library, one after the other, in a thread.

    `live` are those who hear of edits in sessions that go on; without `files` nobody can send any.
    """

    def __init__(
        self,
        shelf: Shelf,
        write: WriteTranscript,
        live: Listeners,
        files: JobsRest | None = None,
    ) -> None:
        self._shelf, self._write, self._live, self._files = shelf, write, live, files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="library")

    def close(self) -> None:
        """Begin no further answer."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer a request that was allowed."""
        if self._files is not None and is_upload_to_library(exchange.method, request.path):
            await self._files.receive(exchange, request)
            return
        try:
            body = await exchange.whole_body(_MAX_BODY_BYTES)
        except WireError as error:
            await exchange.respond(plain(STATUS[error.code], str(error)))
            return
        method, (path, *_) = exchange.method, request.path.split("?")
        method = "GET" if method == "HEAD" else method
        if method == "GET" and path.startswith(_AUDIO_PATH):
            await self._send_sound(exchange, request, unquote(path.removeprefix(_AUDIO_PATH)))
            return
        work = partial(self._answer, method, request, body)
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        if exchange.method == "HEAD":
            answer.body = b""
        await exchange.respond(answer, in_parts(bytes(answer.body or b"")))

    def _answer(self, method: str, request: Request, body: bytes) -> Response:
        path, _, query = request.path.partition("?")
        try:
            asked = parse_query(query, _LibraryQuery)
            return self._route(method, path.removeprefix(f"{LIBRARY_PATH}/"), asked, body)
        except OvertakenEditError as error:
            return in_json(409, {"error": str(error), "revision": error.revision})
        except (UnreadableQueryError, WireError) as error:
            return plain(400, str(error))
        except ConfigError as error:
            return plain(404, str(error))
        except JournalError as error:
            _log.error("the library: %s", error)
            return plain(503, for_clients("the library cannot be read or written", error))

    def _route(self, method: str, path: str, asked: _LibraryQuery, body: bytes) -> Response:
        match method, *path.rstrip("/").split("/", 2):
            case "GET", ("sessions" | "search" | "now") as kind:
                return in_json(200, self._listed(kind, asked))
            case _, "uploads", *number if self._files is not None:
                return self._files.answer(method, "/".join(number))
            case "GET", "uploads", *_:
                return in_json(200, {"uploads": None})  # nobody can send any
            case _, "sessions", number, *part if number.isdecimal() and len(number) <= 18:
                return self._of_session(method, int(number), "".join(part), asked, body)
        return plain(404, "not found: docs/protocol.md lists what the library answers")

    def _listed(self, kind: str, asked: _LibraryQuery) -> dict[str, Any]:
        match kind:
            case "search":
                return {"hits": self._shelf.search(sought(asked.q), asked.limit)}
            case "now":
                return {"said": self._shelf.now(asked.ms)}
        listed = self._shelf.sessions(asked.limit, before=asked.before)
        return {"sessions": [replace(each, is_live=self._is_live(each)) for each in listed]}

    def _is_live(self, kept: Kept) -> bool:
        return kept.is_open and self._live.is_live(self._shelf.run(kept.id))

    def _of_session(
        self, method: str, number: int, part: str, asked: _LibraryQuery, body: bytes
    ) -> Response:
        match method, part:
            case "GET", "":
                return in_json(200, self._whole(number, asked.after))
            case "GET", "transcript":
                form, is_anonymous = asked.format, asked.anonymous
                return transcript_file(
                    self._shelf, self._write, number, form, anonymous=is_anonymous
                )
            case "GET", "replaced":
                return replaced_list(self._shelf, number)
            case "DELETE", "":
                return self._delete(number)
            case "POST", "edits":
                return self._edit(number, decoded(body, _edits_decoder, "edits"))
        return plain(405, "the methods here are: GET, DELETE; POST edits")

    def _delete(self, number: int) -> Response:
        run = self._shelf.run(number)
        # What is said next, or the end of the file, would write the session again.
        if self._live.is_live(run):
            return plain(409, "it goes on: end it first")
        if self._live.is_transcribed(run):
            return plain(409, "it is being transcribed: wait, or remove its file from the list")
        self._shelf.delete(number)
        return respond(204, b"", {})

    def _edit(self, number: int, edits: Edits) -> Response:
        run, edited = self._shelf.run(number), self._shelf.edit(number, edits)
        self._live.tell(run, edited.notes)
        try:
            for phrase in edited.learned:
                self._live.learn(phrase)
        except (ConfigError, ValueError) as error:
            _log.warning("keep: %s", error)
        return in_json(201, {"revision": edited.revision, "undo": edited.undo})

    def _whole(self, number: int, after: int) -> dict[str, Any]:
        run, rows = self._shelf.run(number), [*self._shelf.rows(number, after)]
        before = self._shelf.n_edits(number, after) if after else 0
        return {
            "id": number,
            "name": run.session,
            "epoch": run.epoch,
            "started": run.started,
            "duration_ms": run.end_ms,
            "is_live": self._live.is_live(run),
            "is_over": bool(run.ended),
            "names": {str(key): name for key, name in self._shelf.names(number).items()},
            "sounds": self._shelf.sounds(number),
            "texts": self._shelf.texts(number),
            "revision": before + sum(isinstance(event, Edit) for _, event in rows),
            "last": rows[-1][0] if rows else after,
            "events": [event for _, event in rows],
        }

    async def _send_sound(self, exchange: Exchange, request: Request, name: str) -> None:
        path = self._shelf.sound(name)
        # `Path.is_file` raises for a name that is too long.
        if not os.path.isfile(path):  # noqa: ASYNC240 - as quick as to open it, which follows
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
