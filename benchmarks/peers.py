"""streamd beside whisper.cpp, faster-whisper and openai-whisper: same sound, weights and machine.

    python benchmarks/peers.py WEIGHTS [--dims tiny.en base] [--rounds 7]
    python benchmarks/peers.py WEIGHTS [--dims tiny.en base] --texts clips A C

WEIGHTS is a folder that `peer_weights.py` filled. Every program runs in a process of its own and
they take turns, a step each, so that what else the machine does hits all of them; ratios are the
medians of the rounds' ratios. CPU time is that of all threads; of programs that spin while they
wait it says how much they take from others. A step is what live captions need twice a second, on 2
threads: of streamd a window that keeps what is known of the one before, of the others 5 s of audio
and a hypothesis of at most 20 tokens.

The wheel of pywhispercpp is built for any x86-64; what ``pip install --no-binary pywhispercpp
--no-deps --target DIR pywhispercpp`` builds for this machine is faster, and with ``--native DIR``
it takes part, too. Needs the dependency group ``peers``. Prints the bars and, last, one JSON line.
``--texts`` counts the wrong words of whole recordings instead (sets of ``sounds.py``): greedily,
with each program's own timestamps, fallback and cutting. Live captions: `live_peers.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Self

import msgspec
import soundfile

from scores import errors
from sounds import DATA, sets
from streamd.system.processor import machine
from tables import table

HERE = Path(__file__).resolve().parent
CUT = 384
"""Encoder positions to which users of whisper.cpp may cut its context for 5 s."""
BUILDS = ("whisper.cpp", "whisper.cpp native")
"""The wheel for any x86-64, and what was built for this machine."""


class Worker:
    """A program in its process."""

    def __init__(self, name: str, folder: Path, threads: int, site: str = "") -> None:
        """`site`: a folder with packages, and their libraries, that come before all others."""
        paths = {
            variable: os.pathsep.join(filter(None, [site, os.environ.get(variable, "")]))
            for variable in ("PYTHONPATH", "LD_LIBRARY_PATH")
        }
        command = [sys.executable, HERE / "peer_workers.py", name, folder, str(threads)]
        self.name = name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=os.environ | paths | {"OMP_NUM_THREADS": str(threads)},
        )
        self.ready = self._read()

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        """Let it do something; what it measured."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended: {self.close()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def close(self) -> str:
        """End it; the last line of what it complained about."""
        self._process.communicate()
        with self._said as said:
            said.seek(0)
            return "".join(said.readlines()[-1:]).strip()

    def __exit__(self, *_: object) -> None:
        if not self._said.closed:  # as it is after an error
            self.close()


Row = dict[str, list[dict[str, Any]]]


def turns(workers: dict[str, Worker], kinds: dict[str, tuple[str, dict[str, Any]]], n: int) -> Row:
    """Let all of them do their step in turn, `n` times; `kinds`: label -> worker and request."""
    rows: Row = {label: [] for label in kinds}
    for turn in range(n + 1):
        for label, (name, request) in kinds.items():
            answer = workers[name].ask(**request)
            if turn:  # the first one warms up
                rows[label].append(answer)
    return rows


@contextmanager
def busy(n: int) -> Iterator[None]:
    """A neighbour that keeps `n` cores busy."""
    loop = [sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(loop) for _ in range(n)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def warm_start(folder: Path) -> dict[str, float]:
    """Seconds from a process's birth to its first accepted frame, and to its first hypothesis."""
    begun_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, HERE / "start.py", folder / "hf"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    at = {line.strip(): round(time.perf_counter() - begun_s, 3) for line in process.stdout}
    if process.wait():
        raise RuntimeError("start.py failed")
    return at


STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "streamd": ("streamd", {"do": "step", "ctx": 0}),
    "streamd, nothing kept": ("streamd-alone", {"do": "step", "ctx": 0}),
    **{name: (name, {"do": "step", "ctx": 0}) for name in BUILDS},
    **{f"{name}, audio_ctx {CUT}": (name, {"do": "step", "ctx": CUT}) for name in BUILDS},
    "faster-whisper int8": ("faster-whisper", {"do": "step", "ctx": 0}),
    "faster-whisper int8, 8 s chunks": ("faster-whisper", {"do": "step", "ctx": 400}),
    "openai-whisper": ("openai-whisper", {"do": "step", "ctx": 0}),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}: encoder, 1500": (name, {"do": "encode"})
    for name in ("streamd", *BUILDS, "faster-whisper", "openai-whisper")
}
BUSY = ("streamd", *(f"{name}, audio_ctx {CUT}" for name in BUILDS), "faster-whisper int8")


def compare(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All programs with one model: milliseconds, ratios, memory."""
    kinds = {
        label: kind for label, kind in (STEPS | ENCODERS).items() if kind[0] not in left_out(args)
    }
    names = {name for name, _ in kinds.values()}
    Worker("streamd", folder, args.threads).close()  # prepares the model, once for the machine
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(name, folder, args.threads, site(name, args)))
            for name in sorted(names)
        }
        rows = turns(workers, kinds, args.rounds)
        with busy(os.cpu_count() or 1):
            besides = turns(
                workers, {label: kinds[label] for label in BUSY if label in kinds}, args.rounds
            )
        starts = [warm_start(folder) for _ in range(3)][1:]
        about = {name: worker.ready["about"] for name, worker in workers.items()}
    ours = {False: rows["streamd"], True: rows["streamd: encoder, 1500"]}
    table = {
        label: {
            "ms": median(row["ms"] for row in many),
            "best_ms": min(row["ms"] for row in many),
            "cpu_ms": median(row["cpu_ms"] for row in many),
            "tokens": many[-1].get("tokens"),
            "times_streamd": times(many, ours["encoder" in label], "ms"),
            "times_streamd_cpu": times(many, ours["encoder" in label], "cpu_ms"),
        }
        for label, many in rows.items()
    }
    slower = {
        label: round(median(r["ms"] for r in many) / median(r["ms"] for r in rows[label]), 2)
        for label, many in besides.items()
    }
    memory = {name: workers_rss(rows, name) for name in sorted(names)}
    start = {what: min(row[what] for row in starts) for what in starts[0]}
    return {
        "model": folder.name, "table": table, "busy": slower, "memory_mb": memory,
        "warm_start_s": start, "about": about,
    }  # fmt: skip


def times(theirs: list[dict[str, Any]], ours: list[dict[str, Any]], what: str) -> float:
    """The median of the rounds' ratios."""
    return round(median(a[what] / b[what] for a, b in zip(theirs, ours, strict=True)), 2)


def left_out(args: argparse.Namespace) -> list[str]:
    """The programs that take no part."""
    return args.without if args.native else [*args.without, BUILDS[1]]


def site(name: str, args: argparse.Namespace) -> str:
    """Where the program's packages are, if not where ours are."""
    return str(args.native) if name == BUILDS[1] else ""


def workers_rss(rows: Row, name: str) -> float:
    """Resident memory of a program after its last request."""
    every = STEPS | ENCODERS
    return max(rows[label][-1]["rss_mb"] for label in rows if every[label][0] == name)


def show(result: dict[str, Any]) -> None:
    """Print one model's figures and the bars."""
    print(
        f"\n{result['model']:40} {'ms':>9} {'best':>9} {'tokens':>6} {'x streamd':>9}"
        f" {'CPU ms':>9} {'x streamd':>9}"
    )
    for label, row in result["table"].items():
        tokens = row["tokens"] or ""
        ms, best, ratio = row["ms"], row["best_ms"], row["times_streamd"]
        cpu, cpu_ratio = row["cpu_ms"], row["times_streamd_cpu"]
        print(
            f"{label:40} {ms:9.1f} {best:9.1f} {tokens:>6} {ratio:9.2f} {cpu:9.1f} {cpu_ratio:9.2f}"
        )
    for label, slower in result["busy"].items():
        print(f"{label + ', both cores busy':40} {'':9} {'':9} {'':6} {slower:9.2f} x slower")
    for name, mb in result["memory_mb"].items():
        print(f"{name + ', resident':40} {mb:9.0f} MB")
    for what, seconds in result["warm_start_s"].items():
        print(f"{'streamd, start to ' + what:40} {seconds:9.2f} s")
    for what, reached, bar, better in bars(result):
        met = "met" if (reached >= bar if better == "more" else reached <= bar) else "NOT MET"
        print(f"{what:52} {reached:8.2f}  bar {bar:g}: {met}")


def bars(result: dict[str, Any]) -> list[tuple[str, float, float, str]]:
    """What is demanded of this model: what, reached, bar, and whether more or less is better."""
    table, base = result["table"], result["model"].startswith("base")
    builds = [name for name in BUILDS if name in table]
    at = {label: row["times_streamd"] for label, row in table.items()}
    rows: list[tuple[str, float, float, str]] = [
        (f"step, against {name} with audio_ctx {CUT}, times", at[f"{name}, audio_ctx {CUT}"], 5,
         "more") for name in builds
    ]  # fmt: skip
    rows.append(("step, against faster-whisper int8, times", at["faster-whisper int8"], 5, "more"))
    if not base:
        return rows
    memory = result["memory_mb"]
    return [
        *((f"step, against {name}, times", at[name], 20, "more") for name in builds),
        *rows,
        *((f"encoder, against that of {name}, times", at[f"{name}: encoder, 1500"], 4, "more")
          for name in builds),
        ("slower while both cores are busy, times", result["busy"]["streamd"], 3, "less"),
        ("resident memory, share of whisper.cpp's",
         memory["streamd"] / memory["whisper.cpp"], 1, "less"),
        ("warm start to first frame, s", result["warm_start_s"]["frame"], 1, "less"),
    ]  # fmt: skip


def texts(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Word error rates of all programs on recorded speech, and what these cost them."""
    told: dict[str, Any] = {}
    for set_name, sounds in sets(args.texts, args.data, folder).items():
        seconds = sum(soundfile.info(sound.path).duration for sound in sounds)
        rows = {}
        for name in ("streamd", "openai-whisper", "whisper.cpp", "faster-whisper"):
            if name in args.without:
                continue
            with Worker(name, folder, args.threads, site(name, args)) as worker:
                read = [worker.ask("text", file=str(sound.path)) for sound in sounds]
            found = errors([sound.reference for sound in sounds], [each["text"] for each in read])
            rows[name] = {
                "WER %": round(found.rate, 2),
                "S/D/I": f"{found.substituted}/{found.deleted}/{found.inserted}",
                "CPU s/s": round(sum(each["cpu_ms"] for each in read) / 1000 / seconds, 3),
                "peak MB": round(read[-1]["peak_mb"]),
            }
        head = list(next(iter(rows.values())))
        print(f"{folder.name}, {set_name}: {seconds:.0f} s, {found.words} words\n")
        lines = [(name, *row.values()) for name, row in rows.items()]
        print(table(["program", *head], lines), flush=True)
        told[set_name] = rows
    return told


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--dims", nargs="+", default=["tiny.en", "base"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    others = sorted({name for name, _ in STEPS.values()} - {"streamd", *BUILDS})
    parser.add_argument("--without", nargs="+", default=[], choices=others)
    parser.add_argument("--texts", nargs="+", metavar="SET", help="compare wrong words in these")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of recorded speech")
    parser.add_argument("--native", default="", help="folder with another pywhispercpp")
    args = parser.parse_args()
    if args.texts:
        print(json.dumps({name: texts(args.weights / name, args) for name in args.dims}))
        return
    results = [compare(args.weights / name, args) for name in args.dims]
    for result in results:
        show(result)
    told = {"peers": results, "machine": msgspec.to_builtins(machine()), "threads": args.threads}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
