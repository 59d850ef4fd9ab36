"""How many streams until steps are late, how many listeners until events are.

    python benchmarks/load.py [--sound FILE] [--streams 1 2 4 8] [--workers 2] [--threads 1]
        [--clock real] [--plot FILE.svg] [NAME=VALUE...]
    python benchmarks/load.py --subscribers 10 100 300

Streams: real speech (by default a minute of it, again and again), each stream from another place
on; one engine, as many recognizers and threads as ``serve`` takes, or ``--workers`` of
``--threads`` each; in real time, or on a clock that other programs disturb less (lab/load.py and
replay.py). *CPU* is CPU seconds for each second of a stream: processors that never wait would serve
so many streams as it fits into them. Subscribers: a server here, listeners in another process, two
events a second; the delay is from publishing to the listener's hand. Each ends with the first count
that is late. Prints a table and, last, a JSON line.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.eventlog import Began
from lab.load import Load, measure_load, plot
from lab.recordings import read_recording
from sounds import RECORDING
from streamd.config import load, without_source
from streamd.daemon import build, serving
from streamd.daemon.opening import open_model
from streamd.events import Partial
from streamd.server import LIVE
from streamd.server.client import watch
from streamd.streams import Streams
from streamd.system.processor import machine
from streamd.types import ms_from_frames

LATE = 0.01
"""The share of steps that may be late."""
LATE_MS = 100
"""The delay that 95 % of the events must stay below."""
N_EVENTS = 20
PERIOD_S = 0.5


def streams(args: argparse.Namespace) -> list[Load]:
    """Growing numbers of streams."""
    given = dict(option.split("=", 1) for option in args.option)
    own = {"model": "tiny.en", "threads": args.threads, "set": [f"decoding.workers={args.workers}"]}
    config = without_source(load(own | given, {}))
    model, engine = open_model(config, wait=True)
    recording, new_session = read_recording(args.sound), partial(build.new_session, config)
    n_workers, n_threads = build.workers(config), build.threads(config)
    recognizers = [build.recognizer(config, model, engine) for _ in range(n_workers)]
    began = Began(
        name=recording.name,
        model=model.name,
        clock=args.clock,
        step_ms=ms_from_frames(config.session.step),
        audio_ms=args.seconds * 1000,
    )
    measure = partial(measure_load, recognizers, new_session, recording, began=began)
    measure(n_streams=n_workers)  # warms up
    print(f"{model.name}, {n_workers} recognizers, {n_threads} threads each, {args.clock} clock")
    columns = ("streams", "steps", "median", "p95", "missed", "apart", "busy", "window", "frames")
    print(" ".join(f"{column:>8}" for column in (*columns, "CPU")))
    rows: list[Load] = []
    for n in args.streams:
        row = measure(n_streams=n)
        rows.append(row)
        print(
            f"{n:8} {row.steps:8} {row.median_ms:8.0f} {row.p95_ms:8.0f} {row.missed:8.1%}"
            f" {row.apart_ms:8.0f} {row.busy:8.1%} {row.window_ms:8.1f} {row.frames:8.0f}"
            f" {row.cpu:8.3f}",
            flush=True,
        )
        if row.missed > LATE and not args.all:
            break
    return rows


async def subscribers(n: int) -> dict[str, float]:
    """So many listeners at once."""
    config = load({"port": "0", "set": ["limits.max_subscribers=10000"]}, {})
    every = Streams(lambda _: build.new_session(config), max_backlog=500, max_ingest=0)
    hub = every.add(LIVE).hub
    async with serving.server(config, every) as server:
        assert server is not None
        command = [sys.executable, __file__, "--listen", f"ws://127.0.0.1:{server.port}", str(n)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, limit=2**26
        )
        assert process.stdout
        # the one that everybody gets who connects
        hub.publish(Partial(seg=1, rev=0, start_ms=0, end_ms=0, text="0", stable=0))
        await process.stdout.readline()  # all are connected
        cpu_s = time.process_time()
        for rev in range(1, N_EVENTS + 1):
            text = f"{time.monotonic():.6f}"
            hub.publish(Partial(seg=1, rev=rev, start_ms=0, end_ms=0, text=text, stable=0))
            await asyncio.sleep(PERIOD_S)
        cpu_s = time.process_time() - cpu_s
        hub.close("end")
        delays = json.loads(await process.stdout.readline())
        await process.wait()
    share = cpu_s / (N_EVENTS * PERIOD_S)
    return {
        "subscribers": n,
        "events": len(delays),
        "merged": n * N_EVENTS - len(delays),
        "median_ms": round(float(np.median(delays)), 2),
        "p95_ms": round(float(np.percentile(delays, 95)), 2),
        "server_cpu": round(share, 3),
    }


async def listen(url: str, n: int) -> None:
    """The other process: all listeners; tells when they are connected, and at last the delays."""
    ready, delays = asyncio.Semaphore(0), []

    async def one() -> None:
        async with aclosing(watch(url)) as events:
            async for event in events:
                now_s = time.monotonic()
                if isinstance(event, Partial) and event.rev:
                    delays.append((now_s - float(event.text)) * 1000)
                elif isinstance(event, Partial):
                    ready.release()

    tasks = [asyncio.create_task(one()) for _ in range(n)]
    for _ in range(n):
        await ready.acquire()
    print("ready", flush=True)
    await asyncio.gather(*tasks)
    print(json.dumps(delays), flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sound", type=Path, default=RECORDING, help="a file of speech")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 6, 8, 10, 12, 16, 20])
    parser.add_argument("--seconds", type=int, default=20, help="of sound in each stream")
    parser.add_argument("--workers", default="0", help="windows at a time; 0: as serve has it")
    parser.add_argument("--threads", default="0", help="of each window; 0: as serve has it")
    parser.add_argument("--clock", choices=["real", "virtual", "cpu"], default="real")
    parser.add_argument("--all", action="store_true", help="go on when steps are late")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--subscribers", type=int, nargs="+")
    parser.add_argument("--listen", nargs=2, metavar=("URL", "N"), help=argparse.SUPPRESS)
    parser.add_argument("option", nargs="*", metavar="NAME=VALUE")
    args = parser.parse_intermixed_args()
    told: dict[str, Any] = {"machine": msgspec.to_builtins(machine())}
    if args.listen:
        url, n = args.listen
        asyncio.run(listen(url, int(n)))
        return
    if args.subscribers:
        told["subscribers"] = []
        for n in args.subscribers:
            told["subscribers"].append(row := asyncio.run(subscribers(n)))
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            if row["p95_ms"] > LATE_MS:
                break
    else:
        rows = streams(args)
        held = [row.streams for row in rows if row.missed <= LATE]
        told |= {"load": msgspec.to_builtins(rows), "held": max(held, default=0)}
        print(f"held without missing more than {LATE:.0%} of the steps: {told['held']}")
        if args.plot:
            args.plot.write_text(plot(rows))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
