"""Transcripts of sessions as files: ``GET /v1/sessions/NAME/transcript?format=srt``."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from websockets.http11 import Response

from streamd.errors import ConfigError, WireError, for_clients
from streamd.events import Final, Missed, Note, SessionEvent
from streamd.labels import name_from
from streamd.server.exchange import plain, respond
from streamd.server.wire import Correct, Name, decoded, parse_query
from streamd.streams import Streams
from streamd.streams.hub import Hub
from streamd.streams.journal.journals import JournalError

TYPES: Mapping[str, str] = {
    "txt": "text/plain; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "edl": "text/plain; charset=utf-8",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "eaf": "application/xml",
}
"""The formats, with their content types."""
_NAME = re.compile(r"([1-9][0-9]{0,3}):(.{0,100})", re.DOTALL)
_AT_ONCE = 100
"""Finals that are read before others have their turn."""

_decoder: msgspec.json.Decoder[Correct | Name] = msgspec.json.Decoder(Correct | Name)
_log = logging.getLogger(__name__)

WriteTranscript = Callable[[Sequence[SessionEvent], str, Mapping[int, str], str], bytes]
"""Returns a file of a session's events, in a format, with the names of speakers, by number, and a
title. Raises `ConfigError` without the library that the format needs."""


class _TranscriptQuery(Struct, frozen=True, kw_only=True):
    """The query: a format, and what speakers are called (``1:Ana``)."""

    format: str = ""
    name: tuple[str, ...] = ()

    def checked(self) -> tuple[str, Mapping[int, str]]:
        """Return the format, and the names by number; raises `WireError`."""
        if self.format not in TYPES:
            raise WireError("bad_query", f"format must be one of: {', '.join(TYPES)}")
        found = [_NAME.fullmatch(each) for each in self.name]
        if None in found:
            raise WireError(
                "bad_query",
                "name must be a number and a name of up to 100 characters, such as 1:Ana",
            )
        return self.format, {int(each[1]): each[2] for each in found if each}


class Transcripts:
    """Answers requests for the transcripts of sessions, one after the other."""

    def __init__(self, sessions: Streams, write: WriteTranscript) -> None:
        self._sessions, self._write = sessions, write
        self._turn = asyncio.Lock()
        # One thread of its own: what a client no longer waits for is written to its end, and must
        # neither run beside the next nor keep others from asyncio's threads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transcript")

    def close(self) -> None:
        """Begin no further transcript."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, session: str, query: str) -> Response:
        """Return the transcript so far, or what is wrong with the request."""
        try:
            form, names = parse_query(query, _TranscriptQuery).checked()
            async with self._turn:
                await self._sessions.prepare(session)
                events = await self._events(session)
                if events is None:
                    return plain(404, f"there is no session {session!r}")
                # In a thread, so that live captions do not wait: a long one takes seconds.
                text = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._write, events, form, names, session
                )
        except ConfigError as error:
            return plain(501, str(error))
        except JournalError as error:
            _log.error("the transcript of session %s: %s", session, error)
            return _later(for_clients("what was said cannot be read", error))
        except WireError as error:
            return _later(str(error)) if error.code == "slow" else plain(400, str(error))
        headers = file_headers(f"{session}.{form}", form)
        if lost := [event for event in events if isinstance(event, Missed)]:
            n = sum(event.to_seq - event.from_seq + 1 for event in lost)
            headers["X-Streamd-Warning"] = f"{n} finals are no longer stored"
        return respond(200, text, headers)

    async def correct(self, session: str, data: bytes) -> Response:
        """Take a `Correct` or `Name` of a session that has ended; others come over a websocket."""
        try:
            wanted = decoded(data, _decoder, "correct or name")
            await self._sessions.prepare(session)
            if (hub := self._sessions.hub(session)) is None:
                return plain(404, f"there is no session {session!r}")
            if not hub.closed:
                return plain(409, "it has not ended: correct it over the websocket")
            hub.amend(_note(wanted, hub))
        except (WireError, ValueError) as error:
            return plain(400, str(error))
        except JournalError as error:
            _log.error("the correction of session %s: %s", session, error)
            return _later(for_clients("the correction cannot be stored", error))
        return respond(204, b"", {})

    async def _events(self, session: str) -> list[SessionEvent] | None:
        """Return the finals that are stored, and what revises them; None: no such session."""
        if (hub := self._sessions.hub(session)) is None:
            return None
        events: list[SessionEvent] = []
        with hub.subscribe(0, partials=False, listens=False) as stored:
            while stored.more and (event := stored.pop()) is not None:
                events.append(event)
                if len(events) % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return events


def _note(wanted: Correct | Name, hub: Hub) -> Note:
    """Return what is added to a session. Raises `WireError` or `ValueError` if it cannot be."""
    if isinstance(wanted, Name):
        return replace(wanted.naming, name=name_from(wanted.name))
    if wanted.first > wanted.last or wanted.last >= _n_words(hub, wanted.seq):
        raise WireError("bad_option", f"correct: final {wanted.seq} has no such words")
    return wanted.correction


def _n_words(hub: Hub, seq: int) -> int:
    """Return how many words a final has; 0 if it is not stored."""
    if not 0 < seq <= hub.seq:
        return 0
    with hub.subscribe(seq - 1, partials=False, listens=False) as stored:
        while stored.more and (event := stored.pop()) is not None:
            if isinstance(event, Final):
                return len(event.words) if event.seq == seq else 0
    return 0


def file_headers(name: str, form: str) -> dict[str, str]:
    """Return the headers of an answer that is a file, whose name has no quotes."""
    return {
        "Content-Type": TYPES[form],
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


def _later(why: str) -> Response:
    return plain(503, why, {"Retry-After": "10"})
