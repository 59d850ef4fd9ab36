import asyncio
import socket
import sys

import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import InvalidStatus

from streamd.errors import BindError, ConfigError
from streamd.options import BindOptions
from streamd.server import Server
from tests.support.network import run_isolated
from tests.support.serving import INFO, CountingStreams, client, joined, serving


async def http(port: int, request: str) -> str:
    """The whole answer to a request as it stands."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace("\n", "\r\n").encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


def status(answer: str) -> int:
    return int(answer.split()[1])


async def refusal(port: int, **options: object) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with client(port, **options):
            pass
    return caught.value.response.status_code


HOST = "localhost"


@pytest.mark.parametrize(
    ("path", "host", "wanted"),
    [
        ("/healthz", HOST, 200), ("/healthz?x", HOST, 200), ("/", HOST, 200),
        ("/overlay?size=9", HOST, 200), ("/page.js", HOST, 200), ("/../door.py", HOST, 404),
        ("/v1", HOST, 404), ("/v1/stream", HOST, 426), ("/v1/sessions", HOST, 200),
        # our own names
        ("/healthz", "127.0.0.1", 200), ("/healthz", "[::1]:1", 200),
        ("/healthz", "LOCALHOST:99", 200),
        # other names for this machine
        ("/healthz", "evil.example", 403), ("/healthz", "localhost.evil.example", 403),
        ("/healthz", "[::1", 403), ("/healthz", "10.0.0.1", 403), ("/healthz", "", 403),
        ("/healthz", "localhost:1;x", 403),
    ],
)  # fmt: skip
async def test_http_answers_under_our_own_names(path, host, wanted, server):
    answer = await http(server.port, f"GET {path} HTTP/1.1\nHost: {host}\n\n")
    assert status(answer) == wanted


async def test_the_page_may_run_its_own_scripts_and_reach_this_server_only(server):
    head, _, body = (await http(server.port, "GET / HTTP/1.1\nHost: localhost:81\n\n")).partition(
        "\r\n\r\n"
    )
    assert body.startswith("<!doctype html>")
    policy = next(row for row in head.splitlines() if row.startswith("Content-Security-Policy"))
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "connect-src 'self' ws://localhost:81 wss://localhost:81;" in policy
    assert "unsafe" not in policy
    assert f"Content-Length: {len(body.encode())}" in head


async def test_nothing_but_name_and_port_gets_into_the_policy():
    async with serving(CountingStreams(), token="secret") as server:
        for host in ("localhost:1;script-src *", "a;script-src *", "a b"):
            answer = await http(server.port, f"GET / HTTP/1.1\nHost: {host}\n\n")
            assert status(answer) == 403
        answer = await http(server.port, "GET / HTTP/1.1\nHost: [::1]:81/; *\n\n")
        assert "connect-src 'self' ws://[::1]:81 wss://[::1]:81; base-uri" in answer


async def test_the_sessions_are_listed_to_whoever_may_hear_them():
    async with serving(CountingStreams(), token="secret") as server:
        request = "GET /v1/sessions HTTP/1.1\nHost: localhost\n"
        assert status(await http(server.port, f"{request}\n")) == 401
        answer = await http(server.port, f"{request}Authorization: Bearer secret\n\n")
        assert answer.endswith('{"sessions":[{"name":"live"}],"may":"keep"}')


@pytest.mark.parametrize(
    "names",
    [
        ["streamd.v1", "streamd.bearer.{}"],
        ["realtime", "openai-insecure-api-key.{}"],
        ["token", "{}"],  # Deepgram's pages
        ["bearer", "{}"],
    ],
)
async def test_a_page_shows_the_token_as_a_subprotocol(names):
    async with serving(CountingStreams(), token="secret") as server:
        right, wrong = ([name.format(token) for name in names] for token in ("secret", "wrong"))
        async with client(server.port, subprotocols=right) as listener:
            assert listener.connection.subprotocol == names[0]
        assert await refusal(server.port, subprotocols=wrong) == 401
        if names[1] == "{}":
            assert await refusal(server.port, subprotocols=right[::-1]) == 401


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost.evil.example", "null", "http://[::1", "file://"],
)
async def test_pages_of_other_sites_are_refused(origin, server):
    assert await refusal(server.port, origin=origin) == 403


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443", None]
)
async def test_our_own_pages_are_allowed(origin, server):
    async with client(server.port, origin=origin) as listener:
        assert (await listener.get())["type"] == "hello"


async def test_a_page_that_we_serve_under_another_name_is_allowed_with_the_token():
    headers = {"Authorization": "Bearer secret", "Host": "captions.example"}
    async with serving(CountingStreams(), token="secret") as server:
        for origin, wanted in (("https://captions.example", 101), ("https://evil.example", 403)):
            request = "\n".join(
                [
                    "GET /v1/stream HTTP/1.1",
                    *(f"{name}: {value}" for name, value in headers.items()),
                    f"Origin: {origin}",
                    "Upgrade: websocket",
                    "Connection: Upgrade",
                    "Sec-WebSocket-Version: 13",
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                ]
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"{request}\n\n".replace("\n", "\r\n").encode())
            assert int((await reader.readline()).split()[1]) == wanted
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    "shown", [None, "Bearer wrong", "Bearer", "secre", "Basic secret", "Bearer s\u00e9cret"]
)
async def test_without_the_token_no_client_is_allowed(shown):
    headers = {} if shown is None else {"Authorization": shown}
    async with serving(CountingStreams(), token="secret\n") as server:
        assert await refusal(server.port, additional_headers=headers) == 401
        right = {"additional_headers": {"Authorization": "Bearer secret"}}
        async with client(server.port, **right) as listener:
            assert (await listener.get())["type"] == "hello"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "captions.example", ""])
async def test_other_machines_are_not_allowed_without_a_token(host):
    with pytest.raises(ConfigError, match="--token-file"):
        async with Server(BindOptions(host=host, port=0), sessions=CountingStreams(), info=INFO):
            pass


def test_the_inherited_socket_decides_whether_a_token_is_needed():
    """In a network of its own, since it listens on every address."""
    program = """
import socket
from streamd.errors import ConfigError
from streamd.options import BindOptions
from streamd.server import Server
from tests.support.serving import INFO, CountingStreams
with socket.create_server(("0.0.0.0", 0)) as open_to_all:
    try:
        Server(BindOptions(), sessions=CountingStreams(), info=INFO, listening=open_to_all)
    except ConfigError as error:
        print(error)
"""
    done = run_isolated(sys.executable, "-c", program, joined=False)
    assert "refusing to listen on 0.0.0.0 without a token" in done.stdout


async def test_an_ipv6_address_is_announced_as_one():
    bind = BindOptions(host="::1", port=0)
    try:
        async with Server(bind, sessions=CountingStreams(), info=INFO) as server:
            assert server.url == f"ws://[::1]:{server.port}/v1/stream"
            async with connect(server.url, proxy=None) as listener:
                assert '"hello"' in str(await listener.recv())
    except BindError:
        pytest.skip("needs IPv6")


async def test_a_unix_socket_is_announced_as_one(tmp_path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    async with Server(
        BindOptions(), sessions=CountingStreams(), info=INFO, listening=listening
    ) as server:
        assert server.url == f"unix:{tmp_path / 's'}"
        async with unix_connect(str(tmp_path / "s"), uri="ws://localhost/v1/stream") as listener:
            assert '"hello"' in str(await listener.recv())


async def test_the_token_of_listeners_feeds_nothing():
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with Server(bind, sessions=CountingStreams(), info=INFO) as server:
        ears = {"additional_headers": {"Authorization": "Bearer ears"}}
        for query in ("", "session=live&role=listen"):
            async with client(server.port, query, **ears) as listener:
                assert (await listener.get())["type"] == "hello"
        for query in ("role=ingest", "role=both&session=talk", "role=listen&role=both"):
            assert await refusal(server.port, query=query, **ears) == 403
        request = "GET /v1/sessions HTTP/1.1\nHost: localhost\nX-API-Key: "
        assert [status(await http(server.port, f"{request}{token}\n\n"))
                for token in ("ears", "secret", "nose")] == [200, 200, 401]  # fmt: skip
        async with client(
            server.port, "role=both", additional_headers={"X-API-Key": "secret"}
        ) as speaker:
            assert (await speaker.get())["type"] == "hello"
            server.reload(BindOptions(token="secret", listen_token="new"))
            assert await refusal(server.port, **ears) == 401


async def test_an_empty_token_protects_nothing():
    with pytest.raises(ConfigError, match="token is empty"):
        async with serving(CountingStreams(), token=" \n"):
            pass


async def test_a_port_in_use_is_named_with_the_cure():
    async with serving(CountingStreams()) as server:
        with pytest.raises(BindError, match=rf"port {server.port} .* in use.*--port"):
            async with serving(CountingStreams(), port=server.port):
                pass


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65536), ("192.0.2.1", 0)])
async def test_an_impossible_address_is_named(host, port):
    with pytest.raises(BindError, match=f"{host}.*--host"):
        async with Server(
            BindOptions(host=host, port=port, token="secret"), sessions=CountingStreams(), info=INFO
        ):
            pass


async def test_the_port_is_free_again_afterwards():
    async with serving(CountingStreams()) as server:
        port = server.port
        async with client(port) as listener:
            await listener.get()
    async with serving(CountingStreams(), port=port) as server:
        assert server.port == port


async def test_too_many_clients_are_told_to_try_later():
    async with serving(CountingStreams(), max_streams=0, max_subscribers=1) as server:
        async with joined(server.port):
            assert await refusal(server.port) == 503
        # The place is free once the server has seen the first one leave.
        while True:
            try:
                async with joined(server.port):
                    break
            except InvalidStatus:
                continue


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "TOKEN ", ""])
async def test_the_scheme_of_a_token_has_no_case_and_may_be_left_out(scheme):
    async with serving(CountingStreams(), token="secret") as server:
        request = f"GET /v1/sessions HTTP/1.1\nHost: localhost\nAuthorization: {scheme}secret\n\n"
        assert status(await http(server.port, request)) == 200


async def test_a_client_that_only_knows_an_address_shows_the_token_there():
    async with serving(CountingStreams(), token="secret") as server:
        async with client(server.port, "token=secret", path="/"):
            pass
        for query in ("token=wrong", "token=", "token"):
            with pytest.raises(InvalidStatus, match="401"):
                async with client(server.port, query, path="/"):
                    pass


async def test_the_page_and_a_websocket_share_an_address(server):
    page = await http(server.port, "GET / HTTP/1.1\nHost: localhost\n\n")
    assert "<html" in page
    upgrade = "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABk"
    assert "<html" in await http(server.port, f"GET / HTTP/1.1\nHost: localhost\n{upgrade}\n\n")
    async with client(server.port, path="/") as speaker:
        await speaker.say('{"config":{}}')
        await speaker.say(b"")
        assert await speaker.get() == {"partial": ""}


@pytest.mark.parametrize(("path", "wanted"), [("/healthz", 200), ("/", 200), ("/nothing", 404)])
async def test_head_is_answered_without_a_body(path, wanted, server):
    head, _, body = (
        await http(server.port, f"HEAD {path} HTTP/1.1\nHost: localhost\n\n")
    ).partition("\r\n\r\n")
    assert (status(head), body) == (wanted, "")
    got = await http(server.port, f"GET {path} HTTP/1.1\nHost: localhost\n\n")
    length = len(got.partition("\r\n\r\n")[2].encode())
    assert f"Content-Length: {length}" in head


@pytest.mark.parametrize("body", ["", "audio"])
async def test_other_methods_are_refused(body, server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n{body}".encode())
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert (status(answer), "Allow: GET, HEAD" in answer) == (405, True)
    writer.close()


@pytest.mark.parametrize("junk", [b"", b"\0", b"GET", b"POST / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
async def test_what_is_no_http_disturbs_nobody(junk, caplog):
    async with serving(CountingStreams()) as server, joined(server.port) as listener:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(junk)
        await (await listener.connection.ping())
    assert [record for record in caplog.records if record.exc_info] == []
