"""A document that is posted is answered with its words, to whoever may speak."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from streamd.documents import DocumentError
from streamd.options import BindOptions
from streamd.whisper.terms import Term
from tests.server.test_uploads import Echo
from tests.support.loop import turns
from tests.support.serving import CountingStreams, serving
from tests.support.uploads import post

TOKEN, LISTENER = "speaker-0123456789", "listener-0123456789"


def read(file, name):
    file.seek(0)
    text = file.read().decode()
    if text == "bad":
        raise DocumentError("it is damaged: save it as plain text")
    return [Term(text, 2, 3, is_name=True), Term(name, 1, 1, is_name=False)]


async def test_the_words_of_a_document_come_back():
    async with serving(CountingStreams(), recordings=Echo()) as server:
        server.read_words = read
        status, _, body = await post(
            server.port, "Botín".encode(), path="/v1/context?name=a%20b.md"
        )
        assert (status, json.loads(body)) == (
            200,
            {
                "words": [
                    {"text": "Botín", "count": 2, "name": True, "tokens": 3},
                    {"text": "a b.md", "count": 1, "name": False, "tokens": 1},
                ]
            },
        )


@pytest.mark.parametrize(
    ("query", "body", "says"),
    [("name=a.pdf", b"bad", "it is damaged"), ("", b"good", "name"), ("name=", b"good", "name")],
)
async def test_what_is_wrong_is_told(query, body, says):
    async with serving(CountingStreams(), recordings=Echo()) as server:
        server.read_words = read
        status, _, said = await post(server.port, body, path=f"/v1/context?{query}")
        assert status == 400
        assert says in json.loads(said)["error"]["message"]


async def test_whoever_may_only_listen_sends_none():
    bind = BindOptions(port=0, token=TOKEN, listen_token=LISTENER)
    async with serving(CountingStreams(), bind=bind, recordings=Echo()) as server:
        server.read_words = read
        for token, wanted in ((TOKEN, 200), (LISTENER, 403)):
            status, _, _ = await post(
                server.port,
                b"word",
                f"Authorization: Bearer {token}",
                path="/v1/context?name=a.txt",
            )
            assert status == wanted


async def test_a_server_that_reads_none_refuses():
    async with serving(CountingStreams(), recordings=Echo()) as server:
        status, _, _ = await post(server.port, b"word", path="/v1/context?name=a.txt")
        assert status == 405


async def test_documents_that_take_long_do_not_keep_others_from_threads():
    begun, goes_on = Event(), Event()

    def slowly(file, name):
        begun.set()
        goes_on.wait()
        return []

    async with serving(CountingStreams(), recordings=Echo()) as server:
        server.read_words = slowly
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        sent = [
            asyncio.ensure_future(post(server.port, b"x", path="/v1/context?name=a.txt"))
            for _ in range(4)
        ]
        while not begun.is_set():
            await turns(1)
        assert await asyncio.to_thread(lambda: "sound") == "sound"
        goes_on.set()
        assert [status for status, *_ in await asyncio.gather(*sent)] == [200] * 4
