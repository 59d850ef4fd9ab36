"""What bad and many clients cost: the delay of those who behave, and the server's memory.

    python benchmarks/server.py [--seconds 30] [--only NAME...]

A server in a process of its own, with the daemon's sessions and without an engine, publishes finals
twenty times a second; five listeners in this process note how late they come. Meanwhile, in a third
process: nothing; a subscriber that is stopped (SIGSTOP); one that reads a byte a second; 500 at
once; 500 with 8 speakers in real time; 1000 that connect and go; 20 that have all finals replayed
again and again; a speaker that sends silence as fast as it is taken; 1000 that say nothing. Prints
a table and, last, a JSON line.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import numpy as np
from websockets.asyncio.client import connect

from streamd.config import load
from streamd.daemon import build, serving
from streamd.events import Final
from streamd.server import LIVE
from streamd.server.client import watch
from streamd.streams import Streams
from streamd.system.processor import machine

PERIOD_S = 0.05
N_LISTENERS = 5
N_BEFORE = 1000
"""Finals that can be replayed; without a journal that many are kept."""
ADDRESS = "/v1/stream?session=live"
QUIET = bytes(int(2 * 16_000 * PERIOD_S))


async def serve(n_letters: int) -> None:
    """The server's process: publishes until its standard input ends."""
    config = load({"port": "0", "max-subscribers": "10000"}, {})
    every = Streams(lambda _: build.new_session(config), max_backlog=500, max_ingest=8)
    hub = every.add(LIVE).hub
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with serving.server(config, every) as server:
        assert server is not None
        said = Final(seg=0, start_ms=0, end_ms=0, text="x" * 100, language="en")
        for _ in range(N_BEFORE):
            hub.publish(said)
        print(server.port, flush=True)
        while not ended.done():
            text = f"{time.monotonic():.6f} {'x' * n_letters}"
            hub.publish(msgspec.structs.replace(said, text=text))
            await asyncio.sleep(PERIOD_S)
        hub.close("end")


def resident_mb(pid: int) -> float:
    """Linux only."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def tell(n_clients: int) -> None:
    """So many were let in."""
    print(n_clients, flush=True)


async def nobody(port: int) -> None:
    """For comparison."""
    tell(0)


async def deaf(port: int) -> None:
    """Connects and reads nothing, or nothing any more once it is stopped."""
    async with connect(f"ws://127.0.0.1:{port}{ADDRESS}", max_queue=1, proxy=None) as connection:
        await connection.recv()
        tell(1)
        os.kill(os.getpid(), signal.SIGSTOP)


async def slow(port: int) -> None:
    """Reads a byte a second, with a small window, until it is cut off."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    raw.sendall(f"GET {ADDRESS} HTTP/1.1\r\nHost: localhost\r\n{upgrade}{key}\r\n".encode())
    with suppress(OSError):
        while raw.recv(1) != b"{":  # of hello
            pass
        tell(1)
        while raw.recv(1):
            time.sleep(1)  # noqa: ASYNC251 - there is nothing else in this process


async def crowd(port: int, n: int = 500) -> None:
    """All at once; each listens until it is over."""
    n_in = 0

    async def one() -> None:
        nonlocal n_in
        async with connect(
            f"ws://127.0.0.1:{port}{ADDRESS}", proxy=None, open_timeout=60
        ) as connection:
            await connection.recv()
            n_in += 1
            if n_in == n:
                tell(n)
            async for _ in connection:
                pass

    await asyncio.gather(*(one() for _ in range(n)))


async def conference(port: int, n_speakers: int = 8) -> None:
    """500 listeners, while others send quiet audio in real time."""

    async def speak() -> None:
        url = f"ws://127.0.0.1:{port}/v1/stream?role=ingest"
        async with connect(url, proxy=None, ping_timeout=None) as connection:
            begun_s = time.monotonic()
            for block in itertools.count(1):
                await connection.send(QUIET)
                await asyncio.sleep(begun_s + block * PERIOD_S - time.monotonic())

    await asyncio.gather(crowd(port), *(speak() for _ in range(n_speakers)))


async def passers_by(port: int, n: int = 1000) -> None:
    """One after the other, ten at a time; every second one goes without a word."""

    async def some() -> None:
        for number in range(n // 10):
            async with connect(f"ws://127.0.0.1:{port}{ADDRESS}", proxy=None) as connection:
                await connection.recv()
                if number % 2:
                    connection.transport.abort()

    await asyncio.gather(*(some() for _ in range(10)))
    tell(n)


async def readers(port: int, n: int = 20) -> None:
    """Have everything replayed, again and again."""
    n_in = 0

    async def one() -> None:
        nonlocal n_in
        while True:
            url = f"ws://127.0.0.1:{port}{ADDRESS}&after=0"
            async with connect(url, proxy=None, max_queue=None) as connection:
                for _ in range(N_BEFORE):
                    await connection.recv(decode=False)
            n_in += 1
            if n_in == n:
                tell(n)

    await asyncio.gather(*(one() for _ in range(n)))


async def silence(port: int) -> None:
    """Send hours of silence as fast as they are taken, half a minute in a message."""
    url = f"ws://127.0.0.1:{port}/v1/stream?role=ingest"
    async with connect(url, proxy=None, ping_timeout=None) as connection:
        await connection.send('{"type":"start","samples":0}')
        tell(1)
        while True:
            await connection.send(bytes(1 << 20))


async def strangers(port: int, n: int = 1000) -> None:
    """Connect and say nothing, the newest half of them at a time."""
    held: deque[socket.socket] = deque(maxlen=n // 2)
    for _ in range(n):
        held.append(await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port)))
    tell(n)
    await asyncio.Event().wait()


SCENES: dict[str, tuple[Callable[[int], Coroutine[Any, Any, None]], int]] = {
    "nobody else": (nobody, 100),
    "stopped": (deaf, 50_000),
    "byte a second": (slow, 50_000),
    "500 at once": (crowd, 100),
    "500 and 8 speakers": (conference, 100),
    "1000 come and go": (passers_by, 100),
    "20 replays": (readers, 100),
    "endless silence": (silence, 100),
    "1000 strangers": (strangers, 100),
}
"""Who disturbs, and how many letters a final has besides."""


@asynccontextmanager
async def another(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this program in another process, which ends with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if arguments[0] == "--disturb" else None,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def cut_off(port: int) -> int:
    """How many clients the server has cut off as too slow."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        figure = answer.read().partition(b"\nstreamd_slow_disconnects_total ")[2].split()[0]
    return int(float(figure))


async def measure(name: str, seconds: float) -> dict[str, Any]:
    """One scene."""
    delays: list[float] = []
    holes = 0

    async def listen(url: str) -> None:
        nonlocal holes
        seq = 0
        async with aclosing(watch(url)) as events:
            async for event in events:
                if isinstance(event, Final):
                    delays.append((time.monotonic() - float(event.text.split()[0])) * 1000)
                    holes += seq not in (0, event.seq - 1)
                    seq = event.seq

    async with another("--serve", str(SCENES[name][1])) as server:
        assert server.stdout
        assert server.stdin
        port = int(await server.stdout.readline())
        listeners = [
            asyncio.create_task(listen(f"ws://127.0.0.1:{port}")) for _ in range(N_LISTENERS)
        ]
        await asyncio.sleep(2)  # at ease
        before_mb, peak_mb = resident_mb(server.pid), 0.0
        async with another("--disturb", name, str(port)) as others:
            assert others.stdout
            await others.stdout.readline()
            n_clients = asyncio.create_task(others.stdout.readline())
            delays.clear()
            cpu_s, began_s = cpu_of(server.pid), time.monotonic()
            all_in_s, n_before = 0.0, 0  # CPU and events until all are in, whose handshakes cost
            while (now_s := time.monotonic()) < began_s + seconds or not all_in_s:
                if n_clients.done() and not all_in_s:
                    all_in_s, n_before = cpu_of(server.pid), len(delays)
                peak_mb = max(peak_mb, resident_mb(server.pid))
                await asyncio.sleep(0.25)
            end_s, counted = cpu_of(server.pid), list(delays)
        await asyncio.sleep(1)
        after_mb = resident_mb(server.pid)
        n_cut = await asyncio.to_thread(cut_off, port)
        server.stdin.close()
        await asyncio.gather(*listeners)
    n_others = int(n_clients.result())
    n_sent = max(1, len(counted) - n_before) * (1 + n_others / N_LISTENERS)
    return {
        "scene": name,
        "clients": n_others,
        "cut_off": n_cut,
        "events": len(counted),
        "holes": holes,
        "median_ms": round(float(np.median(counted)), 1),
        "p95_ms": round(float(np.percentile(counted, 95)), 1),
        "p99_ms": round(float(np.percentile(counted, 99)), 1),
        "before_mb": round(before_mb, 1),
        "peak_mb": round(peak_mb, 1),
        "after_mb": round(after_mb, 1),
        "server_cpu": round((end_s - cpu_s) / (now_s - began_s), 3),
        # For each event and listener, once all are in; meaningful where there are many.
        "us_each": round((end_s - all_in_s) / n_sent * 1e6, 1),
    }


def cpu_of(pid: int) -> float:
    """CPU seconds of a process until now; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="of each scene")
    parser.add_argument("--only", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--disturb", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve))
        return
    if args.disturb:
        name, port = args.disturb
        print("begun", flush=True)
        asyncio.run(SCENES[name][0](int(port)))
        return
    rows = []
    for name in args.only:
        rows.append(row := asyncio.run(measure(name, args.seconds)))
        if len(rows) == 1:
            print("".join(f"{k:>{18 if k == 'scene' else 11}}" for k in row))
        cells = (f"{v:>{18 if k == 'scene' else 11}}" for k, v in row.items())
        print("".join(cells), flush=True)
    print(json.dumps({"machine": msgspec.to_builtins(machine()), "server": rows}))


if __name__ == "__main__":
    main()
