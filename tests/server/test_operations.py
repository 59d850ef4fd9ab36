"""What a load balancer, Prometheus and a browser with TLS get."""

import asyncio
import logging
import ssl
from collections import defaultdict
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from streamd.errors import ConfigError
from streamd.events import Final, Gap, Partial, Stats, Vad
from streamd.options import BindOptions, ServerLimits
from streamd.server import Invitation, Server
from streamd.streams.metrics import Metrics
from streamd.types import Hypothesis, Window, Work
from tests.support.serving import (
    INFO,
    CountingStreams,
    certificate,
    client,
    joined,
    serving,
)
from tests.support.uploads import exchange


async def get(port: int, path: str, *headers: str, host: str = "localhost") -> tuple[int, str]:
    rows = (f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", "")
    status, _, body = await exchange(port, "\r\n".join(rows).encode())
    return status, body.decode()


def final(text: str, end_ms: int = 1000) -> Final:
    return Final(seg=1, start_ms=0, end_ms=end_ms, text=text, language="en")


def partial(text: str) -> Partial:
    return Partial(seg=1, rev=1, start_ms=0, end_ms=20, text=text, stable=0, lag_ms=200)


async def test_ready_unless_there_is_a_reason(streams):
    async with serving(
        streams, max_streams=0, max_subscribers=1, max_lag_ms=1000, token="secret"
    ) as server:
        assert await get(server.port, "/readyz") == (200, '{"ready":true,"reasons":[]}')
        streams.reasons, streams.lag_ms = ["the model is not loaded yet"], 1020
        headers = {"Authorization": "Bearer secret"}
        async with joined(server.port, additional_headers=headers):
            status, body = await get(server.port, "/readyz")
            assert (await get(server.port, "/healthz"))[0] == 200
    assert status == 503
    assert msgspec.json.decode(body)["reasons"] == [
        "the model is not loaded yet",
        "the engine is 1020 ms behind",
        "no room for another client",
    ]


async def test_an_invitation_leads_to_a_session(streams):
    async with serving(streams) as server:
        server.invitation = Invitation("http://192.0.2.7:8765/#token=x")
        links = [
            msgspec.json.decode((await get(server.port, f"/v1/share{query}"))[1])["link"]
            for query in ("", "?session=talk", "?session")
        ]
        assert (await get(server.port, "/v1/share?session=a+%26+b"))[0] == 400
    plain = "http://192.0.2.7:8765/#token=x"
    assert links == [plain, "http://192.0.2.7:8765/?session=talk#token=x", plain]


async def test_metrics_need_the_token():
    async with serving(CountingStreams(), token="secret") as server:
        assert (await get(server.port, "/metrics"))[0] == 401
        for header in ("Authorization: Bearer secret", "X-API-Key: secret"):
            status, body = await get(server.port, "/metrics", header)
            assert status == 200
            assert 'streamd_build_info{model="fake",version=""} 1.0' in body


def test_metrics_count_what_happens():
    metrics = Metrics(version="1", model="tiny.en")
    observe = metrics.observer()
    for event in (
        Vad(speech=True, t_ms=500),
        partial("tern on"),
        partial("turn on"),
        final("turn on the light"),
        Vad(speech=False, t_ms=2000),
        Gap(t_ms=0, duration_ms=40, why="overrun"),
    ):
        observe(event, 1600)
    metrics.received(20)
    window = Window(0, 50, np.zeros(0, np.float32))
    work = Work(attempts=(("digits", False), ("fallback", True)))
    metrics.decoded(window, Hypothesis(temperature=0.2, work=work), 0.25)
    metrics.decoded(window, Hypothesis(), 0.25)
    text = metrics.text().decode()
    for row in (
        "streamd_speech_seconds_total 1.5",
        "streamd_partial_latency_seconds_sum 0.4",
        "streamd_lag_seconds_sum 0.6",
        'streamd_lag_seconds_bucket{le="0.5"} 0.0',
        'streamd_lag_seconds_bucket{le="0.75"} 1.0',
        "streamd_partial_rewrite_chars_total 6.0",
        'streamd_dropped_audio_seconds_total{why="overrun"} 0.04',
        "streamd_audio_seconds_total 0.02",
        "streamd_rtf 0.25",
        "streamd_decode_fallbacks_total 1.0",
        'streamd_decode_attempts_total{attempt="digits",kept="false"} 1.0',
        'streamd_decode_attempts_total{attempt="fallback",kept="true"} 1.0',
    ):
        assert row in text.splitlines()


async def test_stats_come_to_whoever_wants_them(streams, server):
    stats = Stats(audio_ms=20, lag_ms=0, lost_ms=0, rtf=0.1, listeners=2)
    async with joined(server.port, "stats=1") as curious, joined(server.port) as other:
        streams.live.publish(stats)
        streams.live.publish(final("a"))
        assert [message["type"] for message in await curious.until("final")] == ["stats", "final"]
        assert [message["type"] for message in await other.until("final")] == ["final"]


async def test_further_hosts_and_origins_can_be_named():
    bind = BindOptions(port=0, allow=("captions.local", "https://app.example"))
    async with Server(bind, sessions=CountingStreams(), info=INFO) as server:

        async def status(host: str, origin: str) -> int:
            answer, _ = await get(server.port, "/v1/sessions", f"Origin: {origin}", host=host)
            return answer

        assert await status("captions.local", "https://app.example") == 200
        assert await status("captions.local:81", "http://captions.local:81") == 200
        assert await status("other.local", "https://app.example") == 403
        for origin in ("http://app.example", "https://app.example.evil", "https://x.app.example"):
            assert await status("captions.local", origin) == 403


async def test_listeners_and_speakers_do_not_take_each_others_places(streams):
    streams.max_streams = 1
    async with (
        serving(streams, max_streams=1, max_subscribers=1) as server,
        joined(server.port),
        client(server.port, "role=ingest&session=talk") as speaker,
    ):
        epoch = (await speaker.get())["epoch"]
        await speaker.say({"type": "start", "samples": 0})
        await speaker.until("started")
        with pytest.raises(InvalidStatus) as refused:
            async with client(server.port):
                pass
        assert refused.value.response.status_code == 503
        again = f"role=ingest&session=talk&epoch={epoch}"
        async with client(server.port, again) as returning:  # its old connection still counts
            assert (await returning.get())["type"] == "hello"
        metrics = await get(server.port, "/metrics")
        assert "streamd_subscribers 1.0" in metrics[1].splitlines()


async def test_clients_from_another_machine_are_counted(monkeypatch):
    monkeypatch.setattr("streamd.server.registry.is_loopback", lambda host: False)
    async with serving(CountingStreams(), max_per_address=1) as server:
        async with joined(server.port):
            with pytest.raises(InvalidStatus) as refused:
                async with client(server.port):
                    pass
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["Retry-After"]


async def test_this_machine_is_not_counted():
    async with (
        serving(CountingStreams(), max_per_address=1) as server,
        client(server.port) as one,
        client(server.port) as two,
    ):
        assert (await one.get())["type"] == (await two.get())["type"] == "hello"


async def silent(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Whoever connects and says half a line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/str")
    return reader, writer


async def test_who_says_nothing_takes_nobodys_place_and_the_oldest_is_cut_off():
    async with serving(
        CountingStreams(), max_streams=0, max_subscribers=1, max_pending=3, max_uploads=0
    ) as server:
        knocking = [await silent(server.port) for _ in range(5)]
        for reader, _ in knocking[:2]:
            assert await reader.read() == b""
        async with client(server.port) as listener:  # the sixth: the third of them has to go
            assert (await listener.get())["type"] == "hello"
            assert await knocking[2][0].read() == b""
            for _, writer in knocking[3:]:
                writer.write(b"eam HTTP/1.1\r\n\r\n")
            for reader, _ in knocking[3:]:
                assert (await reader.read()).startswith(b"HTTP/1.1 400 ")  # no Host
            assert (await get(server.port, "/healthz"))[0] == 200
        for _, writer in knocking:
            writer.close()


async def test_a_crowd_of_strangers_pushes_only_itself_out(monkeypatch):
    addresses = iter(["192.0.2.1", *["192.0.2.2"] * 4])
    known = defaultdict(lambda: next(addresses))
    monkeypatch.setattr("streamd.server.registry._host", lambda connection: known[connection])
    async with serving(
        CountingStreams(), max_streams=0, max_subscribers=1, max_pending=3, max_uploads=0
    ) as server:
        alone = await silent(server.port)
        crowd = [await silent(server.port) for _ in range(4)]
        for reader, _ in crowd[:2]:
            assert await reader.read() == b""
        for reader, writer in (alone, *crowd[2:]):
            writer.write(b"eam HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        for _, writer in (alone, *crowd):
            writer.close()


async def test_who_is_silent_before_the_tls_handshake_is_counted_too(tmp_path):
    certificate(tmp_path, "a")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    bind = BindOptions(port=0, tls_cert=cert, tls_key=key)
    limits = ServerLimits(max_streams=0, max_subscribers=1, max_pending=3, max_uploads=0)
    limits = replace(limits, send_deadline_ms=1_000_000)  # not the deadline ends them
    async with Server(bind, sessions=CountingStreams(), info=INFO, limits=limits) as server:
        knocking = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for reader, _ in knocking[:2]:
            assert await reader.read() == b""
        trust = ssl.create_default_context(cafile=cert)
        async with connect(server.url, ssl=trust, proxy=None) as connection:
            assert '"hello"' in str(await connection.recv())
            assert await knocking[2][0].read() == b""
        for _, writer in knocking:
            writer.close()


async def test_who_does_not_even_speak_tls_is_cut_off(tmp_path):
    certificate(tmp_path, "a")
    bind = BindOptions(
        port=0, tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")
    )
    limits = ServerLimits(send_deadline_ms=100)
    async with Server(bind, sessions=CountingStreams(), info=INFO, limits=limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()


async def test_tls_and_a_new_certificate(tmp_path):
    certificate(tmp_path, "old")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    bind = BindOptions(port=0, tls_cert=cert, tls_key=key)
    async with Server(bind, sessions=CountingStreams(), info=INFO) as server:
        assert server.url == f"wss://127.0.0.1:{server.port}/v1/stream"

        async def name() -> str:
            trust = ssl.create_default_context(cafile=cert)
            async with connect(server.url, ssl=trust, proxy=None) as connection:
                assert '"hello"' in str(await connection.recv())
                shown = connection.transport.get_extra_info("peercert")
                return dict(pair for entry in shown["subject"] for pair in entry)["commonName"]

        assert await name() == "old"
        certificate(tmp_path, "new")
        server.reload(bind)
        assert await name() == "new"
        new = (tmp_path / "cert.pem").read_text()
        (tmp_path / "other").mkdir()
        certificate(tmp_path / "other", "other")
        for bad in ("garbage", (tmp_path / "other" / "cert.pem").read_text()):
            (tmp_path / "cert.pem").write_text(bad)
            with pytest.raises(ConfigError, match="--tls-cert"):
                server.reload(bind)
            (tmp_path / "cert.pem").write_text(new)  # for the client; the server does not read it
            assert await name() == "new"


@pytest.mark.parametrize("damage", ["missing", "foreign key"])
async def test_a_bad_certificate_is_named(tmp_path, damage):
    (tmp_path / "other").mkdir()
    if damage == "foreign key":
        certificate(tmp_path, "a")
        certificate(tmp_path / "other", "b")
    bind = BindOptions(
        tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "other" / "key.pem")
    )
    with pytest.raises(ConfigError, match=r"--tls-cert .*cert\.pem"):
        async with Server(bind, sessions=CountingStreams(), info=INFO):
            pass


async def test_no_token_is_logged(caplog):
    caplog.set_level("DEBUG")
    async with serving(CountingStreams(), token="secret-word") as server:
        for token in ("secret-word", "wrong-word"):
            try:
                async with client(
                    server.port, subprotocols=["streamd.v1", f"streamd.bearer.{token}"]
                ) as listener:
                    await listener.get()
            except InvalidStatus:
                pass
    ours = [record for record in caplog.records if "client" not in record.name]
    assert not any("-word" in record.getMessage() for record in ours)


async def test_who_comes_and_goes_is_not_told_unless_asked_for(caplog):
    caplog.set_level("WARNING")  # what the libraries may say without -vv
    async with serving(CountingStreams()) as server:
        await get(server.port, "/healthz")
        async with client(server.port, logger=logging.getLogger("client")) as listener:
            await listener.get()
    assert [record.name for record in caplog.records if "client" not in record.name] == []
