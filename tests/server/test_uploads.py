"""Recordings that are sent with POST: what OpenAI's clients send, and what nobody should."""

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from streamd.errors import ConfigError, EngineError, SourceError, WireError
from streamd.events import Final, TimedWord
from streamd.labels import by_speaker
from streamd.options import BindOptions
from streamd.server import Recording, Server, Wanted
from streamd.server.listen_rest import _utterances
from tests.support.loop import turn, turns
from tests.support.said import spoken
from tests.support.serving import INFO, CountingStreams, joined, serving
from tests.support.uploads import PATH, answer, exchange, form, head, post

MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Echo:
    """Its text is the recording's bytes, one segment for each line; notes what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Wanted]] = []
        self.files: list[os.stat_result] = []
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.warnings: list[str] = []
        self.failure: Exception | None = None
        self.late_failure: Exception | None = None

    async def read(self, file: int, name: str, wanted: Wanted) -> Recording:
        self.asked.append((name, wanted))
        self.files.append(os.fstat(file))
        self._lines = os.pread(file, self.files[-1].st_size, 0).decode().split("\n")
        self.started.set()
        try:
            await self.may_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.failure:
            raise self.failure
        return Recording(1500, self.finals(), self.warnings, model="tiny.en")

    async def check(self, wanted: Wanted) -> None:
        if wanted.language == "xx":
            raise WireError("bad_form", "language xx is none")

    def models(self) -> Sequence[str]:
        return ("tiny.en", "base")

    async def finals(self) -> AsyncIterator[Final]:
        for i, line in enumerate(self._lines):
            word = TimedWord(
                text=line, start_ms=1000 * i, end_ms=1000 * i + 500, prob=1, final=True
            )
            yield Final(
                seg=i, start_ms=word.start_ms, end_ms=word.end_ms, text=line, language="en",
                words=(word,),
            )  # fmt: skip
            if self.late_failure:
                raise self.late_failure

    def written(self, finals: Sequence[Final], form: str) -> str:
        if form != "json":
            return f"{form}: {len(finals)}"
        segments = [
            {"text": f" {each.text}", "words": [{"word": f" {each.text}", "start": 0, "end": 1}]}
            for each in finals
        ]
        text = "".join(segment["text"] for segment in segments)
        return json.dumps({"segments": segments, "text": text, "language": "en"})


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
async def server(streams, echo):
    async with serving(streams, recordings=echo) as running:
        yield running


def is_open(file: os.stat_result) -> bool:
    """Whether this process has it open."""
    opened = set()
    for descriptor in os.listdir("/dev/fd"):
        with suppress(OSError):  # that of the folder itself
            opened.add((os.fstat(int(descriptor)).st_dev, os.fstat(int(descriptor)).st_ino))
    return (file.st_dev, file.st_ino) in opened


async def refusal(port: int, body: bytes, *headers: str, **where: str) -> tuple[int, str]:
    status, _, said = await post(port, body, *headers, **where)
    return status, json.loads(said)["error"]["message"]


async def test_the_form_arrives_and_the_text_comes_back(echo):
    async with serving(CountingStreams(), recordings=echo) as server:
        fields = (
            ("model", "whisper-1"),
            ("language", "de"),
            ("prompt", "Ä"),
            ("temperature", "0.2"),
        )
        status, headers, body = await post(server.port, form(*fields))
        assert (status, json.loads(body)) == (
            200,
            {"text": "one two", "usage": {"type": "duration", "seconds": 2}},
        )
        assert "Connection: close" in headers
        wanted = Wanted(
            task="transcribe", model="whisper-1", language="de", prompt="Ä", temperature=0.2
        )
        assert echo.asked == [("a.wav", wanted)]
        await post(server.port, form(("sounds", "true")), path="/v1/audio/translations")
        assert echo.asked[1] == ("a.wav", Wanted(task="translate", sounds=True))
    assert not any(is_open(file) for file in echo.files)


async def test_a_line_in_the_log_says_who_sends_a_recording_and_what_becomes_of_it(
    caplog, echo, server
):
    caplog.set_level(logging.INFO, "streamd")
    await post(server.port, form(), "X-Forwarded-For: 192.0.2.7")
    await post(server.port, b"one", path="/v1/listen")
    await post(server.port, form(("temperature", "9")))
    echo.failure = SourceError("a.wav is no audio")
    await post(server.port, form())
    echo.may_go.clear()
    echo.started.clear()
    leaving = asyncio.create_task(post(server.port, form()))
    await echo.started.wait()
    leaving.cancel()
    await echo.cancelled.wait()
    await turns(3)
    lines = [each.getMessage() for each in caplog.records if "connection" not in each.getMessage()]
    assert lines == [
        "recording a.wav begun by 192.0.2.7: 7 bytes",
        "recording a.wav of 192.0.2.7 ended (end): 1.5 s of audio",
        "the recording begun by 127.0.0.1: 3 bytes",
        "the recording of 127.0.0.1 ended (end): 1.5 s of audio",
        "refused 127.0.0.1: bad_form, Expected `float` <= 1.0 for temperature",
        "recording a.wav begun by 127.0.0.1: 7 bytes",
        "recording a.wav of 127.0.0.1 ended (error): 0.0 s of audio",
        "refused 127.0.0.1: bad_form, a.wav is no audio",
        "recording a.wav begun by 127.0.0.1: 7 bytes",
        "recording a.wav of 127.0.0.1 ended (disconnect): 0.0 s of audio",
    ]


async def test_deepgrams_clients_send_the_recording_alone(echo, server):
    query = (
        "model=nova-3&keyterm=Ada&keyterm=Kubernetes&diarize=true&utterances=true&language=en-US"
    )
    status, _, body = await post(server.port, b"one\ntwo", path=f"/v1/listen?{query}")
    for told, says in (
        ("callback=http://x", "callback: the transcript is in the response only"),
        ("diarize=7", "Expected `bool`"),
    ):
        assert says in (await refusal(server.port, b"", path=f"/v1/listen?{told}"))[1]
    said = head(0, path="/v1/listen").replace(b"multipart/form-data", b"application/json")
    assert b"addresses are not fetched" in (await exchange(server.port, said))[2]
    hotwords = "Ada, Kubernetes"
    wanted = Wanted(
        task="transcribe", model="nova-3", language="en", hotwords=hotwords, speakers=True
    )
    assert echo.asked == [("the recording", wanted)]
    got = json.loads(body)
    best = got["results"]["channels"][0]["alternatives"][0]
    assert (status, best["transcript"], best["confidence"]) == (200, "one two", 1)
    assert [word["start"] for word in best["words"]] == [0, 1]
    assert [each["transcript"] for each in got["results"]["utterances"]] == ["one", "two"]
    assert got["metadata"]["duration"] == 1.5
    assert got["metadata"]["sha256"] == hashlib.sha256(b"one\ntwo").hexdigest()


def test_deepgrams_utterances_are_cut_where_captions_are():
    said = spoken("It costs 1,000 euros, yes? No.")
    speakers = [1, 1, 2, UNSET, 1, 2]  # "1,000" is never cut, nor what nobody says
    texts = ["It", "costs", "1", ",000", "euros, yes?", "No."]
    words = tuple(
        TimedWord(text=text, start_ms=n, end_ms=n + 1, final=True, speaker=speaker)
        for n, (text, speaker) in enumerate(zip(texts, speakers, strict=True))
    )
    said = replace(said, words=words)
    told = [(each["speaker"], each["transcript"]) for each in _utterances(said)]
    assert told == [(part.speaker - 1, part.text) for part in by_speaker(said)]
    assert told == [(0, "It costs"), (1, "1,000"), (0, "euros, yes?"), (1, "No.")]


async def test_a_listener_may_not_send_deepgrams_recordings_either():
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with serving(CountingStreams(), recordings=Echo(), bind=bind) as server:
        for token, expected in (("ears", 403), ("secret", 200), ("none", 401)):
            sent = await post(server.port, b"a", f"Authorization: Token {token}", path="/v1/listen")
            assert sent[0] == expected


@pytest.mark.parametrize(
    ("shape", "kind", "body"),
    [
        ("text", "text/plain", b"one two\n"),
        ("srt", "text/plain", b"srt: 2"),
        ("vtt", "text", b"vtt: 2"),
    ],
)
async def test_other_formats(shape, kind, body, server):
    status, headers, got = await post(server.port, form(("response_format", shape)))
    assert (status, got) == (200, body)
    assert f"Content-Type: {kind}" in headers


@pytest.mark.parametrize(
    ("granularities", "has_words", "has_segments"),
    [((), False, True), (("word",), True, False), (("word", "segment"), True, True)],
)
async def test_segments_and_words_with_times(granularities, has_words, has_segments, server):
    fields = [("timestamp_granularities[]", each) for each in granularities]
    sent = form(("response_format", "verbose_json"), *fields)
    _, _, body = await post(server.port, sent)
    got = json.loads(body)
    assert (got["text"], got["duration"], got["task"]) == ("one two", 1.5, "transcribe")
    assert got.get("words") == (
        [{"word": "one", "start": 0, "end": 1}, {"word": "two", "start": 0, "end": 1}]
        if has_words
        else None
    )
    assert got.get("segments") == ([{"text": " one"}, {"text": " two"}] if has_segments else None)


class Talk(Echo):
    """Two people say its lines in turn."""

    async def finals(self) -> AsyncIterator[Final]:
        async for each in super().finals():
            words = tuple(replace(word, speaker=each.seg % 2 + 1) for word in each.words)
            yield replace(each, words=words)


async def test_who_says_what_as_openai_writes_it():
    talk = Talk()
    async with serving(CountingStreams(), recordings=talk) as server:
        _, _, body = await post(server.port, form(("response_format", "diarized_json")))
    got = json.loads(body)
    assert talk.asked[0][1].speakers
    assert (got["task"], got["duration"], got["text"]) == ("transcribe", 1.5, "one two")
    assert [(each["speaker"], each["text"]) for each in got["segments"]] == [
        ("A", "one"),
        ("B", "two"),
    ]
    first = got["segments"][0]
    assert first["type"] == "transcript.text.segment"
    assert (first["id"], first["start"], first["end"]) == ("seg_000", 0, 0.5)


@pytest.mark.parametrize("shape", ["json", "text", "srt", "verbose_json", "stream"])
async def test_what_is_wrong_with_the_sound_is_in_headers(shape, echo, server):
    echo.warnings = [
        "a\u00e9.mp3 is damaged: 1.5 s are missing",
        " talk\n is cut off: " + "x" * 300 + " ",
    ]
    wanted = ("stream", "true") if shape == "stream" else ("response_format", shape)
    status, headers, _ = await post(server.port, form(wanted))
    assert status == 200
    assert "X-Streamd-Warning: a?.mp3 is damaged: 1.5 s are missing\r\n" in headers
    assert f"X-Streamd-Warning: talk? is cut off: {'x' * 300}\r\n" in headers


async def test_the_text_as_server_sent_events(server):
    status, headers, body = await post(server.port, form(("stream", "true")), "Accept: */*")
    assert (status, "text/event-stream" in headers) == (200, True)
    events = [json.loads(line[6:]) for line in body.decode().split("\r\n") if "data: " in line]
    assert events == [
        {"type": "transcript.text.delta", "delta": "one"},
        {"type": "transcript.text.delta", "delta": " two"},
        {"type": "transcript.text.done", "text": "one two"},
    ]


async def test_who_does_not_read_the_events_makes_room(echo):
    recording = form(("stream", "1"), file=b"\n".join([b"x" * 10_000] * 1000))
    limits = {"max_uploads": 1, "send_deadline_ms": 1500}
    async with serving(CountingStreams(), recordings=echo, **limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(head(len(recording)) + recording)
        await reader.readexactly(1)  # and no more
        while (await post(server.port, form()))[0] != 200:
            pass
        got = b""
        with suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                got += part
        assert b"transcript.text.done" not in got
        writer.close()


async def test_a_stream_that_fails_ends_with_an_error(echo, server):
    echo.late_failure = EngineError("broke")
    _, _, body = await post(server.port, form(("stream", "1")))
    assert b'"delta":"one"' in body
    assert b'data: {"error":{"message":"broke","type":"server_error"' in body


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (SourceError("no sound"), 400),
        (WireError("bad_form", "no such language"), 400),
        (WireError("too_large", "too long"), 413),
        (EngineError("broke"), 500),
        (OSError(28, "No space left on device"), 507),
    ],
)
async def test_what_goes_wrong_has_a_status(failure, status, echo, server):
    echo.failure = failure
    got, message = await refusal(server.port, form())
    assert got == status
    assert (failure.strerror if isinstance(failure, OSError) else str(failure)) in message


async def test_before_the_disk_is_full_recordings_are_refused(monkeypatch, echo, server):
    monkeypatch.setattr("streamd.server.rest.is_nearly_full", lambda folder: True)
    assert await refusal(server.port, form()) == (
        507,
        "the disk of temporary files is nearly full",
    )
    assert echo.asked == []


async def test_what_the_server_has_wrong_names_none_of_its_files(caplog, echo, server):
    echo.failure = ConfigError("--vocabulary /srv/somebody/names.txt: it is not UTF-8 text")
    status, message = await refusal(server.port, form())
    what = "recordings cannot be transcribed: see the log of the server"
    assert (status, message) == (500, what)
    assert "/srv/somebody/names.txt" in caplog.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (form(("model", "x"), file=None), "has no recording"),
        (form(("temperature", "7")), "<= 1.0 for temperature"),
        (form(("response_format", "xml")), "'xml' for response_format"),
        (form(("timestamp_granularities[]", "day")), "'day' for timestamp_granularities"),
        (form(("stream", "maybe")), "for stream"),
        (form(("prompt", "x" * 20_000)), "prompt has more than 16384 bytes"),
        (form(*[("a", "b")] * 70), "cannot be read"),
        (form()[:-8], "cannot be read"),
        (form() .replace(b"--x--\r\n", form()), "send one recording"),
        (b"", "cannot be read"),
        (b"junk", "cannot be read"),
    ],
)  # fmt: skip
async def test_a_bad_form_is_refused(body, says, server):
    status, message = await refusal(server.port, body)
    assert (status, says in message) == (400, True), message


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", ""])
async def test_only_forms_are_read(kind, server):
    sent = head(4).replace(b"multipart/form-data; boundary=x", kind.encode())
    status, _, body = await exchange(server.port, sent + b"junk")
    assert (status, b"send multipart/form-data" in body) == (400, True)


async def test_a_body_in_chunks_by_a_client_that_waits_to_be_told_to_go_on(server):
    body = form()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head(None, "Transfer-Encoding: chunked", "Expect: 100-continue"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    for at in range(0, len(body), 7):
        piece = body[at : at + 7]
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    status, _, got = await answer(reader)
    writer.close()
    assert (status, json.loads(got)["text"]) == (200, "one two")


@pytest.mark.parametrize("says_its_size", [True, False])
async def test_a_recording_that_is_too_large_is_refused_while_it_is_sent(says_its_size):
    """The client reads its answer only after it has sent everything."""
    body = form(file=b"x" * (1 << 22))
    async with serving(CountingStreams(), recordings=Echo(), max_upload_bytes=1 << 20) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if says_its_size:
            writer.write(head(len(body)) + body)
        else:
            writer.write(head(None, "Transfer-Encoding: chunked"))
            writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        await writer.drain()
        status, _, got = await answer(reader)
        writer.close()
    assert (status, b"at most 1048576 bytes" in got) == (413, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 401),
        (("Authorization: Bearer wrong",), 401),
        (("Authorization: Bearer listen",), 403),
        (("Authorization: Bearer secret",), 200),
        (("Authorization: Bearer secret", "Origin: http://evil.example"), 403),
    ],
)
async def test_tokens_and_origins_hold(headers, status):
    bind = BindOptions(port=0, token="secret", listen_token="listen")
    async with Server(bind, sessions=CountingStreams(), info=INFO, recordings=Echo()) as server:
        got, _, body = await post(server.port, form(), *headers)
        assert got == status
        assert "error" in json.loads(body) or status == 200
        assert (await exchange(server.port, MODELS))[0] == 401


async def test_a_foreign_host_is_refused(server):
    foreign = head(0).replace(b"Host: localhost", b"Host: evil.example")
    assert (await exchange(server.port, foreign))[0] == 403


async def test_as_many_as_allowed_are_received_at_a_time(echo):
    echo.may_go.clear()
    async with serving(CountingStreams(), recordings=echo, max_uploads=1) as server:
        first = asyncio.create_task(post(server.port, form()))
        await echo.started.wait()
        status, headers, _ = await post(server.port, form())
        assert (status, "Retry-After: 10" in headers) == (503, True)
        echo.may_go.set()
        assert (await first)[0] == 200
        while (await post(server.port, form()))[0] != 200:
            pass


async def test_nothing_is_transcribed_for_a_client_that_has_gone(echo):
    echo.may_go.clear()
    async with serving(CountingStreams(), recordings=echo) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = form()
        writer.write(head(len(body)) + body)
        await echo.started.wait()
        assert is_open(echo.files[0])
        assert echo.files[0].st_nlink == 0  # nobody has to remove it, whatever happens
        writer.transport.abort()
        await echo.cancelled.wait()
    assert not is_open(echo.files[0])


async def test_a_client_that_stops_sending_is_dropped():
    async with serving(CountingStreams(), recordings=Echo(), send_deadline_ms=50) as server:
        for sent in (b"POST /v1", head(100), head(100) + b"--x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()


async def test_who_sends_too_slowly_makes_room():
    limits = {"max_uploads": 1, "send_deadline_ms": 1500}
    async with serving(CountingStreams(), recordings=Echo(), **limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(10_000))
        slow = asyncio.create_task(answer(reader))
        while not slow.done():  # a byte every 20 ms, so no part of it is late
            with suppress(ConnectionError):
                writer.write(b"-")
            await asyncio.wait([slow], timeout=0.02)
        status, _, said = await slow
        assert (status, json.loads(said)["error"]["code"]) == (408, "too_slow")
        writer.close()
        while (await post(server.port, form()))[0] != 200:
            pass


async def test_one_address_has_half_of_the_places(monkeypatch, echo):
    monkeypatch.setattr("streamd.server.registry.is_loopback", lambda host: False)
    echo.may_go.clear()
    async with serving(CountingStreams(), recordings=echo, max_uploads=4) as server:
        posted = [asyncio.create_task(post(server.port, form())) for _ in range(3)]
        done, _ = await asyncio.wait(posted, return_when=asyncio.FIRST_COMPLETED)
        status, headers, body = await done.pop()
        assert (status, "Retry-After: 10" in headers) == (429, True)
        assert b"too many recordings from this address" in body
        monkeypatch.setattr("streamd.server.registry.is_loopback", lambda host: True)
        posted.append(asyncio.create_task(post(server.port, form())))
        while len(echo.asked) < 3:
            await turn()
        echo.may_go.set()
        statuses = sorted([(await each)[0] for each in posted])
        assert statuses == [200, 200, 200, 429]


async def test_the_server_ends_while_recordings_are_transcribed(echo):
    echo.may_go.clear()
    async with serving(CountingStreams(), recordings=echo) as server:
        waiting = asyncio.create_task(post(server.port, form()))
        await echo.started.wait()
    status, _, said = await waiting
    assert (status, json.loads(said)["error"]["message"]) == (503, "the server is shutting down")
    assert not is_open(echo.files[0])


@pytest.mark.parametrize(
    "junk",
    [
        b"POST \r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: strange\r\n\r\n",
        b"DELETE \xff\xff\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_told_so_and_disturbs_nobody(junk, caplog, server):
    async with joined(server.port) as listener:
        assert (await exchange(server.port, junk))[0] in (400, 405, 501)
        await (await listener.connection.ping())
    assert [record for record in caplog.records if record.exc_info] == []


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
FORM = head(len(form())) + form()


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"P", FORM[1:]], 200),
        ([b"POST", FORM[4:]], 200),
        ([b"\r\n" + FORM], 200),
        ([b"\r", b"\n", FORM], 200),
        ([b"\r\n" + GET + b"\r\n"], 200),
        ([(GET + b"\r\n") * 3], 200),
        ([GET + b"Content-Length: 5\r\n\r\nhello"], 200),
        ([GET + b"Content-Length: 5\r\n\r\n", b"hello"], 200),
        ([GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], 200),
        ([GET + b"X: a\r\n b\r\n\r\n"], 200),
        ([GET.replace(b"\r", b"") + b"\n"], 200),
        ([GET.replace(b"1.1", b"1.0") + b"\r\n"], 200),
        ([b"GET /healthz\r\n\r\n"], 400),
        ([GET + b"X: a\x01b\r\n\r\n"], 400),
        ([b"\x16\x03\x01"], 400),  # TLS
    ],
)
async def test_every_request_is_answered_once(pieces, status, server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for piece in pieces:
        writer.write(piece)
        await turns(20)  # until it is read alone
    said = await reader.read()
    writer.close()
    assert re.findall(rb"HTTP/1.1 (\d+) ", said) == [b"%d" % status]


async def test_who_sends_the_head_byte_by_byte_makes_room():
    async with serving(CountingStreams(), recordings=Echo(), send_deadline_ms=500) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(100)[:-2] + b"X: ")
        gone = asyncio.create_task(reader.read())
        async with asyncio.timeout(60):
            while not gone.done():  # none of them is late
                with suppress(ConnectionError):
                    writer.write(b"x")
                await asyncio.wait([gone], timeout=0.05)
        with suppress(ConnectionError):
            assert await gone == b""
        writer.close()


async def test_the_model_is_listed(streams):
    async with serving(streams) as server:
        _, _, body = await exchange(server.port, MODELS)
        assert [each["id"] for each in json.loads(body)["data"]] == ["fake"]
        assert (await post(server.port, form()))[0] == 405  # nobody transcribes recordings here


@pytest.mark.parametrize("name", ["Content-Type", "X-Other"])
async def test_a_header_that_is_not_ascii_gets_an_answer(name, caplog, server):
    rows = [f"POST {PATH} HTTP/1.1", "Host: localhost", "Content-Length: 0"]
    rows.append(f"{name}: multipart/form-data; boundary=\xff")
    request = "\r\n".join((*rows, "", "")).encode("latin-1")
    status, _, body = await exchange(server.port, request)
    assert status == 400, body  # the reason depends on the version of websockets
    assert not caplog.records
