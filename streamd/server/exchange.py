"""HTTP besides websockets: responses, and requests with a body, which the library cannot parse."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from time import monotonic
from typing import Any, TypeVar

import h11
import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from streamd.errors import WireError

READ_BYTES = 65_536
MAX_HEAD_BYTES = 16_384
_LEAST_BYTES_PER_S = 8_000
"""What a modem of the nineties sends. A slower client would keep others out for hours."""

T = TypeVar("T")


class GoneError(Exception):
    """The client has closed the connection, or is too slow: there is nobody to answer."""


class BadRequestError(Exception):
    """The client sends something other than HTTP/1.1; it can still be answered."""


class Exchange:
    """A connection for one request: await `request`, read `body`, then answer.

    The client may take `deadline_s` for each part of the request, and for reading the response.
    Every method may raise `GoneError`, those that read `BadRequestError`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, deadline_s: float
    ) -> None:
        self._reader, self._writer, self._deadline_s = reader, writer, deadline_s
        self.method = self.client = ""
        """The client is named for the log."""
        self.fault: WireError | None = None
        """Why the request was refused, for the log."""
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    @property
    def may_respond(self) -> bool:
        """Whether there is a request without a response."""
        return self._http.our_state is h11.SEND_RESPONSE

    async def request(self) -> Request:
        """Return the path and the headers."""
        event = await self._next()
        if not isinstance(event, h11.Request):
            raise GoneError
        headers = Headers()
        try:
            for name, value in event.headers:
                headers[name.decode()] = value.decode("ascii")
        except UnicodeDecodeError:
            raise BadRequestError("a header is not ASCII") from None
        self.method = event.method.decode()
        return Request(event.target.decode(), headers)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body; raises `WireError` with `too_slow`."""
        n_bytes, begin_s = 0, monotonic()
        while isinstance(event := await self._next(), h11.Data):
            n_bytes += len(event.data)
            if monotonic() - begin_s > self._deadline_s + n_bytes / _LEAST_BYTES_PER_S:
                least = f"send at least {_LEAST_BYTES_PER_S} bytes a second"
                raise WireError("too_slow", f"the body comes too slowly: {least}")
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise GoneError

    async def whole_body(self, most_bytes: int) -> bytes:
        """Return a small body; raises `WireError` with `too_large` or `too_slow`."""
        body = b""
        async for part in self.body():
            body += part
            if len(body) > most_bytes:
                raise WireError("too_large", f"send at most {most_bytes} bytes")
        return body

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, and cancel it if the client closes the connection; read the body first."""
        task, gone = asyncio.create_task(work), asyncio.create_task(self._gone())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise GoneError
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.wait({task, gone})

    async def respond(self, response: Response, parts: AsyncIterator[bytes] | None = None) -> None:
        """Send a response, or its head and then `parts` of a body without ``Content-Length``."""
        head = h11.Response(
            status_code=response.status_code,
            reason=response.reason_phrase.encode(),
            headers=[
                (name.encode(), value.encode()) for name, value in response.headers.raw_items()
            ],
        )
        await self._write(head)
        if parts is None:
            await self._write(h11.Data(data=bytes(response.body or b"")))
        else:
            async for part in parts:
                await self._write(h11.Data(data=part))
        await self._write(h11.EndOfMessage())

    async def close(self) -> None:
        """Close the connection when the client has read the response, or after the deadline.

        What the client still sends is read and ignored: otherwise the kernel would reset the
        connection, and the client would get no response to a request that was refused early.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                await self._gone()
        self._writer.transport.abort()

    async def _gone(self) -> None:
        with suppress(OSError):
            while await self._reader.read(READ_BYTES):
                pass

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                async with asyncio.timeout(self._deadline_s):
                    self._http.receive_data(await self._reader.read(READ_BYTES))
        except h11.RemoteProtocolError as error:
            raise BadRequestError(str(error)) from error
        except (OSError, TimeoutError) as error:
            raise GoneError from error
        return event

    async def _write(self, event: h11.Event) -> None:
        try:
            self._writer.write(self._http.send(event) or b"")
            async with asyncio.timeout(self._deadline_s):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise GoneError from error


async def in_parts(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in parts, each of which a client may take the deadline for."""
    for start in range(0, len(body), READ_BYTES):
        yield body[start : start + READ_BYTES]


def respond(status: int, body: bytes, headers: Mapping[str, str]) -> Response:
    """Return a response to a request that does not become a websocket."""
    connection = {"Date": formatdate(usegmt=True), "Connection": "close"}
    every = {**connection, "Content-Length": str(len(body)), **headers}
    return Response(status, HTTPStatus(status).phrase, Headers(every), body)


def plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of one line of text."""
    kind = {"Content-Type": "text/plain; charset=utf-8"}
    return respond(status, f"{text}\n".encode(), {**kind, **(headers or {})})


def in_json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response in JSON."""
    kind = {"Content-Type": "application/json"}
    return respond(status, msgspec.json.encode(value), {**kind, **(headers or {})})
