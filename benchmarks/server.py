"""What bad and many clients cost: the delay of those who behave, and the server's memory.

    python benchmarks/server.py [--seconds 30] [--only NAME...]
    python benchmarks/server.py --floods [NAME...] [--hostile 0 1 4 16]

A server in a process of its own, with the daemon's sessions and without an engine, publishes finals
twenty times a second; five listeners in this process note how late they come. Meanwhile, in a third
process: nothing; a subscriber that is stopped (SIGSTOP); one that reads a byte a second; 500 at
once; 500 with 8 speakers in real time; 1000 that connect and go; 20 that have all finals replayed
again and again; a speaker that sends silence as fast as it is taken; 1000 that say nothing. Prints
a table and, last, a JSON line.

With --floods, so many clients of each protocol send messages as fast as they are taken, and a
client that behaves has its audio made final ten times: how much CPU the server takes until it
answers, and how long that is.
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
    options = {"port": "0", "max-streams": "20", "wyoming": "0"}
    config = load(options | {"set": ["limits.max_subscribers=10000"]}, {})
    every = Streams(lambda _: build.new_session(config), max_backlog=500, max_ingest=20)
    hub = every.add(LIVE).hub
    await every.transcribe()  # by nobody; but clients' choices need not wait for a model
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with serving.server(config, every) as server:
        assert server is not None
        said = Final(seg=0, start_ms=0, end_ms=0, text="x" * 100, language="en")
        for _ in range(N_BEFORE):
            hub.publish(said)
        print(server.port, server.wyoming_port, flush=True)
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


SPEAKS = "/v1/stream?role=both&partials=0"
OFFERS = "?encoding=linear16&sample_rate=16000"
FLOODS: dict[str, tuple[str, list[str | bytes], str | bytes]] = {
    "updates": (SPEAKS, [], '{"type":"update","prompt":"%d"}'),
    "flushes": (SPEAKS, [], '{"type":"flush"}'),
    "corrections": (SPEAKS, [], '{"type":"correct","text":"N%d"}'),
    "audio of 1 ms": (SPEAKS, [], bytes(32)),
    "audio": (SPEAKS, [], bytes(1 << 16)),
    "Deepgram": ("/v1/listen" + OFFERS, [], '{"type":"KeepAlive"}'),
    "Flux": ("/v2/listen" + OFFERS, [], '{"type":"Configure","keyterms":["N%d"]}'),
    "AssemblyAI": ("/v3/ws?sample_rate=16000", [], '{"type":"x"}'),
    "OpenAI": ("/v1/realtime", [], '{"type":"session.update","session":{"a":"%d"}}'),
    "vLLM": ("/v1/realtime", ['{"type":"session.update","model":"m"}'], '{"type":"x"}'),
    "WhisperLive": ("/", ['{"uid":"u"}'], "x"),
    "vosk": ("/", [], '{"reset":1}'),
    "pings": (SPEAKS, [], b""),
}
"""Of each protocol: its address, what a client says first, and what it repeats. Wyoming has lines
on a port of its own."""


async def flood(url: str, name: str) -> None:
    """Send until the server ends, and read what it answers."""
    if name == "Wyoming":
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url))
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b'{"type":"ping"}\n' * 1000)
            await writer.drain()
        return
    path, first, again = FLOODS[name]
    async with connect(url + path, proxy=None, ping_timeout=None, max_queue=None) as connection:
        for message in first:
            await connection.send(message)

        async def read() -> None:
            async for _ in connection:
                pass

        reading = asyncio.create_task(read())
        for n in itertools.count():
            if name == "pings":
                await connection.ping()
            else:
                is_numbered = isinstance(again, str) and "%d" in again
                await connection.send(again % n if is_numbered else again)
            if n % 100 == 0:
                await asyncio.sleep(0)  # or nothing is read


async def hostile(url: str, name: str, n: int) -> None:
    """So many at once, in a process of their own."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(n):
            tasks.create_task(flood(url, name))
        tell(n)


async def measure_flood(name: str, n: int) -> dict[str, Any]:
    """One kind of hostile client."""
    cpu, wall = [], []
    async with another("--serve", "100") as server:
        assert server.stdout
        port, wyoming = (await server.stdout.readline()).split()
        url = f"ws://127.0.0.1:{int(port)}"
        async with (
            connect(url + SPEAKS, proxy=None, ping_timeout=None) as honest,
            another("--flood", name, str(n), str(int(wyoming)) if name == "Wyoming" else url) as he,
        ):
            assert he.stdout
            await he.stdout.readline()
            await he.stdout.readline()
            await asyncio.sleep(2)  # at full strength
            for number in range(10):
                await honest.send(QUIET)
                begin_cpu_s, begin_s = loop_cpu_of(server.pid), time.monotonic()
                await honest.send(json.dumps({"type": "flush", "id": str(number)}))
                async for message in honest:
                    if (said := json.loads(message))["type"] == "flushed":
                        assert said["id"] == str(number)
                        break
                cpu.append(loop_cpu_of(server.pid) - begin_cpu_s)
                wall.append(time.monotonic() - begin_s)
                await asyncio.sleep(0.1)
    spans = {"cpu_ms": cpu, "wall_ms": wall}
    figures = {
        f"{of.__name__}_{key}": round(float(of(values)) * 1000, 1)
        for key, values in spans.items()
        for of in (np.median, np.max)
    }
    return {"flood": name, "hostile": n, **figures}


@asynccontextmanager
async def another(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this program in another process, which ends with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=None if arguments[0] == "--serve" else asyncio.subprocess.DEVNULL,
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
        port = int((await server.stdout.readline()).split()[0])
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


def loop_cpu_of(pid: int) -> float:
    """CPU seconds of its main thread, which is the event loop's; Linux only."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="of each scene")
    parser.add_argument("--only", nargs="+", choices=SCENES)
    parser.add_argument("--floods", nargs="*", choices=[*FLOODS, "Wyoming"])
    parser.add_argument("--hostile", nargs="+", type=int, default=[0, 1, 4, 16])
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--disturb", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve))
        return
    if args.flood:
        name, n, where = args.flood
        print("begun", flush=True)
        asyncio.run(hostile(where, name, int(n)))
        return
    if args.disturb:
        name, port = args.disturb
        print("begun", flush=True)
        asyncio.run(SCENES[name][0](int(port)))
        return
    scenes, floods = list(args.only or SCENES), []
    if args.floods is not None:
        scenes = args.only or []
        names = args.floods or [*FLOODS, "Wyoming"]
        floods = [(name, n) for name in names for n in args.hostile]
    rows: dict[str, list[dict[str, Any]]] = {"server": [], "floods": []}
    measured = [("server", measure(name, args.seconds)) for name in scenes]
    measured += [("floods", measure_flood(*flood)) for flood in floods]
    for part, work in measured:
        rows[part].append(row := asyncio.run(work))
        if len(rows[part]) == 1:
            print("".join(f"{k:>{18 if k in WIDE else 15}}" for k in row))
        cells = (f"{v:>{18 if k in WIDE else 15}}" for k, v in row.items())
        print("".join(cells), flush=True)
    print(json.dumps({"machine": msgspec.to_builtins(machine()), **rows}))


WIDE = ("scene", "flood")


if __name__ == "__main__":
    main()
