"""The example subscribers, run as programs against the real server."""

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from streamd.events import Final, Partial
from streamd.streams.hub import Hub, Subscription
from tests.support.serving import CountingStreams, Relay, serving

CLIENTS = Path(__file__).parents[2] / "clients"
# Playwright brings a Node of its own, which is new enough.
NODE = str(compute_driver_executable()[0])
COMMANDS = {
    "python": [sys.executable, str(CLIENTS / "python" / "subscribe.py")],
    "node": [NODE, str(CLIENTS / "node" / "subscribe.mjs")],
    "shell": [str(CLIENTS / "shell" / "subscribe.sh")],
}
each_client = pytest.mark.parametrize("client", COMMANDS)


def final(text: str) -> Final:
    return Final(seg=0, start_ms=0, end_ms=20, text=text, language="en")


@asynccontextmanager
async def subscriber(
    client: str, port: int, *session: str, token: str = ""
) -> AsyncIterator[Process]:
    command = [*COMMANDS[client], f"ws://127.0.0.1:{port}", *session]
    environment = {**os.environ, "STREAMD_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout
    text = (await process.stdout.readline()).decode().rstrip("\n")
    return json.loads(text)["text"] if text.startswith("{") else text


@each_client
def test_who_asks_for_help_gets_it(client):
    done = subprocess.run([*COMMANDS[client], "--help"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"[ws://HOST:PORT [SESSION]]" in done.stderr


def test_the_python_one_is_short_and_stands_alone():
    text = (CLIENTS / "python" / "subscribe.py").read_text()
    assert len(text.splitlines()) < 65
    assert "import streamd" not in text
    assert "from streamd" not in text


class NoticingHub(Hub):
    """Says when somebody has subscribed."""

    def __init__(self, epoch: str) -> None:
        super().__init__("live", epoch=epoch)
        self.subscribed = asyncio.Event()

    def subscribe(self, *args, **options) -> Subscription:
        self.subscribed.set()
        return super().subscribe(*args, **options)


@each_client
async def test_it_prints_finals_only_across_a_lost_connection_and_a_restart(client, streams):
    streams.live = NoticingHub("e1")
    streams.live.publish(final("before"))
    async with (
        serving(streams) as server,
        Relay(server.port) as relay,
        subscriber(client, relay.port) as process,
    ):
        await streams.live.subscribed.wait()
        streams.live.publish(Partial(seg=1, rev=0, start_ms=0, end_ms=20, text="on", stable=0))
        streams.live.publish(final("one"))
        assert await line(process) == "one"
        relay.cut()
        streams.live.publish(final("two"))
        assert await line(process) == "two"
        streams.live = NoticingHub("e2")
        streams.live.publish(final("eins"))
        relay.cut()
        assert await line(process) == "eins"
        streams.live.close("stop")
        out, _ = await process.communicate()
        assert (out, process.returncode) == (b"", 0)


@each_client
async def test_it_ends_with_the_reason_if_the_server_refuses(client):
    async with (
        serving(CountingStreams()) as server,
        subscriber(client, server.port, "nobody") as process,
    ):
        _, err = await process.communicate()
        assert process.returncode == 1
        assert "there is no session 'nobody'" in err.decode()


@each_client
@pytest.mark.parametrize(
    ("token", "told"), [("secret", ""), ("wrong", "this token is wrong"), ("", "token required")]
)
async def test_it_shows_its_token_or_why_it_is_refused(client, token, told, streams):
    streams.live.close("stop")
    async with (
        serving(streams, token="secret") as server,
        subscriber(client, server.port, token=token) as process,
    ):
        _, err = await process.communicate()
        assert process.returncode == bool(told)
        assert told in err.decode()
        assert told or not err
