"""A session's transcript as a file."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import Sequence
from email.message import Message
from email.parser import HeaderParser
from io import StringIO

import pytest
import srt
import webvtt
from msgspec.structs import replace

from streamd.errors import WireError
from streamd.events import (
    Correction,
    Final,
    Gap,
    GapReason,
    SessionEvent,
    SpeakerTurn,
    SpeakerTurns,
)
from streamd.options import BindOptions
from streamd.server import Server, Transcripts, guest_token
from streamd.server.transcripts import TYPES
from streamd.sinks.whole import DOCUMENTS
from streamd.streams.hub import Hub
from streamd.streams.journal.journals import JournalError
from streamd.streams.subscription import Subscription
from tests.support.loop import turn, turns
from tests.support.said import spoken
from tests.support.serving import INFO, CountingStreams, serving
from tests.support.uploads import exchange


def by(speaker: int, final: Final) -> Final:
    words = tuple(replace(word, speaker=speaker) for word in final.words)
    return replace(final, words=words)


SAID = (by(1, spoken("Who is there?")), by(2, spoken("Anna Bottin.", start_ms=5000, seq=2)))


async def get(
    port: int, path: str, *headers: str, method: str = "GET", body: str = ""
) -> tuple[int, Message, str]:
    rows = (f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", "")
    status, head, content = await exchange(port, ("\r\n".join(rows) + body).encode())
    return status, HeaderParser().parsestr(head), content.decode()


async def transcript(server: Server, form: str, *, session: str = "live", more: str = "") -> str:
    path = f"/v1/sessions/{session}/transcript?format={form}{more}"
    status, headers, body = await get(server.port, path)
    assert status == 200
    assert headers["Content-Disposition"] == f'attachment; filename="{session}.{form}"'
    return body


@pytest.fixture
def streams() -> CountingStreams:
    made = CountingStreams()
    for final in SAID:
        made.live.publish(final)
    return made


async def test_each_format_has_all_that_was_said(streams, server):
    assert (await transcript(server, "txt")).splitlines() == [
        "Speaker 1: Who is there?",
        "Speaker 2: Anna Bottin.",
    ]
    cues = list(srt.parse(await transcript(server, "srt")))
    assert [cue.content for cue in cues] == [
        "Speaker 1: Who is there?",
        "Speaker 2: Anna Bottin.",
    ]
    captions = webvtt.from_buffer(StringIO(await transcript(server, "vtt")))
    assert [each.text for each in captions] == ["Who is there?", "Anna Bottin."]
    assert [each.voice for each in captions] == ["Speaker 1", "Speaker 2"]
    document = json.loads(await transcript(server, "json"))
    assert document["text"] == " Who is there? Anna Bottin."
    assert '<b dir="auto">Speaker 2</b>' in await transcript(server, "html")


async def test_it_has_what_was_corrected_and_who_it_was_after_all(streams, server):
    turn = SpeakerTurn(start_ms=4000, end_ms=9000, speaker=3)
    streams.live.publish(SpeakerTurns(start_ms=4000, end_ms=9000, turns=(turn,)))
    streams.live.publish(Correction(text="Ana", seq=2, first=0, last=0))
    streams.live.publish(Correction(text="Ana Botín", seq=2, first=0, last=1))
    streams.live.publish(Correction(text="nobody", seq=2, first=1, last=7))
    assert (await transcript(server, "txt")).splitlines() == [
        "Speaker 1: Who is there?",
        "Speaker 3: Ana Botín.",
    ]
    first, second = json.loads(await transcript(server, "json"))["segments"]
    assert "heard" not in first
    assert (second["text"], second["heard"]) == (" Ana Botín.", "Anna Bottin.")


async def post(server: Server, token: str, body: str = "", **fields: object) -> int:
    body = body or json.dumps({"type": "correct", "text": "Ana", "seq": 2, **fields})
    headers = f"Authorization: Bearer {token}", f"Content-Length: {len(body)}"
    path = "/v1/sessions/live/transcript"
    status, *_ = await get(server.port, path, *headers, method="POST", body=body)
    return status


async def test_after_the_end_its_owner_corrects_it(streams):
    bind = BindOptions(port=0, token="secret", listen_token="ears", share="speak")
    async with serving(streams, bind=bind) as server:
        assert await post(server, "secret") == 409  # it goes on
        streams.live.close("stop")
        for token, status in (("secret", 204), ("ears", 403), (guest_token("secret"), 403)):
            assert await post(server, token) == status
        for fields in ({"seq": 9}, {"first": 2}, {"last": 2}, {"text": ""}, {"seq": 0}):
            assert await post(server, "secret", **fields) == 400
        deep = '{"type":"correct","text":"a","x":' + "[" * 5000 + "]" * 5000 + "}"
        for body in ("{", deep):
            assert await post(server, "secret", body) == 400
        text = await transcript(server, "txt", more="&token=secret")
        assert text.splitlines()[1] == "Speaker 2: Ana Bottin."


async def test_lost_audio_is_not_marked_whether_it_was_published_or_not(streams, server):
    texts = TYPES.keys() - DOCUMENTS  # which tell when they were made
    before = {form: await transcript(server, form) for form in texts}
    streams.live.publish(Gap(t_ms=9000, duration_ms=40, why=GapReason.OVERRUN))
    assert {form: await transcript(server, form) for form in texts} == before


async def test_speakers_have_the_names_that_the_client_gives_them(streams):
    more = "&name=2:B%C3%A9a%20%7Bx%7D%20--%3E%20%3Ci%3E%26%0A&name=9:Nobody"
    async with serving(streams) as server:
        texts = {
            form: await transcript(server, form, more=more)
            for form in ("txt", "srt", "vtt", "html")
        }
    assert "Speaker 1: Who is there?\nBéa {x} --> <i>& : Anna" in texts["txt"]
    assert "\nBéa (x) -> <\u2060i>& : Anna" in texts["srt"]
    assert "\n<v Béa {x} --&gt; &lt;i&gt;& >Anna" in texts["vtt"].replace("&amp;", "&")
    assert ">Béa {x} --&gt; &lt;i&gt;&amp; </b>" in texts["html"]
    assert "Nobody" not in "".join(texts.values())


async def test_a_session_that_has_ended_is_still_there_until_the_server_forgets_it(streams, server):
    streams.live.close("stop")
    assert (await transcript(server, "txt")).count("\n") == 2
    status, _, body = await get(server.port, "/v1/sessions/gone/transcript?format=txt")
    assert (status, body) == (404, "there is no session 'gone'\n")


async def test_finals_that_are_no_longer_stored_are_counted(streams, server):
    streams.live = Hub("live", history=1)
    for final in (*SAID, SAID[0]):
        streams.live.publish(final)
    _, headers, body = await get(server.port, "/v1/sessions/live/transcript?format=txt")
    assert body == "Speaker 1: Who is there?\n"
    assert headers["X-Streamd-Warning"] == "2 finals are no longer stored"


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", "format must be one of: txt, md, srt, vtt, json, html, csv, edl, docx, eaf"),
        (
            "format=txt&format=doc",
            "format must be one of: txt, md, srt, vtt, json, html, csv, edl, docx, eaf",
        ),
        ("format=txt&name=Ana", "name must be a number and a name"),
        ("format=txt&name=1:" + 101 * "a", "name must be a number and a name"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(streams, query, problem, server):
    status, _, body = await get(server.port, f"/v1/sessions/live/transcript?{query}")
    assert status == 400
    assert body.startswith(problem)


async def test_a_bus_that_is_away_is_no_missing_session(streams, server):
    async def prepare(session: str) -> None:
        raise WireError("slow", "the bus is away: try again")

    streams.prepare = prepare
    status, headers, body = await get(server.port, "/v1/sessions/live/transcript?format=txt")
    assert (status, body) == (503, "the bus is away: try again\n")
    assert headers["Retry-After"] == "10"


@pytest.mark.parametrize("where", ["hub", "replay"])
async def test_a_journal_that_cannot_be_read_is_no_bug(streams, monkeypatch, where, caplog):
    error = JournalError("/srv/journal.db: cannot be read: Input/output error")

    def fail(*_: object, **__: object) -> Hub:
        raise error from OSError(errno.EIO, os.strerror(errno.EIO))

    if where == "hub":
        streams.hub = fail
    else:
        monkeypatch.setattr(Subscription, "pop", fail)
    async with serving(streams) as server:
        status, headers, body = await get(server.port, "/v1/sessions/live/transcript?format=txt")
    assert (status, headers["Retry-After"]) == (503, "10")
    assert body.startswith("what was said cannot be read")
    assert "/srv" not in body, "clients need not know the server's folders"
    assert f"the transcript of session live: {error}" in caplog.text


async def test_what_others_store_until_its_turn_is_in_it(streams):
    prepared: list[str] = []

    async def prepare(session: str) -> None:
        prepared.append(session)

    streams.prepare = prepare
    begun, may_end = threading.Event(), threading.Event()

    def write(events: Sequence[SessionEvent], *_: object) -> bytes:
        begun.set()
        may_end.wait()
        return f"{len(events)} finals".encode()

    transcripts = Transcripts(streams, write)
    try:
        first = asyncio.create_task(transcripts.answer("live", "format=txt"))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(transcripts.answer("live", "format=txt"))
        await turns(50)
        assert prepared == ["live"], "it would learn what is old when it is written"
        may_end.set()
        assert [(await each).body for each in (first, second)] == 2 * [b"2 finals"]
        assert prepared == ["live", "live"]
    finally:
        may_end.set()
        transcripts.close()


@pytest.mark.parametrize(
    "path", ["/v1/sessions/live", "/v1/sessions//transcript", "/v1/sessions/a/b/transcript"]
)
async def test_no_other_path_is_a_transcript(streams, path, server):
    assert (await get(server.port, f"{path}?format=txt"))[0] == 404


async def test_other_methods_get_no_text(streams, server):
    path = "/v1/sessions/live/transcript?format=txt"
    status, headers, body = await get(server.port, path, method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) == len(await transcript(server, "txt"))
    assert (await get(server.port, path, "Content-Length: 0", method="PUT"))[0] == 405


async def test_whoever_may_listen_may_have_it_and_nobody_else(streams):
    bind = BindOptions(port=0, token="secret", listen_token="reader", share="speak")
    path = "/v1/sessions/live/transcript?format=txt"
    async with serving(streams, bind=bind) as server:
        for token in ("secret", "reader", guest_token("secret")):
            status, _, body = await get(server.port, path, f"Authorization: Bearer {token}")
            assert (status, body.splitlines()[0]) == (200, "Speaker 1: Who is there?")
        foreign = ("Authorization: Bearer secret", "Origin: http://evil.example")
        for headers, expected in (
            ((), 401),
            (("Authorization: Bearer other",), 401),
            (foreign, 403),
        ):
            status, _, body = await get(server.port, path, *headers)
            assert (status, "Who" in body) == (expected, False)


async def test_a_server_that_writes_none_says_so(streams):
    async with Server(BindOptions(port=0), sessions=streams, info=INFO) as server:
        status, _, body = await get(server.port, "/v1/sessions/live/transcript?format=txt")
        assert (status, body) == (404, "this server writes no transcripts\n")


async def test_events_that_come_meanwhile_neither_fail_nor_double(streams):
    n = 1000
    streams.live = Hub("live", history=2 * n)
    for seq in range(n):
        streams.live.publish(spoken(f"number {seq}", start_ms=1000 * seq))
    async with serving(streams) as server:
        writing = asyncio.create_task(transcript(server, "txt"))
        for seq in range(n, n + 100):
            streams.live.publish(spoken(f"number {seq}", start_ms=1000 * seq))
            await turn()
        found = (await writing).splitlines()
    assert found == [f"number {seq}" for seq in range(len(found))]
    assert len(found) >= n


async def test_what_nobody_waits_for_is_not_written_beside_the_next(streams):
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Semaphore(0), threading.Event()
    writing = most = 0

    def write(*_: object) -> bytes:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        loop.call_soon_threadsafe(begun.release)
        may_end.wait()
        writing -= 1
        return b"written"

    transcripts = Transcripts(streams, write)
    try:
        gone = asyncio.create_task(transcripts.answer("live", "format=txt"))
        await begun.acquire()
        for _ in range(3):
            gone.cancel()
            await asyncio.wait({gone})
            gone = asyncio.create_task(transcripts.answer("live", "format=txt"))
            await turns(50)
        assert (writing, most) == (1, 1)
        may_end.set()
        assert (await gone).body == b"written"
        assert most == 1
    finally:
        may_end.set()
        transcripts.close()
