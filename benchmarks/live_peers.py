"""streamd beside other programs with live captions: same sound, weights and machine, one thread.

    python benchmarks/live_peers.py WEIGHTS [--dims tiny.en base] [--sounds two_cities A noise]
        [--peer PYTHON] [--native DIR] [--only PROGRAM...] [--out build/peers]

WEIGHTS is a folder that `peer_weights.py` filled; PYTHON has the other programs (README.md), DIR
pywhispercpp built for this machine. `peer_streams.py` says how each program is used, and on which
clock. Sounds: the clip `two_cities`; a minute of the stream A; a minute of noise, 15 s each of
music, mumbling, babble and a reversed crowd; any stream whose turns are known (`sounds`). What was
shown and when is kept in ``--out``; a run that was interrupted goes on. Prints tables and, last,
one JSON line. Of streams with turns there is a second table (`scores.Dialogue`), in which a line
that stays is a final.

*first shown*, *committed*, *in a final*: s from a word's end, median/95 %, of the words that are
right on the last screen. What the program never made final counts in the words, but is in no final.
*erased*: shown words that were changed or removed, case and marks ignored, for each word of the
last screen. *twice*: words of it that were said once and stand there twice in a row. *CPU s/s*: for
each second of sound that the program looked at, with all its threads and processes (how many times
streamd's); *lost*: the share that it did not look at. *load*: of the machine.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile

import scores
from lab.alignment import align
from lab.metrics import erased
from peer_streams import PROGRAMS, SILENCE_S
from scores import errors, printed
from sounds import DATA, Sound, clips, sets
from streamd.cli.bench import spoken
from streamd.system.processor import machine
from streamd.types import SAMPLE_RATE
from tables import table

HERE = Path(__file__).resolve().parent
_A_S = (132.4, 193.1)
"""The part of the stream A that is played: 169 words of two readers."""
_NOISES = ("music", "mumble", "babble", "crowd")


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """A screen, from `ms` on: text of finals, what is committed behind it, and what may change."""

    ms: float
    final: str
    committed: str
    tentative: str

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.final} {self.committed}{self.tentative}"

    @property
    def lines(self) -> list[str]:
        """The finals, each a line of its own."""
        return [line for line in self.final.splitlines() if spoken(line)]

    @property
    def words(self) -> list[str]:
        """As they are compared."""
        return spoken(self.text)

    @property
    def n_sure(self) -> tuple[int, int, int]:
        """How many words are shown, are committed, and are in finals."""
        sure = spoken(f"{self.final} {self.committed}")
        return len(self.words), len(sure), len(spoken(self.final))


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What a program did with a sound; as in `peer_streams.py`."""

    shown: tuple[Shown, ...]
    cpu_s: float
    memory_mb: float
    lost_s: float
    about: str
    load: float

    @property
    def text(self) -> str:
        """What is on the screen in the end."""
        return self.shown[-1].text if self.shown else ""


def latencies(played: Played, sound: Sound) -> list[list[float]]:
    """Of right words, s from their ends until they were shown, were committed, were in a final."""
    last = played.shown[-1].words if played.shown else []
    seen: list[dict[int, float]] = [{}, {}, {}]
    for entry in played.shown:
        words = entry.words
        n = _n_same(words, last)
        pairs = align(last[n : len(words) + 10], words[n:])  # a screen begins as the last one does
        there = [(i, i) for i in range(n)]
        there += [(n + i, n + j) for i, j in pairs if i is not None and j is not None]
        for times, n_sure in zip(seen, entry.n_sure, strict=True):
            for i, j in there:
                if j < n_sure and last[i] == words[j]:
                    times.setdefault(i, entry.ms)
    right = [
        (j, sound.words[i].end_ms)
        for i, j in align([word.text for word in sound.words], last)
        if i is not None and j is not None and sound.words[i].text == last[j]
    ]
    return [
        [(times[j] - end_ms) / 1000 for j, end_ms in right if j in times and end_ms is not None]
        for times in seen
    ]


def _n_same(a: Sequence[str], b: Sequence[str]) -> int:
    """How many words two texts have in common at their beginning."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def n_twice(text: str, reference: str) -> int:
    """Words that stand twice in a row, alone or with others, and do not in the reference."""
    words, said = spoken(text), " ".join(spoken(reference))
    n, at = 0, 0
    while at < len(words):
        for length in range(12, 0, -1):
            twice = words[at : at + 2 * length]
            doubled = len(twice) == 2 * length and twice[:length] == twice[length:]
            if doubled and f" {' '.join(twice)} " not in f" {said} ":
                n, at = n + length, at + length - 1
                break
        at += 1
    return n


def score(played: Played, sound: Sound) -> dict[str, Any]:
    """A row of the table of a recording."""
    found = errors([sound.reference], [played.text])
    screens = [[word.word for word in printed(screen.text)] for screen in played.shown]
    late = zip(("first shown", "committed", "in a final"), latencies(played, sound), strict=True)
    return {
        "WER %": f"{found.rate:.1f}",
        "S/D/I": f"{found.substituted}/{found.deleted}/{found.inserted}",
        **{name: "/".join(f"{np.percentile(s, q):.2f}" for q in (50, 95) if s) for name, s in late},
        "erased": f"{erased(screens) / max(1, len(screens[-1])):.2f}" if screens else "",
        "twice": n_twice(played.text, sound.reference),
    } | cost(played, sound)


def lines(played: Played) -> scores.Lines:
    """The lines that stay, with the time at which each was complete."""
    last = played.shown[-1] if played.shown else Shown(0, "", "", "")
    n_words = np.cumsum([len(spoken(line)) for line in last.lines])
    completed = [
        next(entry.ms for entry in played.shown if len(spoken(entry.final)) >= n) for n in n_words
    ]
    rest = f"{last.committed}{last.tentative}"
    open_line = [(last.ms, rest)] if spoken(rest) else []
    return [*zip(completed, last.lines, strict=True), *open_line]


def invented(played: Played, sound: Sound) -> dict[str, Any]:
    """A row of the table of noise."""
    n_words = len(printed(played.text))
    text = " ".join(played.text.split())
    return {"words": n_words, "text": text[:100]} | cost(played, sound)


def cost(played: Played, sound: Sound) -> dict[str, Any]:
    """What it took of the machine."""
    seconds = soundfile.info(sound.path).duration + SILENCE_S
    return {
        "CPU s/s": round(played.cpu_s / (seconds - played.lost_s), 2),
        "lost": f"{played.lost_s / seconds:.0%}",
        "MB": round(played.memory_mb),
        "load": f"{played.load:.1f}",
    }


def sounds_of(name: str, data: Path, out: Path) -> Sound:
    """The clip, the part of A, or the noise, which are written to `out`, or a stream with turns."""
    if name == "two_cities":
        (clip,) = (clip for clip in clips(data) if clip.name.endswith(name))
        return clip
    if name not in ("A", "noise"):
        (stream,) = sets([name], data, out)[name]
        return stream
    path = out / f"{name}.flac"
    (whole, *more) = sets([name], data, out)[name]
    if name == "noise":
        parts = [sound.path for sound in (whole, *more) if sound.name in _NOISES]
        pieces = [soundfile.read(part, frames=15 * SAMPLE_RATE)[0] for part in parts]
        soundfile.write(path, np.concatenate(pieces), SAMPLE_RATE)
        return Sound(name, path)
    begin_s, end_s = _A_S
    samples = soundfile.read(whole.path)[0]
    soundfile.write(
        path, samples[int(begin_s * SAMPLE_RATE) : int(end_s * SAMPLE_RATE)], SAMPLE_RATE
    )
    words = [
        replace(word, start_ms=word.start_ms - begin_s * 1000, end_ms=word.end_ms - begin_s * 1000)
        for word in whole.words
        if begin_s * 1000 < word.start_ms < end_s * 1000
    ]
    return Sound(name, path, " ".join(word.text for word in words), tuple(words))


def play(name: str, folder: Path, sound: Sound, args: argparse.Namespace) -> Played:
    """Let a program caption the sound, unless it did before.

    Raises
    ------
    RuntimeError : the program failed; with the last line of what it complained about
    """
    kept = args.out / folder.name / f"{sound.name} {name}.json"
    if not kept.exists():
        paths = {"PYTHONPATH": str(args.native), "LD_LIBRARY_PATH": str(args.native)}
        done = subprocess.run(
            [sys.executable if name == "streamd" else args.peer, HERE / "peer_streams.py",
             name, folder, sound.path, str(args.slowed)],
            capture_output=True, text=True, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            | (paths if args.native and name.startswith("whisper.cpp") else {}),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{name} ended: {done.stderr.strip().splitlines()[-1]}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        load = os.getloadavg()[0]
        kept.write_text(json.dumps(json.loads(done.stdout) | {"load": load}), encoding="utf-8")
    return msgspec.json.decode(kept.read_bytes(), type=Played)


def _by_program(rows: dict[str, dict[str, Any]]) -> str:
    head = [key.replace("_", " ") for key in next(iter(rows.values()))]
    return table(["program", *head], [(name, *row.values()) for name, row in rows.items()])


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--dims", nargs="+", default=["tiny.en", "base"])
    parser.add_argument("--sounds", nargs="+", default=["two_cities", "A", "noise"])
    parser.add_argument("--only", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of recorded speech")
    parser.add_argument("--peer", default=sys.executable, help="Python with the other programs")
    parser.add_argument("--native", default="", help="folder with another pywhispercpp")
    parser.add_argument("--slowed", type=float, default=1.0, help="by what else the machine does")
    parser.add_argument("--out", type=Path, default=Path("build/peers"), help="keeps the runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {}
    turned: dict[str, Any] = {}
    for model in args.dims:
        for name in args.sounds:
            sound = sounds_of(name, args.data, args.out)
            row = score if sound.reference else invented
            rows, talks = {}, {}
            for program in args.only:
                played = play(program, args.weights / model, sound, args)
                rows[program] = {**row(played, sound), "version": played.about}
                if sound.turns:
                    talks[program] = asdict(scores.dialogue([(sound, lines(played))]))
                print(model, name, program, rows[program], file=sys.stderr)
            told[f"{model}, {name}"] = rows
            ours = rows.get("streamd", {"CPU s/s": float("nan")})["CPU s/s"]
            shown = {
                program: each | {"CPU s/s": f"{each['CPU s/s']} ({each['CPU s/s'] / ours:.1f})"}
                for program, each in rows.items()
            }
            print(f"## {model}, {name}\n\n{_by_program(shown)}\n", flush=True)
            if talks:
                turned[f"{model}, {name}"] = talks
                print(f"{_by_program(talks)}\n", flush=True)
    print(json.dumps({"live": told, "turns": turned, "machine": msgspec.to_builtins(machine())}))


if __name__ == "__main__":
    main()
