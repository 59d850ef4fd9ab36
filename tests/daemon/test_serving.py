"""What the service manager says and hears; where the token comes from."""

import asyncio
import os
import re
import resource
import signal
import socket
import ssl
import sys
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from streamd.config import load, read_token
from streamd.daemon import serving
from streamd.daemon.serving import allow_files, inherited_socket, notify
from streamd.errors import BindError, ConfigError
from streamd.streams import Streams
from tests.support.programs import PROGRAM, begun, ended, logged
from tests.support.serving import certificate


def test_the_token_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "token").write_text("of-the-token-file\n")
    (tmp_path / "token").chmod(0o600)
    environ = {"STREAMD_TOKEN": " of-the-environment "}
    assert read_token(str(tmp_path / "token"), environ) == "of-the-token-file"
    assert read_token("", environ) == "of-the-environment"
    assert read_token("", {"STREAMD_TOKEN": " "}) is None
    assert load({}, environ) == load({}, {})
    with pytest.raises(ConfigError, match="STREAMD_TOKEN_FILE"):
        load({}, {"STREAMD_TOKEN_FILES": "x"})


def test_nobody_is_notified_where_there_is_no_service_manager(tmp_path, caplog):
    notify({}, "READY=1")
    assert not caplog.records
    notify({"NOTIFY_SOCKET": str(tmp_path / "gone")}, "READY=1")
    assert "cannot be notified" in caplog.text


def test_there_may_be_as_many_clients_as_files(monkeypatch, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        allow_files(20)
        few, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allow_files(10)
        assert few == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256 + 20
        assert not caplog.records
        allow_files(64)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256 + 64, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 300))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: limits == (300, 300) or 1 / 0)
    allow_files(1000)
    assert "limit of open files is 300 (ulimit -n); clients may need 1256" in caplog.text


async def test_all_who_are_in_and_all_who_come_may_be_connected(monkeypatch):
    """As many may say nothing so far as may be in: neither takes the files of journals."""
    asked: list[int] = []
    monkeypatch.setattr(serving, "allow_files", asked.append)
    given = {"port": "0", "set": ["limits.max_subscribers=1000"], "max-streams": "8"}
    config = load(given, {})
    streams = Streams(lambda _: pytest.fail("nobody speaks"), max_backlog=1, max_ingest=8)
    async with serving.server(config, streams):
        assert asked == [2 * (1000 + 2 * 8 + config.limits.max_uploads)]


def test_sockets_for_others_are_left_alone():
    assert inherited_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    with pytest.raises(BindError, match="got 2"):
        inherited_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"needs 2000 open files; ulimit -Hn says {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_flood_of_silent_tls_connections_ends_nobody(tmp_path, many_files):
    """More of them than open files; each would wait 10 s for its handshake."""
    certificate(tmp_path, "a")
    cert = tmp_path / "cert.pem"
    options = ("--journal", tmp_path / "journal", "--tls-cert", cert, "--tls-key")
    program = ("sh", "-c", 'ulimit -n 700 && exec "$0" serve --port 0 "$@"', PROGRAM)
    # In debug mode asyncio logs a traceback for each connection that ends in its handshake.
    quiet = {**os.environ, "PYTHONASYNCIODEBUG": ""}
    process = await begun(*program, *options, tmp_path / "key.pem", env=quiet)
    url, silent = await logged(process, rb"(?<=listening on )wss\S+"), []
    trust = ssl.create_default_context(cafile=cert)
    port = urlsplit(url).port
    async with connect(f"{url}?role=both", ssl=trust, proxy=None) as speaker:
        await speaker.recv()
        for _ in range(16):  # as many at a time as wait for `accept`
            knocking = [asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
            silent += [writer for _, writer in await asyncio.gather(*knocking)]
        async with connect(f"{url}?role=both", ssl=trust, proxy=None) as another:
            assert '"hello"' in str(await another.recv())
            await another.send('{"type":"stop"}')
            assert '"eos"' in str(await another.recv())
        await speaker.send('{"type":"stop"}')
        assert '"eos"' in str(await speaker.recv())
    assert b"Traceback" not in await ended(process, by=signal.SIGTERM)
    for each in silent:
        each.close()


async def test_under_a_service_manager(tmp_path):
    """It takes the socket, says that it is ready and alive, reloads, and says that it ends."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    listening = socket.create_server(("127.0.0.1", 0))
    environ = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}

    def said() -> str:
        return manager.recv(4096).decode()

    # As systemd does: the socket is number 3, and the number of the process is its own.
    become = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_FDS'] = '1';"
        "os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[2], sys.argv[2:])"
    )
    number = listening.fileno()
    command = (sys.executable, "-c", become, number, PROGRAM, "serve")
    process = await begun(*command, pass_fds=[number], env=environ)
    messages = [await asyncio.to_thread(said)]
    while not messages[-1].startswith("READY=1"):
        messages.append(await asyncio.to_thread(said))
    port = listening.getsockname()[1]
    assert re.search(rf"STATUS=.*:{port}/", messages[-1])
    async with connect(f"ws://127.0.0.1:{port}/v1/stream?role=both", proxy=None) as client:
        assert '"hello"' in str(await client.recv())
    assert await asyncio.to_thread(said) == "WATCHDOG=1"
    process.send_signal(signal.SIGTERM)
    while (message := await asyncio.to_thread(said)) != "STOPPING=1":
        assert message == "WATCHDOG=1"
    await ended(process)
    listening.close()
    manager.close()


@pytest.mark.parametrize("option", ["journal", "record"])
@pytest.mark.parametrize(("mode", "n_warnings"), [(0o700, 0), (0o755, 0), (0o775, 1), (0o1777, 1)])
def test_a_folder_that_others_may_write_is_named(tmp_path, caplog, option, mode, n_warnings):
    folder = tmp_path / "a b"
    folder.mkdir()
    folder.chmod(mode)
    with serving.storage(load({option: str(folder)}, {})):
        pass
    line = f"--{option}: others may write into {folder}; forbid it: chmod go-w '{folder}'"
    assert caplog.messages == [line] * n_warnings
