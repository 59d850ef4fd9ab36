"""Deepgram's REST interface for recordings: the recording is the body, the options the query."""

import asyncio
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import IO

import msgspec
from websockets.http11 import Request

from streamd.errors import WireError
from streamd.events import Final, TimedWord
from streamd.labels import by_speaker
from streamd.server.dialects.dialect import start_for
from streamd.server.dialects.results import confidence, listed
from streamd.server.exchange import Exchange, in_json
from streamd.server.rest import UNNAMED, Recording, Rest, Wanted, warn
from streamd.server.wire import parse_query

_PIECE = 1 << 20


class RecordingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the query asks for; other fields are ignored."""

    model: str = ""
    language: str | None = None
    detect_language: bool = False
    keyterm: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    diarize: bool = False
    diarize_model: str = ""  # asks for it, too
    utterances: bool = False
    callback: str = ""

    @property
    def wanted(self) -> Wanted:
        """How the recording is to be transcribed."""
        terms = (*self.keyterm, *(word.partition(":")[0] for word in self.keywords))
        tag = "multi" if self.detect_language else self.language
        start = start_for(16_000, tags=[tag], terms=terms)
        speakers = self.diarize or bool(self.diarize_model)
        return Wanted(
            task="transcribe",
            model=self.model,
            language=start.language,
            hotwords=start.hotwords,
            speakers=speakers,
        )


def asked(query: str, content_type: str) -> RecordingRequest:
    """Return what is asked for; raises `WireError` with `bad_form` if it cannot be done."""
    wanted = parse_query(query, RecordingRequest, "bad_form")
    if wanted.callback:
        raise WireError("bad_form", "callback: the transcript is in the response only")
    if content_type.partition(";")[0].strip() == "application/json":
        raise WireError("bad_form", "addresses are not fetched: send the recording itself")
    return wanted


def document(
    wants: RecordingRequest,
    recording: Recording,
    finals: Sequence[Final],
    *,
    file: IO[bytes],
) -> Mapping[str, object]:
    """Return the response to a recording of which these are all the finals."""
    model = recording.model
    words = [word for final in finals for word in final.words]
    best = {"transcript": " ".join(final.text for final in finals)} | _facts(words)
    channel: dict[str, object] = {"alternatives": [best]}
    if finals and finals[0].language:
        channel["detected_language"] = finals[0].language
    results: dict[str, object] = {"channels": [channel]}
    if wants.utterances:
        results["utterances"] = [part for final in finals for part in _utterances(final)]
    return {
        "metadata": {
            "transaction_key": "deprecated",
            "request_id": secrets.token_hex(16),
            "sha256": _sha256(file),
            "created": datetime.now(UTC),
            "duration": recording.duration_ms / 1000,
            "channels": 1,
            "models": [model],
            "model_info": {model: {"name": model, "version": "1", "arch": "whisper"}},
        },
        "results": results,
    }


def _facts(words: Iterable[TimedWord]) -> dict[str, object]:
    words = tuple(words)
    listed_words = [listed(word, tells_speaker=True) for word in words]
    return {"confidence": confidence(words), "words": listed_words}


def _utterances(final: Final) -> Iterable[Mapping[str, object]]:
    for part in by_speaker(final):
        yield {
            "id": secrets.token_hex(16),
            "channel": 0,
            "start": part.words[0].start if part.words else part.start,
            "end": part.words[-1].end if part.words else part.end,
            "transcript": part.text,
            **({"speaker": part.speaker - 1} if part.speaker else {}),
            **_facts(part.words),
        }


def _sha256(file: IO[bytes]) -> str:
    file.seek(0)
    found = hashlib.sha256()
    while piece := file.read(_PIECE):
        found.update(piece)
    return found.hexdigest()


async def answer(rest: Rest, request: Request, exchange: Exchange) -> None:
    """Receive a recording, and send its transcript or what is wrong with the request."""
    query, headers = request.path.partition("?")[2], request.headers
    async with rest.received(exchange) as file:
        wants = asked(query, "".join(headers.get_all("Content-Type")))
        async for data in rest.body(headers, exchange):
            file.write(data)
        await exchange.unless_gone(_transcribe(rest, wants, file, exchange))


async def _transcribe(
    rest: Rest, wants: RecordingRequest, file: IO[bytes], exchange: Exchange
) -> None:
    async with rest.read(file, UNNAMED, wants.wanted, exchange) as recording:
        finals = [final async for final in recording.finals]
        # It reads the file once more.
        told = await asyncio.to_thread(document, wants, recording, finals, file=file)
        response = in_json(HTTPStatus.OK, told)
        warn(response, recording)
        await exchange.respond(response)
