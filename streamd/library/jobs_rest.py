"""Files for the library over HTTP: they are received, listed with their progress, and removed."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, convert
from msgspec.structs import replace
from websockets.http11 import Request, Response

from streamd.errors import WireError, for_clients
from streamd.library.file_queue import FileQueue
from streamd.library.jobs import QueuedFile
from streamd.server.exchange import Exchange, in_json, plain, respond
from streamd.server.rest import STATUS, Task, Wanted, printable
from streamd.server.wire import parse_query
from streamd.streams.journal.journals import JournalError
from streamd.system.disk import is_nearly_full

_log = logging.getLogger(__name__)


class _Sent(Wanted, frozen=True, kw_only=True):
    """What a client says of a file that it sends."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    task: Task = "transcribe"
    key: Annotated[str, Meta(pattern=r"^([0-9a-f]{16,32})?\Z")] = ""


class JobsRest:
    """Answers requests for the files of a `queue`, which may be as large as the disk allows."""

    def __init__(self, queue: FileQueue) -> None:
        self._queue = queue

    async def receive(self, exchange: Exchange, request: Request) -> None:
        """Receive a file, whose name and wishes are in the query, and put it into the queue."""
        try:
            sent = parse_query(request.path.partition("?")[2], _Sent, "bad_form")
            wanted = convert(sent, Wanted, from_attributes=True)
            await self._queue.recordings.check(wanted)
            received = await self._received(exchange)
            name = printable(sent.name)
            number = await asyncio.to_thread(self._queue.jobs.add, received, name, wanted, sent.key)
        except WireError as error:
            exchange.fault = error
        except (JournalError, OSError) as error:
            _log.error("%s cannot be kept: %s", printable(sent.name), error)
            exchange.fault = WireError("storage", for_clients("the file cannot be kept", error))
        if exchange.fault is not None:
            await exchange.respond(plain(STATUS[exchange.fault.code], str(exchange.fault)))
            return
        _log.info("recording %s begun by %s, for the library", name, exchange.client)
        self._queue.wake()
        await exchange.respond(in_json(201, {"id": number}))

    async def _received(self, exchange: Exchange) -> Path:
        path = await asyncio.to_thread(self._queue.jobs.new_file)
        try:
            with path.open("xb") as file:
                path.chmod(0o600)
                async for part in exchange.body():
                    if is_nearly_full(path.parent):
                        raise WireError("storage", "the disk of the library is nearly full")
                    await asyncio.to_thread(file.write, part)
            if not path.stat().st_size:
                raise WireError("bad_form", "the file is empty")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def answer(self, method: str, number: str) -> Response:
        """List the files, or remove one from the queue, or try one again; may block."""
        jobs = self._queue.jobs
        if not number and method == "GET":
            return in_json(200, {"uploads": [self._shown(job) for job in jobs.listed()]})
        job = next((each for each in jobs.listed() if str(each.id) == number), None)
        if job is None:
            return plain(404, f"no file number {number} is in the queue")
        if method == "DELETE":
            if (now := self._queue.now) is not None and now[0] == job.id:
                self._queue.cancel(job.id)  # which removes it
            else:
                jobs.forget_session(job)
                jobs.remove(job)
            return respond(204, b"", {})
        if method == "POST" and job.state == "failed":
            jobs.change(replace(job, state="waiting", error=""))
            self._queue.wake()
            return respond(204, b"", {})
        return plain(405, "the methods here are: GET; DELETE; POST to try a failed one again")

    def _shown(self, job: QueuedFile) -> dict[str, Any]:
        number, *progress = self._queue.now or (0, 0, 0)
        reached_ms, duration_ms = progress if number == job.id else (0, 0)
        return {
            "id": job.id,
            "name": job.name,
            "size": job.size,
            "state": job.state,
            "error": job.error,
            "session": self._queue.jobs.session(job) if job.state != "waiting" else 0,
            "reached_ms": reached_ms,
            "duration_ms": duration_ms,
        }
