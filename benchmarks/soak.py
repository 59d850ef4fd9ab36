"""An hour of audio through a real daemon, several times faster than anybody speaks.

    python benchmarks/soak.py [--minutes 60] [--pace 6] [--listeners 5]

A speaker paced like a microphone, though faster (clients/python/speak.py), the model in the box, a
journal, one listener that stays and some that come and go. Lost samples: what was sent and is not
acknowledged in the end. Memory: the daemon's resident size at each tenth of the audio, at most, and
its slope over the second half, in MB per hour of audio: at first caches fill up. Needs Linux's
/proc. Prints a table and, last, a JSON line; fails if anything is lost.
"""

import argparse
import asyncio
import importlib.util
import json
import random
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import soundfile

from lab.eventlog import Said
from lab.metrics import commit_violations
from sounds import RECORDING
from streamd.events import Final, Gap, Missed, Partial, Stats
from streamd.server.client import watch
from streamd.streams.journal.tables import transcript
from streamd.system.processor import machine

ROOT = Path(__file__).resolve().parents[1]
RATE = 16_000
PIECE = RATE // 10


def speak() -> ModuleType:
    """The client, which is no package."""
    spec = importlib.util.spec_from_file_location("speak", ROOT / "clients/python/speak.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resident_mb(pid: int) -> float:
    """Linux only."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Soak:
    """What is counted while it runs."""

    def __init__(self, url: str, pid: int, args: argparse.Namespace) -> None:
        self.url, self.pid, self.args = f"{url}/v1/stream?session=soak", pid, args
        self.said: list[Said] = []
        self.memory: list[tuple[float, float]] = []
        self.sent = self.acked = self.visits = self.holes = 0
        self.stats: Stats | None = None
        self.begun = asyncio.Event()

    async def speak(self, url: str) -> None:
        """Feed the recording again and again, then stop."""
        samples, _ = soundfile.read(RECORDING, dtype="int16")
        n_wanted = round(self.args.minutes * 60 * RATE)

        def heard(message: dict[str, Any]) -> None:
            self.begun.set()
            if message["type"] == "ack":
                self.acked = message["samples"]

        began_s = time.monotonic()
        async with speak().Speaker(url, "soak", on_message=heard) as speaker:
            while self.sent < n_wanted:
                at = self.sent % len(samples)
                piece = samples[at : at + min(PIECE, n_wanted - self.sent)]
                await speaker.send(piece.tobytes())
                self.sent += len(piece)
                due_s = began_s + self.sent / RATE / self.args.pace
                await asyncio.sleep(max(0, due_s - time.monotonic()))
            await speaker.stop()

    async def stay(self) -> None:
        """The listener that hears everything."""
        async with aclosing(watch(f"{self.url}&stats=1", after=0)) as events:
            async for event in events:
                if isinstance(event, Stats):
                    self.stats = event
                elif isinstance(event, Partial | Final | Gap | Missed):
                    self.said.append(Said(t_ms=0, heard_ms=0, event=event))

    async def visit(self, rng: random.Random) -> None:
        """Come, hear some of it, go, and so on; a final that is not the next is a hole."""
        while True:
            finals = [entry.event for entry in self.said if isinstance(entry.event, Final)]
            seq = rng.randint(max(0, len(finals) - 50), len(finals))
            n_wanted = rng.randint(0, 100)
            async with aclosing(watch(self.url, after=seq)) as events:
                async for event in events:
                    if isinstance(event, Final):
                        self.holes += event.seq != seq + 1
                        seq = event.seq
                    n_wanted -= 1
                    if n_wanted < 0:
                        break
            self.visits += 1

    async def weigh(self) -> None:
        """Note the daemon's memory."""
        while True:
            self.memory.append((self.sent / RATE / 3600, resident_mb(self.pid)))
            await asyncio.sleep(2)

    async def run(self, url: str) -> None:
        """Until everything is final."""
        speaking = asyncio.create_task(self.speak(url))
        await self.begun.wait()
        staying = asyncio.create_task(self.stay())
        visitors = [
            asyncio.create_task(self.visit(random.Random(n))) for n in range(self.args.listeners)
        ]
        others = [*visitors, asyncio.create_task(self.weigh())]
        await speaking
        await staying
        for task in others:
            task.cancel()
        done = await asyncio.gather(*others, return_exceptions=True)
        for error in done:
            if not isinstance(error, asyncio.CancelledError):
                raise RuntimeError("a listener failed") from error

    def result(self, journal: Path, wall_s: float) -> dict[str, Any]:
        """The figures."""
        finals = [entry.event for entry in self.said if isinstance(entry.event, Final)]
        kept = [event for event in transcript(journal, "soak") if isinstance(event, Final)]
        half = self.args.minutes / 60 / 2
        hours, sizes = np.array([point for point in self.memory if point[0] >= half]).T
        slope = float(np.polyfit(hours, sizes, 1)[0]) if len(hours) > 2 else float("nan")
        tenths = [self.memory[len(self.memory) * n // 10][1] for n in range(10)]
        others = [e.event for e in self.said if isinstance(e.event, Gap | Missed)]
        return {
            "audio_min": round(self.sent / RATE / 60, 1),
            "wall_min": round(wall_s / 60, 1),
            "pace": round(self.sent / RATE / wall_s, 1),
            "samples_sent": self.sent,
            "samples_lost": self.sent - self.acked,
            "gaps": len(others),
            "lost_ms": self.stats.lost_ms if self.stats else None,
            "finals": len(finals),
            "seq_holes": sum(f.seq != n for n, f in enumerate(finals, 1)) + self.holes,
            "other_than_journal": int(kept != finals),
            "commit_violations": commit_violations(self.said),
            "last_final_end_s": finals[-1].end_ms / 1000 if finals else None,
            "visits": self.visits,
            "rss_mb": [round(size) for size in (*tenths, self.memory[-1][1])],
            "rss_peak_mb": round(max(size for _, size in self.memory), 1),
            "rss_slope_mb_per_hour": round(slope, 2),
        }


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    """One run, with a daemon of its own."""
    program = str(Path(sys.executable).with_name("streamd"))
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(program, "serve", "--model", "tiny.en", "--port", "0", "--journal", folder),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr
        url = ""
        while not url and (line := (await process.stderr.readline()).decode()):
            _, _, address = line.partition("listening on ")
            url = address.split()[0].rstrip(",").removesuffix("/v1/stream") if address else ""
        draining = asyncio.create_task(process.stderr.read())
        try:
            began_s = time.monotonic()
            run = Soak(url, process.pid, args)
            await run.run(url)
            return run.result(Path(folder), time.monotonic() - began_s)
        finally:
            process.terminate()
            await draining
            await process.wait()


def main() -> None:
    """Measure, print, and fail if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="of audio")
    parser.add_argument("--pace", type=float, default=6, help="times real time")
    parser.add_argument("--listeners", type=int, default=5, help="that come and go")
    args = parser.parse_args()
    row = asyncio.run(soak(args))
    print("\n".join(f"{name:24}{value}" for name, value in row.items()))
    print(json.dumps({"machine": msgspec.to_builtins(machine()), "soak": row}))
    faults = ("samples_lost", "gaps", "seq_holes", "other_than_journal", "commit_violations")
    sys.exit(any(row[name] for name in faults))


if __name__ == "__main__":
    main()
