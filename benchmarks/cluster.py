"""What NATS costs: the delay of a final, and processor and memory of the nodes and of NATS.

    python benchmarks/cluster.py [--seconds 20] [--speakers 4]
    python benchmarks/cluster.py --scale [--nodes 1 3 6] [--sessions 200] [--minutes 30]

Everything twice: one node without a bus, and two nodes on a NATS server of their own with storage
on disk. Delay: a process publishes finals twenty times a second, without an engine, and a listener
here notes how late they come, on that node and on the other one. Cost: ``streamd serve`` with real
speech in real time; the listeners are on the other node. Prints a table and, last, a JSON line.

With ``--scale``, what `scale.py` says, of so many ``--nodes`` without an engine; the memory over
time is that of ``streamd serve`` with two speakers and as many listeners as ``--sessions``.
"""

import argparse
import asyncio
import importlib.util
import json
import math
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile

import scale
from sounds import RECORDING
from streamd.config import load, without_source
from streamd.daemon import build, serving
from streamd.events import Final
from streamd.server.client import watch
from streamd.streams import Streams
from streamd.system.processor import machine
from streamd.types import SAMPLE_RATE

BIN = Path(sys.executable).parent
SPEAK = Path(__file__).parents[1] / "clients/python/speak.py"
PERIOD_S = 0.05


async def publish(bus: str, session: str, n_feeds: int) -> None:
    """Serve, and publish finals until standard input ends: in `session`, if it has a name.

    `n_feeds` further sessions publish one final after the other, each when the last one is stored.
    """
    limits = {"max-streams": "1000", "set": ["limits.max_subscribers=1000"]}
    config = without_source(load({"port": "0", "bus": bus, **limits}, {}))
    with serving.storage(config) as storage:
        every = Streams(
            lambda _: build.new_session(config), max_backlog=500, max_ingest=1000, storage=storage
        )
        keeping = asyncio.create_task(every.keep())
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        async with serving.server(config, every) as server, asyncio.TaskGroup() as tasks:
            assert server is not None
            names = [f"{os.getpid()}-{n}" for n in range(n_feeds)]
            feeding = [tasks.create_task(feed(every, name, 0)) for name in names]
            if session:
                feeding.append(tasks.create_task(feed(every, session, PERIOD_S)))
            print(server.port, flush=True)
            await ended
            for each in feeding:
                each.cancel()
        keeping.cancel()


async def feed(streams: Streams, session: str, period_s: float) -> None:
    """Publish finals until cancelled; with a period of 0 as fast as they are stored."""
    await streams.prepare(session, feeds=True)
    stream = streams.open(session)
    while True:
        await (asyncio.sleep(period_s) if period_s else stream.stored())
        text = f"{time.monotonic():.6f}"
        final = Final(seg=1, start_ms=0, end_ms=0, text=text, language="en")
        stream.hub.publish(final)


@asynccontextmanager
async def program(*words: str, ready: bytes) -> AsyncIterator[tuple[int, bytes]]:
    """Run a program; give its process's number and the line that said that it was ready."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    seen = b""
    while ready not in seen or not seen.endswith(b"\n"):
        if not (seen := await process.stdout.readline()):
            raise SystemExit(f"{words[0]} does not start")
    reading = asyncio.create_task(process.stdout.read())
    try:
        yield process.pid, seen
    finally:
        process.terminate()
        await process.wait()
        await reading


async def delays(port: int, n: int) -> list[float]:
    """Return how many milliseconds each of `n` finals needs to get here."""
    late: list[float] = []
    async with aclosing(watch(f"ws://127.0.0.1:{port}/v1/stream?session=talk")) as events:
        async for event in events:
            if isinstance(event, Final):
                late.append((time.monotonic() - float(event.text)) * 1000)
            if len(late) == n:
                break
    return late


async def delay_of_finals(bus: str, seconds: float) -> list[list[float]]:
    """Measure the delay at the node that publishes and, with a bus, at another one."""
    async with AsyncExitStack() as stack:
        ports = []
        for session in ("talk", "")[: 2 if bus else 1]:
            own = sys.executable, __file__, "--publish", bus, "--session", session
            _, line = await stack.enter_async_context(program(*own, ready=b"\n"))
            ports.append(int(line))
        n = round(seconds / PERIOD_S)
        return await asyncio.gather(*(delays(port, n) for port in ports))


def used(pid: int) -> tuple[float, float]:
    """CPU seconds and resident MB of a process; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return cpu_s, int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def speak(url: str, name: str, pcm: bytes) -> None:
    """Feed a session in real time."""
    spec = importlib.util.spec_from_file_location("speak", SPEAK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with module.Speaker(url, name) as speaker:
        for at in range(0, len(pcm), SAMPLE_RATE // 5):
            await speaker.send(pcm[at : at + SAMPLE_RATE // 5])
            await asyncio.sleep(0.1)


async def listen(url: str) -> None:
    """Read a session's events until cancelled."""
    async with aclosing(watch(url)) as events:
        async for _ in events:
            pass


async def cost(bus: str, n_speakers: int, seconds: float, nats: int) -> list[dict[str, Any]]:
    """Measure the node that is fed, the one that is listened to, and NATS."""
    sound, _ = soundfile.read(RECORDING, dtype="int16")
    pcm = sound[: round(seconds * SAMPLE_RATE)].tobytes()
    command = (str(BIN / "streamd"), "serve", "-m", "tiny.en", "--port", "0")
    command += ("--bus", bus) if bus else ()
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(program(*command, ready=b"listening on"))
            for _ in range(2 if bus else 1)
        ]
        urls = [line.split()[-1].decode().removesuffix("/v1/stream") for _, line in nodes]
        names = [f"talk-{n}" for n in range(n_speakers)]
        await speak(urls[0], "warm", pcm[: 3 * 2 * SAMPLE_RATE])
        pids = [pid for pid, _ in nodes] + ([nats] if bus else [])
        before = [used(pid) for pid in pids]
        began_s = time.monotonic()
        speaking = [asyncio.create_task(speak(urls[0], name, pcm)) for name in names]
        await asyncio.sleep(1)
        query = "/v1/stream?session="
        listening = [asyncio.create_task(listen(f"{urls[-1]}{query}{name}")) for name in names]
        await asyncio.gather(*speaking)
        took_s = time.monotonic() - began_s
        after = [used(pid) for pid in pids]
        for each in listening:
            each.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
    kinds = ("node that is fed", "other node", "NATS") if bus else ("node",)
    return [
        {"process": kind, "cpu": round((b[0] - a[0]) / took_s, 3), "mb": round(b[1])}
        for kind, a, b in zip(kinds, before, after, strict=True)
    ]


@dataclass
class Running:
    """A node: its process's number and its address."""

    pid: int
    url: str


@asynccontextmanager
async def nodes_of(
    bus: str, n: int, *, session: str = "", n_feeds: int = 0
) -> AsyncIterator[list[Running]]:
    """Run nodes without an engine, of which the first publishes in `session`."""
    async with AsyncExitStack() as stack:
        found = []
        for name in (session, *[""] * (n - 1)):
            own = (sys.executable, __file__, "--publish", bus, "--session", name)
            own += ("--feeds", str(n_feeds))
            pid, line = await stack.enter_async_context(program(*own, ready=b"\n"))
            found.append(Running(pid, f"ws://127.0.0.1:{int(line)}"))
        yield found


async def measure_scale(
    seconds: float, n: int, minutes: float, numbers: list[int]
) -> dict[str, Any]:
    """Measure how far it carries, and print the tables."""
    found: dict[str, Any] = {"machine": msgspec.to_builtins(machine())}
    opening, finals = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    async with nats_server() as (bus, nats):
        for n_nodes in numbers:
            async with nodes_of(bus, n_nodes) as nodes:
                meter = partial(scale.Meter, used, nodes, nats)
                opening[f"{n_nodes} nodes"] = await scale.opening(meter, nodes, n)
            async with nodes_of(bus, n_nodes, n_feeds=scale.N_FEEDS) as nodes:
                meter = partial(scale.Meter, used, nodes, nats)
                finals[f"{n_nodes} nodes"] = await scale.finals(meter, nodes, bus, seconds)
        meter = partial(scale.Meter, used, [], nats)
        before_mb = used(nats)[1]
        found["ask"] = await scale.operations(meter, bus, 100 * n)
        await asyncio.sleep(seconds)  # NATS drops what it has cached of messages
        found["kept"] = {"NATS kB a session": 1024 * (used(nats)[1] - before_mb) / (100 * n)}
        async with nodes_of(bus, 2, session="talk") as nodes:
            found["deliver"] = {
                name: await scale.delivering(used, node, "talk", n, seconds)
                for name, node in zip(("node that is fed", "other node"), nodes, strict=True)
            }
        async with nodes_of(bus, 1) as nodes:
            meter = partial(scale.Meter, used, nodes, nats)
            found["hold"] = await scale.holding(meter, nodes[0], bus, min(n, 100), seconds)
        async with nodes_of(bus, 1) as nodes:
            found["size"] = await scale.sizes(used, nodes[0], n)
    found |= {"open": opening, "final": finals}
    for title, rows in (
        ("sessions opened", opening),
        ("finals stored", finals),
        ("what is asked of NATS", found["ask"]),
        ("finals sent to listeners", found["deliver"]),
        ("a session that is held", {"": found["hold"]}),
        ("memory", {"": found["size"] | found["kept"]}),
    ):
        print(f"\n{title}\n{scale.printed(rows)}")
    if minutes:
        found["memory"] = await measure_memory(n, minutes)
        found["growth"] = scale.growth(found["memory"])
        print(f"\nMB a minute: {found['growth']}; at last {found['memory'][-1][1]} MB")
    return found


async def measure_memory(n_listeners: int, minutes: float) -> list[tuple[float, float]]:
    """Return the resident memory (MB) of a whole node by time (minutes)."""
    sound, _ = soundfile.read(RECORDING, dtype="int16")
    pcm = np.tile(sound, math.ceil(minutes)).tobytes()
    limit = "--set", f"limits.max_subscribers={2 * n_listeners}"
    async with nats_server() as (bus, _):
        command = (str(BIN / "streamd"), "serve", "-m", "tiny.en", "--port", "0", "--bus", bus)
        async with program(*command, *limit, ready=b"listening on") as (pid, line):
            node = Running(pid, line.split()[-1].decode().removesuffix("/v1/stream"))
            return await scale.memory(
                used,
                node,
                lambda name: speak(node.url, name, pcm),
                n_listeners=n_listeners,
                minutes=minutes,
            )


@asynccontextmanager
async def nats_server() -> AsyncIterator[tuple[str, int]]:
    """Run NATS with storage on disk; give its address and its process's number."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        own = (str(BIN / "nats-server"), "-js", "-sd", folder, "-a", "127.0.0.1", "-p", port)
        async with program(*own, ready=b"Server is ready") as (pid, _):
            yield f"nats://127.0.0.1:{port}", pid


async def measure(seconds: float, n_speakers: int) -> dict[str, Any]:
    """Measure everything and print the table."""
    async with nats_server() as (bus, nats):
        (alone,) = await delay_of_finals("", seconds)
        here, there = await delay_of_finals(bus, seconds)
        costs = {
            "without a bus": await cost("", n_speakers, seconds, nats),
            "on NATS": await cost(bus, n_speakers, seconds, nats),
        }
    rows = {"without a bus": alone, "on NATS, the same node": here, "on NATS, another node": there}
    told = {
        name: {
            "ms_p50": round(statistics.median(ms), 2),
            "ms_p99": round(sorted(ms)[-len(ms) // 100], 2),
        }
        for name, ms in rows.items()
    }
    print("| a final | p50 ms | p99 ms |\n|---|---|---|")
    for name, row in told.items():
        print(f"| {name} | {row['ms_p50']} | {row['ms_p99']} |")
    print(f"\n| {n_speakers} speakers | CPU | MB |\n|---|---|---|")
    for name, each in costs.items():
        for row in each:
            print(f"| {name}: {row['process']} | {row['cpu']:.3f} | {row['mb']} |")
    return {"machine": msgspec.to_builtins(machine()), "delay": told, "cost": costs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--speakers", type=int, default=4)
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    parser.add_argument("--session", default="", help=argparse.SUPPRESS)
    parser.add_argument("--feeds", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--scale", action="store_true", help="how far it carries")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3, 6], help="with --scale")
    parser.add_argument("--sessions", type=int, default=200, help="opened, with --scale")
    parser.add_argument("--minutes", type=float, default=30.0, help="of memory, with --scale")
    args = parser.parse_args()
    if args.publish is not None:
        asyncio.run(publish(args.publish, args.session, args.feeds))
    elif args.scale:
        told = asyncio.run(measure_scale(args.seconds, args.sessions, args.minutes, args.nodes))
        print(json.dumps(told))
    else:
        print(json.dumps(asyncio.run(measure(args.seconds, args.speakers))))
