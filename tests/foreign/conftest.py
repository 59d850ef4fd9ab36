"""A real server with the model in the box, and the table of what came back to whom."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect

from streamd.cli.bench import n_edits, spoken
from tests.support import recorded

TOKEN = "a-token-of-the-tests"
_ROWS: pytest.StashKey[list[tuple[str, str, str]]] = pytest.StashKey()


@dataclass(frozen=True)
class Address:
    host: str  # with the port
    wyoming_port: int
    token: str = TOKEN

    @property
    def http(self) -> str:
        return f"http://{self.host}"

    @property
    def ws(self) -> str:
        return f"ws://{self.host}"


@pytest.fixture(scope="session")
def server(empty_store) -> Iterator[Address]:
    """The address of `streamd serve`, which wants a token."""
    yield from serving({"STREAMD_TOKEN": TOKEN})


@pytest.fixture(scope="session")
def open_server(empty_store) -> Iterator[Address]:
    """The address of one for clients that cannot send a token."""
    yield from serving({})


def serving(settings: dict[str, str]) -> Iterator[Address]:
    program = Path(sys.executable).with_name("streamd")
    # Without the clients' versions of the libraries that both use.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Longer windows get shorter where audio comes faster than the engine reads it, as some clients
    # send it: then the words of two clients could differ.
    process = subprocess.Popen(
        [program, "serve", "--port", "0", "--wyoming", "0", "--length", "3000"],
        env=environment | settings,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"ws://([^/]+)/", line):
                wyoming = re.search(r"Wyoming on 127\.0\.0\.1, port (\d+)", "".join(said))
                yield Address(found[1], int(wyoming[1]))
                break
        else:
            pytest.fail("".join(said))
        process.terminate()
        assert "Traceback" not in "".join((*said, *process.stderr))
    assert process.returncode == 0


@pytest.fixture(scope="session")
def wyoming_port(server: Address) -> int:
    """The port for Home Assistant, which wants no token."""
    return server.wyoming_port


@pytest.fixture(scope="session")
def speech() -> np.ndarray:
    """Three sentences and two seconds of silence: 16-bit samples at 16 kHz."""
    sound = np.concatenate((recorded.three_sentences(), np.zeros(32_000, np.float32)))
    return (sound * 32767).astype("<i2")


@pytest.fixture(scope="session")
def native(server: Address, speech: np.ndarray) -> str:
    """What a client of streamd.v1 is told of it."""
    return told_natively(server, speech)


def told_natively(server: Address, samples: np.ndarray, rate_hz: int = 16_000) -> str:
    """What a client of streamd.v1 is told of 16-bit samples at any rate."""
    authorization = {"Authorization": f"Bearer {server.token}"}
    url = f"{server.ws}/v1/stream?role=both"
    with connect(url, additional_headers=authorization) as connection:
        connection.send(json.dumps({"type": "start", "rate": rate_hz}))
        for begin in range(0, len(samples), rate_hz // 10):
            connection.send(samples[begin : begin + rate_hz // 10].tobytes())
        connection.send('{"type":"stop"}')
        events = [json.loads(message) for message in connection]
    assert (events[0]["model"], events[0]["language"]) == ("tiny.en", "en")
    finals = [event["text"] for event in events if event["type"] == "final"]
    return " ".join(finals)


def assert_same_words(text: str, native: str, *, share: float = 0.08) -> str:
    """At most this share of the words differs; return how many, for the table.

    Sound that comes as fast as it can is cut into windows by when the engine is free, and tiny.en
    writes "my fellow Americans" in some of them, "am I fellow Americans" in others: 3 of 38. Agents
    ask for short pauses, so there are more utterances, and each first word is a guess on a busy
    machine ("How to Fis 1800. A later side" for "Out of his 1800, he laid aside"): they may have
    30 %.
    """
    reference = spoken(native)
    n_differ = n_edits(reference, spoken(text))
    assert n_differ <= share * len(reference), text
    return f"{n_differ} of {len(reference)} words differ"


@pytest.fixture
def came_back(request):
    """Call it with the name of a package, what was run, and what came back: a row of the table."""
    rows = request.config.stash.setdefault(_ROWS, [])

    def note(package: str, ran: str, answer: str) -> None:
        rows.append((f"{package} {version(package)}", ran, answer))

    return note


def pytest_terminal_summary(terminalreporter, config) -> None:
    if not (rows := config.stash.get(_ROWS, [])):
        return
    terminalreporter.section("clients")
    head = ("client", "what was run", "what came back")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *sorted(rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line(line.rstrip())
