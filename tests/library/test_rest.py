"""The library over HTTP, as its page and programs read it."""

import asyncio
import json
from contextlib import suppress
from functools import partial
from io import BytesIO

import docx
import httpx2
import pytest

from streamd.config import Config
from streamd.daemon.display import written
from streamd.errors import ConfigError
from streamd.library.listeners import Listeners
from streamd.library.rest import LibraryRest
from streamd.library.shelf import Shelf
from streamd.library.tables import SOUNDS
from streamd.options import BindOptions
from streamd.server.exchange import plain
from tests.library.test_shelf import fill
from tests.support.serving import CountingStreams, serving
from tests.support.uploads import answer, head, post

TALK = [("Anna Bottin spoke first.", 1, "es"), ("Then came the café.", 2, "es")]


def library(folder, files=None):
    listeners = Listeners(CountingStreams())
    return LibraryRest(Shelf(folder), partial(written, Config()), listeners, files)


@pytest.fixture
async def client(tmp_path):
    fill(tmp_path, {"talk": TALK})
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with serving(CountingStreams(), bind=bind) as server:
        server.library = library(tmp_path)
        address = f"http://127.0.0.1:{server.port}/v1/library/"
        headers = {"Authorization": "Bearer secret"}
        async with httpx2.AsyncClient(base_url=address, headers=headers, trust_env=False) as client:
            yield client


async def test_sessions_are_listed_read_searched_renamed_and_deleted(client):
    (talk,) = (await client.get("sessions?limit=5")).json()["sessions"]
    assert (talk["name"], talk["first"], talk["id"]) == ("talk", TALK[0][0], 1)
    assert (await client.get("sessions?before=1")).json()["sessions"] == []
    named = edits(None, names=[{"speaker": 2, "name": " Zoë "}])
    assert (await client.post("sessions/1/edits", content=named)).status_code == 201
    assert (await client.get("sessions/1")).json()["names"] == {"2": "Zoë"}
    assert (await client.post("sessions/1/edits", content=named)).status_code == 409
    odd = edits(None, 1, names=[{"speaker": 2, "name": "\u202e"}])
    assert (await client.post("sessions/1/edits", content=odd)).status_code == 400
    (hit,) = (await client.get("search", params={"q": "cafe speaker:zoe"})).json()["hits"]
    assert [hit["text"][start:end] for start, end in hit["marks"]] == ["café"]
    assert [each["speaker"] for each in (await client.get("now?ms=1000")).json()["said"]] == ["Zoë"]
    whole = (await client.get("sessions/1")).json()
    assert [each["text"] for each in whole["events"][:2]] == [text for text, *_ in TALK]
    assert (await client.delete("sessions/1")).status_code == 204
    assert (await client.get("sessions/1")).status_code == 404


def edits(text, revision=0, **more):
    sentences = [{"seq": 1, "text": text}] if text is not None else []
    return json.dumps({"revision": revision, "sentences": sentences, **more})


async def test_the_later_of_two_edits_does_not_overwrite_the_first(client):
    meant = "Ana Botín spoke first."
    first = await client.post("sessions/1/edits", content=edits(meant))
    assert (first.status_code, first.json()["revision"]) == (201, 1)
    later = await client.post("sessions/1/edits", content=edits("Nobody spoke first."))
    assert (later.status_code, later.json()["revision"]) == (409, 1)
    (hit,) = (await client.get('search?q="ana botin spoke"')).json()["hits"]
    assert hit["text"] == meant
    wrong = json.dumps({"revision": 1, "sentences": [{"seq": 9, "text": ""}]})
    answer = await client.post("sessions/1/edits", content=wrong)
    assert (answer.status_code, answer.text) == (404, "the session has no final 9\n")


async def test_what_undoes_an_edit_comes_with_its_answer(client):
    merged = {"speakers": [{"speaker": 3, "seq": 1, "was": 2}]}
    named = {"names": [{"speaker": 2, "name": "Zoë"}]}
    for text, more, query, n in (
        ("Ana and Botín.", {}, "spoke", 1),
        (None, merged, "speaker:2", 1),
        (None, named, "speaker:zoe", 0),
    ):
        before = (await client.get(f"search?q={query}")).json()["hits"]
        assert len(before) == n
        revision = (await client.get("sessions/1")).json()["revision"]
        made = await client.post("sessions/1/edits", content=edits(text, revision, **more))
        now = (await client.get(f"search?q={query}")).json()["hits"]
        assert len(now) == (1 if text or more is named else 0)
        undone = await client.post("sessions/1/edits", content=json.dumps(made.json()["undo"]))
        assert undone.status_code == 201
        assert (await client.get(f"search?q={query}")).json()["hits"] == before
    assert (await client.get("search?q=botin")).json()["hits"] == []


class Live:
    """What goes on beside the library."""

    def __init__(self):
        self.told, self.learned = [], []

    def is_live(self, run):
        return run.session == "talk"

    def is_transcribed(self, run):
        return run.session == "recording"

    def tell(self, run, notes):
        self.told += [(run.session, note.text) for note in notes]

    def learn(self, phrase):
        if phrase == "Zoë":
            raise ConfigError("vocabulary.txt: cannot write it")
        self.learned.append(phrase)


async def test_listeners_are_told_and_words_are_learned_if_that_is_wanted(tmp_path, caplog):
    fill(tmp_path, {"talk": TALK, "recording": TALK})
    live = Live()
    async with serving(CountingStreams()) as server:
        server.library = LibraryRest(Shelf(tmp_path), partial(written, Config()), live)
        address = f"http://127.0.0.1:{server.port}/v1/library/"
        async with httpx2.AsyncClient(base_url=address, trust_env=False) as client:
            texts = ("Ana Botín spoke first.", "Ana Botín spoke last.", "Zoë spoke last.")
            for n, keep in enumerate((False, True, True)):
                body = edits(texts[n], revision=n, keep=keep)
                assert (await client.post("sessions/1/edits", content=body)).status_code == 201
            for n in (1, 2):
                assert (await client.delete(f"sessions/{n}")).status_code == 409
            assert (await client.get("sessions/1")).json()["is_live"]
    said = [("talk", text) for text in ("Ana Botín", "last.", "Zoë")]
    assert live.told == said
    assert live.learned == ["last"]
    assert "keep: vocabulary.txt: cannot write it" in caplog.text


async def test_speakers_are_found_listed_and_exported_as_somebody_has_given_them(client, tmp_path):
    split = {"speaker": 3, "seq": 1, "first": 2, "to_seq": 1, "last": 3}
    await client.post("sessions/1/edits", content=edits(None, 0, speakers=[split]))
    assert len((await client.get("search?q=speaker:3")).json()["hits"]) == 1
    (talk,) = (await client.get("sessions")).json()["sessions"]
    assert talk["speakers"] == ["Speaker 1", "Speaker 2", "Speaker 3"]
    said = Shelf(tmp_path).read(1)
    assert [word.speaker for word in said[0].words] == [1, 1, 3, 3]


async def test_a_session_comes_as_a_file_with_its_names_or_without(client):
    edited = edits("Ana spoke first.", names=[{"speaker": 1, "name": "Ana Ruiz"}])
    assert (await client.post("sessions/1/edits", content=edited)).status_code == 201
    text = await client.get("sessions/1/transcript?format=txt")
    assert text.text == "Ana Ruiz: Ana spoke first.\nSpeaker 2: Then came the café.\n"
    assert text.headers["Content-Disposition"] == 'attachment; filename="talk.txt"'
    table = await client.get("sessions/1/transcript?format=csv")
    assert table.text.splitlines()[0] == "start,end,speaker,text"
    word = await client.get("sessions/1/transcript?format=docx&anonymous=true")
    assert word.headers["Content-Disposition"] == 'attachment; filename="session-1.docx"'
    lines = [each.text for each in docx.Document(BytesIO(word.content)).paragraphs]
    assert lines[:2] == ["session-1", "Person 1: [0:00:00] Person 1 spoke first."]
    listed = await client.get("sessions/1/replaced")
    assert listed.text == "label,was,times\nPerson 1,Ana,1\nPerson 1,Ana Ruiz,0\n"
    for form in ("json", "docx", "eaf", "csv", "vtt"):
        data = (await client.get(f"sessions/1/transcript?format={form}&anonymous=true")).content
        assert data
        assert b"Bottin" not in data, "what was heard before the correction"
        assert b"Ruiz" not in data
    assert "Bottin" in (await client.get("sessions/1/transcript?format=json")).text
    refused = await client.get("sessions/1/transcript?format=doc")
    assert (refused.status_code, "docx, eaf" in refused.text) == (400, True)
    assert (await client.get("sessions/9/transcript?format=txt")).status_code == 404


async def test_audio_comes_in_ranges(client):
    (sound,) = (await client.get("sessions/1")).json()["sounds"]
    whole = await client.get(f"audio/{sound['file']}")
    assert (whole.status_code, whole.headers["Content-Type"]) == (200, "audio/ogg")
    assert whole.content[:4] == b"OggS"
    size = len(whole.content)
    for asked, start, end in (("0-3", 0, 4), ("10-", 10, size), ("-5", size - 5, size)):
        part = await client.get(f"audio/{sound['file']}", headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206
        assert part.headers["Content-Range"] == f"bytes {start}-{end - 1}/{size}"
        assert part.content == whole.content[start:end]
    for asked, status in (
        ("999999-", 416),
        (f"{10**30}-", 416),
        ("-0", 416),
        ("5-3", 200),
        ("0-1,4-5", 200),
    ):
        part = await client.get(f"audio/{sound['file']}", headers={"Range": f"bytes={asked}"})
        assert (part.status_code, len(part.content)) == (status, size if status == 200 else 0)
    versioned = {"Range": "bytes=0-3", "If-Range": '"1"'}
    assert (await client.get(f"audio/{sound['file']}", headers=versioned)).status_code == 200


async def test_hours_of_audio_come_whole_to_who_asks_for_no_range(client, tmp_path):
    (tmp_path / SOUNDS / "long.flac").write_bytes(bytes(range(256)) * 40_000)
    size = str(256 * 40_000)
    whole = await client.get("audio/long.flac")
    assert (whole.status_code, whole.headers["Content-Length"]) == (200, size)
    assert whole.content == bytes(range(256)) * 40_000
    head = await client.head("audio/long.flac")
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, size, b"")
    part = await client.get("audio/long.flac", headers={"Range": "bytes=256-"})
    assert part.headers["Content-Range"] == f"bytes 256-{256 + (4 << 20) - 1}/{size}"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "audio/..%2Flibrary.sqlite", 404),
        ("GET", "audio/%2E%2E", 404),
        ("GET", "sessions/7", 404),
        ("GET", "sessions/x", 404),
        ("GET", "audio/%00", 404),
        ("GET", "audio/..", 404),
        ("GET", f"audio/{'a' * 3_000}", 404),
        ("GET", "search?q=after:soon", 400),
        ("GET", "search?q=after:0001-01-01", 400),
        ("GET", "search?q=%00", 200),
        ("GET", f"sessions?before={10**30}", 400),
        ("GET", "search?limit=0", 400),
        ("GET", "elsewhere", 404),
        ("POST", "sessions/1", 405),
        ("POST", "sessions/1/edits", 400),
    ],
)
async def test_what_is_wrong_is_said(client, method, path, status):
    assert (await client.request(method, path)).status_code == status


async def test_a_body_that_cannot_be_read_is_said_to_be_wrong(client):
    deep = b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    for body in (b"\xff", b'{"1":"\xff"}', deep):
        answer = await client.post("sessions/1/edits", content=body)
        assert answer.status_code == 400


@pytest.mark.parametrize(("token", "status"), [("ears", 403), ("nobody", 401)])
async def test_only_the_owner_reads_it(client, token, status):
    headers = {"Authorization": f"Bearer {token}"}
    assert (await client.get("sessions", headers=headers)).status_code == status


async def test_without_a_library_there_is_none(tmp_path):
    async with (
        serving(CountingStreams()) as server,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        answer = await client.get(f"http://127.0.0.1:{server.port}/v1/library/sessions")
        assert (answer.status_code, "--keep" in answer.text) == (404, True)


@pytest.mark.parametrize("path", ["library/sessions/1/edits", "sessions/talk/transcript"])
async def test_an_owner_who_sends_too_slowly_is_told_so(tmp_path, path):
    fill(tmp_path, {"talk": TALK})
    async with serving(CountingStreams(), send_deadline_ms=300) as server:
        server.library = library(tmp_path)
        server.transcripts = Untouched()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(10_000, path=f"/v1/{path}"))
        slow = asyncio.create_task(answer(reader))
        while not slow.done():  # no part of it is late
            with suppress(ConnectionError):
                writer.write(b"-")
            await asyncio.wait([slow], timeout=0.01)
        status, _, said = await slow
        assert (status, b"8000 bytes a second" in said) == (408, True)
        writer.close()


class Untouched:
    def close(self):
        pass


async def test_a_file_that_is_being_sent_is_no_pending_connection(tmp_path):
    fill(tmp_path, {"talk": TALK})
    files = SlowFiles()
    async with serving(CountingStreams(), max_uploads=1) as server:
        server.library = library(tmp_path, files)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(10, path="/v1/library/uploads"))
        await files.begun.wait()
        assert not server._registry.drop_oldest()
        status, _, said = await post(server.port, b"x", path="/v1/library/uploads")
        assert (status, said) == (503, b"too many clients\n")
        writer.write(b"0123456789")
        assert (await answer(reader))[0] == 201
        writer.close()


class SlowFiles:
    """Receives a file, whoever sends it."""

    def __init__(self):
        self.begun = asyncio.Event()

    async def receive(self, exchange, request):
        self.begun.set()
        await exchange.whole_body(100)
        await exchange.respond(plain(201, "received"))
