"""A webhook gets each event that lasts, signed, under an id that stays the same."""

import asyncio
import base64
import hmac
import json
import logging
import ssl

import pytest

from streamd.destinations.delivery import Delivery
from streamd.destinations.posting import HttpClient
from streamd.destinations.webhook import Webhook, key_of, signature
from streamd.errors import ConfigError
from streamd.events import Correction, EndReason, Gap, Notice, Vad
from streamd.streams.hub import Hub
from tests.support.loop import turns
from tests.support.receivers import Receiver, receiving
from tests.support.said import spoken


def test_the_signature_is_that_of_the_specification():
    """The example of the specification's first implementation (Svix, "verifying manually")."""
    key = key_of("whsec_plJ3nmyCDGBKInavdOK15jsl")
    body = b'{"event_type":"ping","data":{"success":true}}'
    made = signature(key, message_id="msg_loFOjxBNrRLzqYUf", sent_s=1731705121, body=body)
    assert made == "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


@pytest.mark.parametrize("secret", ["hunter2", "whsec_AAAA", "whsec_no base64 at all!!"])
def test_a_bad_secret_is_refused_without_being_named(secret):
    with pytest.raises(ConfigError, match="STREAMD_WEBHOOK_SECRET") as refusal:
        key_of(secret)
    assert secret.removeprefix("whsec_") not in str(refusal.value)


async def delivered(receiver, hub, *events, secret="a secret of many letters", path="/hook"):
    key = key_of(secret) if secret else None
    webhook = Webhook(f"{receiver.url}{path}", key, now_s=lambda: 1_800_000_000.5)
    delivery = Delivery(webhook, pauses_s=(0.0,))
    task = asyncio.ensure_future(
        delivery.run(hub, end_by=lambda: asyncio.get_running_loop().time() + 60)
    )
    await turns(5)
    for event in events:
        hub.publish(event)
    if not hub.closed:
        hub.close(EndReason.END)
    await task
    return delivery


async def test_what_lasts_is_sent_in_order():
    hub = Hub("live", epoch="e1")
    fixed = Correction(seq=1, first=0, last=0, text="Jane")
    with receiving(Receiver()) as there:
        await delivered(
            there,
            hub,
            Vad(speech=True, t_ms=0),
            spoken("Jan said hello."),
            fixed,
            Notice(wanted="hello", text="hello", start_ms=0, end_ms=400),
            Gap(t_ms=4000, duration_ms=100, why="paused"),
        )
    bodies = [json.loads(request.body) for request in there.requests]
    kinds = ["final", "correction", "notice", "gap", "eos"]
    assert [body["event"]["type"] for body in bodies] == kinds
    assert bodies[0]["event"]["text"] == "Jan said hello."
    assert bodies[0]["event"]["words"][0]["text"] == "Jan"
    assert {(body["session"], body["epoch"]) for body in bodies} == {("live", "e1")}
    assert bodies[0]["id"] == "live-e1-final-1"
    assert len({body["id"] for body in bodies}) == 5


async def test_each_request_is_signed_and_names_its_id():
    with receiving(Receiver()) as there:
        await delivered(there, Hub("live"), spoken("One."), secret="a secret of many letters")
    for request in there.requests:
        message_id = json.loads(request.body)["id"]
        assert request.headers["webhook-id"] == message_id
        assert request.headers["webhook-timestamp"] == "1800000000"
        signed = f"{message_id}.1800000000.".encode() + request.body
        digest = hmac.digest(b"a secret of many letters", signed, "sha256")
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


async def test_what_is_sent_again_has_the_same_id_and_order():
    with receiving(Receiver(codes=[503, 500, 429])) as there:
        delivery = await delivered(there, Hub("live"), spoken("One."), spoken("Two."))
    ids = [json.loads(request.body)["id"].rpartition("-final-")[2] for request in there.requests]
    assert ids[:5] == ["1", "1", "1", "1", "2"]
    assert delivery.n_lost == 0


async def test_the_same_note_twice_has_two_ids_and_a_replay_sends_none_again():
    hub, note = Hub("live", epoch="e"), Correction(seq=1, first=0, last=0, text="A")
    webhook = Webhook("http://127.0.0.1:1/", None)
    webhook.follow(hub)
    first = [*webhook.parts(note), *webhook.parts(note)]
    assert len({part.content[0] for part in first}) == 2
    webhook.follow(hub)
    assert [*webhook.parts(note), *webhook.parts(note)] == []
    assert len(webhook.parts(note)) == 1
    other = Webhook("http://127.0.0.1:1/", None)  # after a restart
    other.follow(hub)
    assert other.parts(note)[0].content == first[0].content
    await webhook.close()
    await other.close()


async def test_no_key_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx2").setLevel(logging.DEBUG)
    with receiving(Receiver(codes=[500])) as there:
        await delivered(there, Hub("live"), spoken("One."), path="/in?key=abc123")
    assert len(there.requests) == 3
    assert "abc123" not in caplog.text
    assert "many letters" not in caplog.text


async def test_certificates_are_read_once_for_all_sessions(monkeypatch):
    """Reading them takes a tenth of a second, in which nothing else goes on."""
    await HttpClient().close()
    monkeypatch.delattr(ssl, "SSLContext")
    await HttpClient().close()
