"""What NATS costs: the delay of a final, and processor and memory of the nodes and of NATS.

    python benchmarks/cluster.py [--seconds 20] [--speakers 4]

Everything twice: one node without a bus, and two nodes on a NATS server of their own with storage
on disk. Delay: a process publishes finals twenty times a second, without an engine, and a listener
here notes how late they come, on that node and on the other one. Cost: ``streamd serve`` with real
speech in real time; the listeners are on the other node. Prints a table and, last, a JSON line.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import soundfile

from sounds import RECORDING
from streamd.config import load
from streamd.daemon import build, serving
from streamd.events import Final
from streamd.server.client import watch
from streamd.streams import Streams
from streamd.system.processor import machine
from streamd.types import SAMPLE_RATE

BIN = Path(sys.executable).parent
SPEAK = Path(__file__).parents[1] / "clients/python/speak.py"
PERIOD_S = 0.05


async def publish(bus: str, session: str) -> None:
    """Serve, and publish finals in `session`, if it has a name, until standard input ends."""
    config = load({"port": "0", "source": "false", "bus": bus}, {})
    with serving.storage(config) as storage:
        every = Streams(
            lambda _: build.new_session(config), max_backlog=500, max_ingest=8, storage=storage
        )
        keeping = asyncio.create_task(every.keep())
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        async with serving.server(config, every) as server:
            assert server is not None
            if session:
                await every.prepare(session, feeds=True)
                stream = every.open(session)
                await stream.stored()
            print(server.port, flush=True)
            while not ended.done():
                await asyncio.sleep(PERIOD_S)
                if session:
                    text = f"{time.monotonic():.6f}"
                    final = Final(seg=1, start_ms=0, end_ms=0, text=text, language="en")
                    stream.hub.publish(final)
        keeping.cancel()


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


async def measure(seconds: float, n_speakers: int) -> dict[str, Any]:
    """Measure everything and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        bus = "nats://127.0.0.1:24222"
        server = (str(BIN / "nats-server"), "-js", "-sd", folder, "-a", "127.0.0.1", "-p", "24222")
        async with program(*server, ready=b"Server is ready") as (nats, _):
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
    args = parser.parse_args()
    if args.publish is not None:
        asyncio.run(publish(args.publish, args.session))
    else:
        print(json.dumps(asyncio.run(measure(args.seconds, args.speakers))))
