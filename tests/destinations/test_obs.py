"""Captions reach OBS as its protocol says; what goes wrong there is told in one line."""

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec.structs import replace
from websockets.asyncio.server import serve

from streamd.destinations.delivery import Delivery, DeliveryError
from streamd.destinations.obs import Obs, address_of, answer_to
from streamd.errors import ConfigError
from streamd.events import EndReason, SpeakerName
from streamd.streams.hub import Hub
from tests.support.loop import turns
from tests.support.receivers import Studio, studio
from tests.support.said import SPEECH, spoken


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", "ws://127.0.0.1:4455"),
        ("studio", "ws://studio:4455"),
        ("10.0.0.2:4444", "ws://10.0.0.2:4444"),
        ("wss://studio.example:1", "wss://studio.example:1"),
        ("[::1]:4444", "ws://[::1]:4444"),
    ],
)
def test_an_address_needs_little(given, address):
    assert address_of(given) == address


@pytest.mark.parametrize("given", ["http://host", "host:port", "ws://me:secret@host", "h:99999"])
def test_other_addresses_are_refused_without_the_password(given):
    with pytest.raises(ConfigError, match="obs:HOST:PORT") as refusal:
        address_of(given)
    assert "secret" not in str(refusal.value)


def test_the_proof_is_that_of_the_protocol():
    """Computed with the steps of obs-websocket's protocol.md by OpenSSL:

    printf %s passwordsalt | openssl dgst -sha256 -binary | base64, and again with the challenge.
    """
    assert answer_to("challenge", "salt", "password") == (
        "zTM5ki6L2vVvBQiTG9ckH1Lh64AbnCf6XZ226UmnkIA="
    )


async def test_a_final_is_shown_in_rows_that_fit():
    async with studio(Studio(password="a b c")) as there:
        obs = Obs(there.address, "a b c", {})
        for part in obs.parts(spoken(SPEECH)):
            await obs.send(part.content)
        await obs.close()
    rows = [caption.split("\n") for caption in there.captions]
    assert max(map(len, rows)) == 2
    assert max(len(row) for caption in rows for row in caption) <= 32
    assert " ".join(" ".join(caption) for caption in rows) == SPEECH
    assert there.n_connections == 1


async def test_a_caption_lasts_until_the_next_is_said():
    obs = Obs("ws://127.0.0.1:1", "", {})
    parts = obs.parts(spoken(SPEECH, word_ms=300))
    assert parts[-1].lasts_ms == 0
    assert 0 < sum(part.lasts_ms for part in parts) < 300 * len(SPEECH.split())


async def test_speakers_have_the_names_that_they_are_given():
    obs = Obs("ws://127.0.0.1:1", "", {1: "Ana"})
    events = (
        with_speaker(spoken("Hello."), 1),
        SpeakerName(speaker=2, name="Bob"),
        with_speaker(spoken("Hi.", start_ms=2000, seq=2), 2),
        with_speaker(spoken("So.", start_ms=4000, seq=3), 2),
    )
    shown = [part.content for event in events for part in obs.parts(event)]
    assert shown == ["Ana: Hello.", "Bob: Hi.", "So."]


def with_speaker(final, speaker):
    return replace(final, words=tuple(replace(word, speaker=speaker) for word in final.words))


@pytest.mark.parametrize(
    ("there", "password", "why"),
    [
        (Studio(password="right"), "wrong", "the password of STREAMD_OBS_PASSWORD is wrong"),
        (Studio(password="right"), "", "it wants a password: set STREAMD_OBS_PASSWORD"),
        (Studio(codes=[501]), "", "it is not streaming"),
        (Studio(codes=[207]), "", "it answers 207"),
        (Studio(drops=1), "", "it has closed"),
    ],
)
async def test_what_is_wrong_there_is_told(there, password, why):
    async with studio(there):
        obs = Obs(there.address, password, {})
        with pytest.raises(DeliveryError, match=why):
            await obs.send("text")
        await obs.close()


async def test_without_obs_the_user_hears_what_to_do():
    obs = Obs("ws://127.0.0.1:1", "", {})
    with pytest.raises(DeliveryError, match="start OBS and its websocket server"):
        await obs.open()


async def test_something_else_that_answers_is_told_from_obs():
    async def greet(socket):
        await socket.send('{"op": "hello"}')
        await socket.wait_closed()

    async with serve(greet, "127.0.0.1", 0) as server:
        obs = Obs(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", "", {})
        with pytest.raises(DeliveryError, match="does not speak obs-websocket 5"):
            await obs.open()


@asynccontextmanager
async def sending(there, password=""):
    """Give the hub of a session that is sent there until the context ends."""
    hub = Hub("live")
    delivery = Delivery(Obs(there.address, password, {1: "Ana"}), pauses_s=(0.0,))
    task = asyncio.ensure_future(
        delivery.run(hub, end_by=lambda: asyncio.get_running_loop().time() + 30)
    )
    await turns(5)
    yield hub
    hub.close(EndReason.END)
    await task


async def test_captions_go_on_when_obs_is_back(caplog):
    caplog.set_level(logging.INFO, "streamd")
    there = Studio(drops=1, password="hidden word")
    async with studio(there), sending(there, "hidden word") as hub:
        hub.publish(spoken("Hello there."))
        await there.heard.wait()
    assert there.captions == ["Hello there."]
    assert there.n_connections == 2
    assert "hidden word" not in caplog.text


async def test_captions_go_on_when_obs_was_restarted(caplog):
    caplog.set_level(logging.INFO, "streamd")
    there = Studio()
    async with AsyncExitStack() as stack:
        async with studio(there):
            hub = await stack.enter_async_context(sending(there))
            hub.publish(spoken("Before."))
            await there.heard.wait()
        hub.publish(spoken("Meanwhile.", seq=2))
        while "cannot connect" not in caplog.text:
            await turns(1)
        there.heard.clear()
        there.codes = [501]  # it streams a bit later
        async with studio(there):
            await there.heard.wait()
            await stack.aclose()
    assert there.captions == ["Before.", "Meanwhile."]
    assert "it is not streaming" in caplog.messages[-3]
    assert caplog.messages[-1].endswith(": 2 sent")
