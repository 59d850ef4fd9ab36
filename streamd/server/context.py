"""Words from a client's document: ``POST /v1/context?name=talk.pdf`` with the file as the body."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Annotated

from msgspec import Meta, Struct
from websockets.http11 import Request

from streamd.documents import DocumentError
from streamd.errors import WireError
from streamd.server.exchange import Exchange, in_json
from streamd.server.rest import Rest
from streamd.server.wire import parse_query
from streamd.system.calls import in_thread
from streamd.whisper.terms import Term

CONTEXT_PATH = "/v1/context"

ReadWords = Callable[[IO[bytes], str], Sequence[Term]]
"""Returns the words to expect from a document of that name; raises `DocumentError`."""


class _ContextQuery(Struct, frozen=True, kw_only=True):
    """The query: what the document is called, of which the end says what it is."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class DocumentTurns:
    """Reads documents one after the other, in a thread that the end of the program leaves alone.

    It is none of asyncio's: reading may take a minute, even if nobody waits for it any more, and
    sound and journals need those.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def words(self, read: ReadWords, file: IO[bytes], name: str) -> Sequence[Term]:
        """Return what `read` does, or raise it."""
        await self._turn.acquire()
        reading = asyncio.wrap_future(in_thread(partial(read, file, name)))
        reading.add_done_callback(self._end_turn)
        return await asyncio.shield(reading)

    def _end_turn(self, done: asyncio.Future[Sequence[Term]]) -> None:
        self._turn.release()
        if not done.cancelled():
            done.exception()  # asyncio reports those that nobody has looked at


async def answer(
    rest: Rest, read: ReadWords, request: Request, exchange: Exchange, *, turns: DocumentTurns
) -> None:
    """Receive a document, and send its words, or what is wrong with it; nothing is kept."""
    async with rest.received(exchange) as file:
        query = parse_query(request.path.partition("?")[2], _ContextQuery, "bad_form")
        async for data in rest.body(request.headers, exchange):
            file.write(data)
        file.flush()
        try:
            found = await exchange.unless_gone(turns.words(read, file, query.name))
        except DocumentError as error:
            raise WireError("bad_form", str(error)) from error
        words = [
            {"text": term.text, "count": term.count, "name": term.is_name, "tokens": term.n_tokens}
            for term in found
        ]
        await exchange.respond(in_json(200, {"words": words}))
