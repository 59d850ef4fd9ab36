"""What streamd costs while nobody speaks: CPU time, wake-ups, memory of the whole program.

    python benchmarks/idle.py [--seconds 60] [--device NAME | --null-sink] [NAME=VALUE...]

Real programs, side by side, each with its server: one that waits for clients, one that hears
digital silence, one that hears quiet noise (white, -50 dBFS: loud enough to be examined), both from
files in real time, and with ``--device`` one at a microphone, which has to be silent, or with
``--null-sink`` at one of a PulseAudio server of its own. What they need to start is not counted.
Wake-ups: how often a thread slept and was woken, in a second. No encoder may have run: ``/metrics``
knows of no window. Needs Linux's /proc. Prints a table and, last, a JSON line.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import msgspec
import numpy as np
import soundfile

from streamd.system.processor import machine
from streamd.types import SAMPLE_RATE
from tests.support import pulseaudio

STREAMD = Path(sys.executable).with_name("streamd")
SETTLE_S = 6
"""Behind the model's loading everything has run once."""
NOISE = 10 ** (-50 / 20)


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """What one program cost: `cpu` in cores, `windows` of speech that it thought it had heard."""

    hears: str
    cpu: float
    wakeups: float
    rss_mb: float
    heard_s: float
    windows: bool


class Program:
    """A running streamd."""

    def __init__(self, hears: str, args: Sequence[str]) -> None:
        """Start it and wait until its server is up."""
        self._hears = hears
        command = [STREAMD, *args, "--port", "0"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr
        lines = iter(self._process.stderr.readline, "")
        places = (re.search(r"listening on ws://(\S+?:\d+)", line) for line in lines)
        self._place = next((found[1] for found in places if found), None)
        if self._place is None:
            raise SystemExit(f"streamd {' '.join(args)} does not start")

    def count(self) -> tuple[float, int]:
        """CPU seconds and wake-ups so far, of all threads."""
        folder = Path("/proc", str(self._process.pid))
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        statuses = [(thread / "status").read_text() for thread in (folder / "task").iterdir()]
        return cpu_s, sum(_number(text, "\nvoluntary_ctxt_switches:") for text in statuses)

    def stop(self, before: tuple[float, int], seconds: float) -> Idle:
        """End it; what it cost since it had counted `before`."""
        cpu_s, wakeups = (now - then for now, then in zip(self.count(), before, strict=True))
        status = Path("/proc", str(self._process.pid), "status").read_text()
        with urlopen(f"http://{self._place}/metrics") as answer:
            metrics = answer.read().decode()
        self._process.terminate()
        self._process.communicate()
        return Idle(
            hears=self._hears,
            cpu=round(cpu_s / seconds, 5),
            wakeups=round(wakeups / seconds, 1),
            rss_mb=round(_number(status, "\nVmRSS:") / 1024, 1),
            heard_s=_number(metrics, "\nstreamd_audio_seconds_total"),
            windows=_number(metrics, "\nstreamd_rtf") > 0,
        )


def _number(text: str, name: str) -> float:
    """The number behind a name in a table."""
    return float(text.partition(name)[2].split(maxsplit=1)[0])


def sounds(folder: Path, seconds: int) -> dict[str, str]:
    """Files in which nobody speaks."""
    rng = np.random.default_rng(7)
    n = SAMPLE_RATE * seconds
    paths = {}
    for name, level in (("digital silence", 0.0), ("quiet noise", NOISE)):
        paths[name] = str(folder / f"{name}.flac")
        soundfile.write(paths[name], rng.standard_normal(n) * level, SAMPLE_RATE)
    return paths


def main() -> None:
    """Run them all at once, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--device", help="a silent microphone, too")
    parser.add_argument("--null-sink", action="store_true", help="PulseAudio's, as microphone")
    parser.add_argument("option", nargs="*", metavar="NAME=VALUE", help="streamd's options")
    args = parser.parse_intermixed_args()
    options = [f"--{option}" for option in args.option or ["model=tiny.en"]]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if args.null_sink:
            stack.enter_context(pulseaudio.null_sink(Path(folder)))
            args.device = pulseaudio.DEVICE
        cases = {"nothing (serve)": ["serve", *options]}
        for name, path in sounds(Path(folder), args.seconds + 60).items():
            cases[name] = [path, *options]
        if args.device:
            cases["microphone"] = ["--device", args.device, *options]
        programs = [Program(name, command) for name, command in cases.items()]
        time.sleep(SETTLE_S)
        begun_s = time.monotonic()
        before = [program.count() for program in programs]
        time.sleep(args.seconds)
        seconds = time.monotonic() - begun_s
        rows = [p.stop(b, seconds) for p, b in zip(programs, before, strict=True)]
    print(f"{'hears':18} {'CPU':>8} {'wakeups/s':>10} {'memory':>8} {'heard':>8}  encoder")
    for row in rows:
        print(
            f"{row.hears:18} {row.cpu:8.2%} {row.wakeups:10.1f} {row.rss_mb:5.0f} MB"
            f" {row.heard_s:6.0f} s  {'ran' if row.windows else 'never ran'}"
        )
    print(
        json.dumps({"idle": msgspec.to_builtins(rows), "machine": msgspec.to_builtins(machine())})
    )


if __name__ == "__main__":
    main()
