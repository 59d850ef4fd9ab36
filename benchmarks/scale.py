"""How far nodes on one NATS server carry: what ``cluster.py --scale`` measures.

Opening sessions, holding them, finals, listeners, and what streamd asks of NATS, each with CPU time
per piece, since processes share the machine; and the memory of a node under load (``--minutes``).
"""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle
from typing import Protocol

import nats
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamd.streams.journal.jetstream import LEASES, LOG, JetStream
from tables import table

_AT_ONCE = 16
"""Clients that open sessions at the same time."""
N_FEEDS = 16
"""Sessions of a node that publish one final after the other."""
_SAMPLE_S = 10
_START = json.dumps({"type": "start", "rate": 16_000, "samples": 0})
_SILENCE = bytes(2 * 1600)
_LINE = b"{" + b" " * 400 + b"}"
"""As long as a final of ten words, with the times of the words."""
_KEPT_S = 23.0
"""Silence before which a session needs all of its audio, so that no lease says otherwise."""
_CHURN_S = 0.3
"""A client comes and goes, in the measurement of memory."""


class Process(Protocol):
    """A process that is measured."""

    pid: int
    url: str


Used = Callable[[int], tuple[float, float]]
"""CPU seconds and resident MB of a process."""


class Meter:
    """What processes have used since it was made."""

    def __init__(self, used: Used, nodes: list[Process], nats_pid: int) -> None:
        self._used, self._nodes, self._nats = used, nodes, nats_pid
        self._before, self._begin_s = self._now(), time.monotonic()

    def _now(self) -> tuple[float, float]:
        return sum(self._used(node.pid)[0] for node in self._nodes), self._used(self._nats)[0]

    def read(self) -> tuple[float, float, float]:
        """Return the CPU seconds of all nodes and of NATS, and the time, in seconds."""
        nodes_s, nats_s = self._now()
        took_s = time.monotonic() - self._begin_s
        return nodes_s - self._before[0], nats_s - self._before[1], took_s


async def opened(url: str, session: str) -> ClientConnection:
    """Open a session as a client that can resume it, and return its connection."""
    address = f"{url}/v1/stream?role=ingest&session={session}"
    connection = await connect(address, proxy=None, compression=None, ping_interval=None)
    await connection.send(_START)
    while json.loads(await connection.recv())["type"] != "started":
        pass
    return connection


async def open_many(nodes: list[Process], n: int, name: str) -> list[ClientConnection]:
    """Open `n` sessions, at each node in turn."""
    todo = iter([(f"{name}-{i}", node) for i, node in zip(range(n), cycle(nodes), strict=False)])
    found: list[ClientConnection] = []

    async def work() -> None:
        for session, node in todo:
            found.append(await opened(node.url, session))

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return found


async def close_all(connections: list[ClientConnection]) -> None:
    """Leave as clients that come back, which nobody waits for here."""
    for connection in connections:
        connection.transport.abort()
    await asyncio.gather(*(connection.wait_closed() for connection in connections))


async def n_stored(bus: str, stream: str) -> int:
    """Return how many messages a stream of the bus has ever stored."""
    client = await nats.connect(bus)
    try:
        return (await client.jetstream().stream_info(stream)).state.last_seq
    finally:
        await client.close()


async def opening(meter: Callable[[], Meter], nodes: list[Process], n: int) -> dict[str, float]:
    """Measure opening `n` sessions."""
    measured = meter()
    connections = await open_many(nodes, n, f"open{len(nodes)}")
    nodes_s, nats_s, took_s = measured.read()
    await close_all(connections)
    return {
        "a second": n / took_s,
        "node ms each": 1000 * nodes_s / n,
        "NATS ms each": 1000 * nats_s / n,
    }


async def finals(
    meter: Callable[[], Meter], nodes: list[Process], bus: str, seconds: float
) -> dict[str, float]:
    """Measure the finals that all nodes publish meanwhile, one after the other in each session."""
    before, measured = await n_stored(bus, LOG), meter()
    await asyncio.sleep(seconds)
    nodes_s, nats_s, took_s = measured.read()
    n = await n_stored(bus, LOG) - before
    return {
        "a second": n / took_s,
        "node ms each": 1000 * nodes_s / n,
        "NATS ms each": 1000 * nats_s / n,
    }


async def holding(
    meter: Callable[[], Meter], node: Process, bus: str, n: int, seconds: float
) -> dict[str, float]:
    """Measure `n` open sessions in which nothing is said: first no audio, then silence."""
    connections = await open_many([node], n, "hold")
    idle = meter()
    await asyncio.sleep(seconds)
    node_s, nats_s, took_s = idle.read()
    await _silent(connections, min(seconds, _KEPT_S))
    before, silent = await n_stored(bus, f"KV_{LEASES}"), meter()
    await _silent(connections, seconds)
    silent_s, nats_silent_s, took_silent_s = silent.read()
    n_leases = await n_stored(bus, f"KV_{LEASES}") - before
    await close_all(connections)
    return {
        "node ms a second": 1000 * node_s / took_s / n,
        "NATS ms a second": 1000 * nats_s / took_s / n,
        "node ms a second of silence": 1000 * silent_s / took_silent_s / n,
        "NATS ms a second of silence": 1000 * nats_silent_s / took_silent_s / n,
        "leases a second of silence": n_leases / took_silent_s / n,
    }


async def operations(meter: Callable[[], Meter], bus: str, n: int) -> dict[str, dict[str, float]]:
    """Measure what NATS needs for each kind of request, of which `n` come, many at a time."""

    async def beat() -> None:
        pass

    async def work(ask: Callable[[int], Awaitable[object]], todo: Iterator[int]) -> None:
        for i in todo:
            await ask(i)

    stream = JetStream(bus, days=1, replicas=1)
    running = asyncio.create_task(stream.run(beat))
    kinds: dict[str, Callable[[int], Awaitable[object]]] = {
        "line stored": lambda i: stream.put(f"{LOG}.{i}.run", _LINE, last=0),
        "lines read": lambda i: stream.following(f"{LOG}.{i}.run", 0),
        "lease stored": lambda i: stream.put(f"$KV.{LEASES}.{i}", _LINE, last=0),
        "lease read": lambda i: stream.newest(f"$KV.{LEASES}.{i}"),
        "event told": lambda i: stream.publish(f"streamd_told.{i}", _LINE),
    }
    found = {}
    await stream.newest(f"$KV.{LEASES}.0")  # connected
    for kind, ask in kinds.items():
        todo, measured = iter(range(n)), meter()
        await asyncio.gather(*(work(ask, todo) for _ in range(_AT_ONCE)))
        await stream.newest(f"$KV.{LEASES}.0")  # all that was told has arrived
        _, nats_s, took_s = measured.read()
        found[kind] = {"a second": n / took_s, "NATS ms each": 1000 * nats_s / n}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return found


async def _silent(connections: list[ClientConnection], seconds: float) -> None:
    begin_s, n = time.monotonic(), round(10 * seconds)
    for i in range(n):
        await asyncio.gather(*(connection.send(_SILENCE) for connection in connections))
        await asyncio.sleep(max(0.0, begin_s + (i + 1) / 10 - time.monotonic()))


@asynccontextmanager
async def listening(url: str, n: int) -> AsyncIterator[list[int]]:
    """Have `n` clients listen, and count what they get in the list's only number."""
    count = [0]

    async def listen() -> None:
        address = f"{url}&after=0"
        async with connect(address, proxy=None, compression=None, max_queue=None) as connection:
            async for _ in connection:
                count[0] += 1

    tasks = [asyncio.create_task(listen()) for _ in range(n)]
    try:
        yield count
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def delivering(
    used: Used, node: Process, session: str, n: int, seconds: float
) -> dict[str, float]:
    """Measure what a node needs to send finals to `n` listeners."""
    async with listening(f"{node.url}/v1/stream?session={session}", n) as count:
        while count[0] < 2 * n:  # noqa: ASYNC110 - until all are there
            await asyncio.sleep(0.1)
        before_s, before, begin_s = used(node.pid)[0], count[0], time.monotonic()
        await asyncio.sleep(seconds)
        took_s, n_got = time.monotonic() - begin_s, count[0] - before
        return {
            "a second": n_got / took_s,
            "ms each": 1000 * (used(node.pid)[0] - before_s) / n_got,
        }


async def sizes(used: Used, node: Process, n: int) -> dict[str, float]:
    """Measure the memory of a session and of a listener, in kB."""
    at_first = used(node.pid)[1]
    connections = await open_many([node], n, "size")
    with_sessions = used(node.pid)[1]
    async with listening(f"{node.url}/v1/stream?session=size-0", n):
        await asyncio.sleep(3)
        with_listeners = used(node.pid)[1]
    await close_all(connections)
    return {
        "session kB": 1024 * (with_sessions - at_first) / n,
        "listener kB": 1024 * (with_listeners - with_sessions) / n,
    }


async def _churn(url: str) -> None:
    while True:
        with suppress(ConnectionClosed, OSError):
            async with connect(url, proxy=None, compression=None) as connection:
                await connection.recv()
        await asyncio.sleep(_CHURN_S)


async def _dawdle(url: str) -> None:
    """Read so slowly that the server ends the connection, again and again."""
    while True:
        with suppress(ConnectionClosed, OSError):
            async with connect(url, proxy=None, compression=None, max_queue=1) as connection:
                connection.transport.pause_reading()
                await connection.wait_closed()
        await asyncio.sleep(_CHURN_S)


async def memory(
    used: Used,
    node: Process,
    speaking: Callable[[str], Awaitable[None]],
    *,
    n_listeners: int,
    minutes: float,
) -> list[tuple[float, float]]:
    """Return the resident MB of a node over time (minutes), once each `_SAMPLE_S`.

    Two speak, `n_listeners` listen, a tenth as many do not read, and others come and go; in the
    last tenth of the time nobody does.
    """
    begin_s, found = time.monotonic(), []

    async def sample(until: float) -> None:
        while (spent := (time.monotonic() - begin_s) / 60) < until:
            found.append((round(spent, 2), round(used(node.pid)[1], 1)))
            await asyncio.sleep(_SAMPLE_S)

    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(speaking(name)) for name in ("one", "two")]
        await asyncio.sleep(2)
        for name in ("one", "two"):
            url = f"{node.url}/v1/stream?session={name}"
            await stack.enter_async_context(listening(url, n_listeners // 2))
            tasks += [asyncio.create_task(_dawdle(url)) for _ in range(n_listeners // 20)]
            tasks.append(asyncio.create_task(_churn(url)))
        await sample(0.9 * minutes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await sample(minutes)
    return found


def growth(samples: list[tuple[float, float]]) -> dict[str, float]:
    """MB a minute in each third of the time under load, by a straight line through the samples."""
    loaded = [each for each in samples if each[0] < 0.9 * samples[-1][0]]
    n = len(loaded) // 3
    thirds = (loaded[:n], loaded[n : 2 * n], loaded[2 * n :])
    names = ("first third", "second third", "last third")
    return {
        name: round(statistics.linear_regression(*zip(*third, strict=True)).slope, 2)
        for name, third in zip(names, thirds, strict=True)
        if len(third) > 1
    }


def printed(rows: dict[str, dict[str, float]]) -> str:
    """Return a table with a line for each row, which all have the same columns."""
    head = ("", *next(iter(rows.values())))
    return table(head, [(name, *(f"{n:.3g}" for n in row.values())) for name, row in rows.items()])
