"""Every wrong word of streamd, live beside offline: how many, how late, at what cost, and why.

    python benchmarks/quality.py [--data ../shared/data/eval] [-m tiny.en] [--out build/quality]
        [--sounds clips A C noise] [--runs NAME[:option=value;...]...] [--wrong]

Each run has a NAME and options of streamd; one whose name begins with "offline" is ``streamd
transcribe``, any other a live stream on a clock on which computing takes no time. The usual runs
are ``offline``, ``live`` and ``utterances:step=0``. Sounds are sets of ``sounds.py``. What a run
said and did is kept in ``--out``; a run that was interrupted goes on, one that is there is only
counted. Tables: words, latency and cost; marks and capitals; turns of a conversation; for each
run's wrong words, in which other runs they are wrong too; words invented in noise. ``--wrong``
lists every wrong word. Prints, last, one JSON line.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

import scores
from runs import Run, Trace
from sounds import DATA, Sound, sets
from streamd.system.processor import machine
from tables import table

RUNS = ("offline", "live", "utterances:step=0")
Runs = dict[str, list[tuple[Sound, Trace]]]
"""Runs over one set of sounds, by name."""


def score(run: Sequence[tuple[Sound, Trace]]) -> dict[str, Any]:
    """A row of the first table."""
    found, spent = scores.run_errors(run), scores.cost(run)
    row: dict[str, Any] = {
        "WER %": f"{found.rate:.2f}",
        "S/D/I": f"{found.substituted}/{found.deleted}/{found.inserted}",
    }
    if run[0][1].live:
        exact, plain = scores.erasure(run)
        late = scores.latencies(run)
        row |= {event: scores.spread(times) for event, times in late.items()}
        row |= {
            "erased (words only)": f"{exact:.2f} ({plain:.2f})",
            "taken back": scores.violations(run),
            "unheard": scores.unheard(run),
            "windows/s": f"{spent.windows:.2f}",
            "frames": f"{spent.frames:.0f}",
            "fallbacks": spent.counts["fallback tried"],
        }
    return row | {"CPU s/s": f"{spent.cpu:.2f}"}


def words_table(runs: Runs) -> str:
    """Wrong words, latency in ms (median/95 %), erasure and cost of each run."""
    rows = {name: score(run) for name, run in runs.items()}
    longest = max(rows.values(), key=lambda row: len(row))  # an offline run has fewer columns
    head = list(longest)
    return table(
        ["run", *head], [(name, *(row.get(key, "") for key in head)) for name, row in rows.items()]
    )


def marks_table(runs: Runs) -> str:
    """Marks and capitals of the words that are right."""
    rows = {name: asdict(scores.marks(run)) for name, run in runs.items()}
    head = [key.replace("_", " ") for key in next(iter(rows.values()))]
    return table(["run", *head], [(name, *row.values()) for name, row in rows.items()])


def dialogue_table(runs: Runs) -> str:
    """How a conversation can be read."""
    rows = {
        name: asdict(scores.dialogue([(sound, scores.finals(trace)) for sound, trace in run]))
        for name, run in runs.items()
    }
    head = [key.replace("_", " ") for key in next(iter(rows.values()))]
    return table(["run", *head], [(name, *row.values()) for name, row in rows.items()])


def causes_table(runs: Runs, *, show: bool) -> str:
    """Wrong words of each live run by the other runs that have them wrong as well."""
    wrong = {
        name: [scores.wrong_words(sound.reference, trace.text) for sound, trace in run]
        for name, run in runs.items()
    }
    lines: list[tuple[object, ...]] = []
    for name, run in runs.items():
        counts: Counter[tuple[str, ...]] = Counter()
        for n, (sound, _) in enumerate(run):
            others = {other: each[n] for other, each in wrong.items() if other != name}
            for place in wrong[name][n]:
                also = scores.also_wrong(place, others)
                counts[also] += place.n_words
                if show:
                    at = f"{sound.name} {place.start}: {place.before}"
                    print(f"{name}: {at} [{place.said}] -> [{place.read}] also {list(also)}")
        lines += [(name, ", ".join(also) or "no other run", n) for also, n in counts.most_common()]
    return table(["run", "also wrong in", "words"], lines)


def noise_table(runs: Runs) -> str:
    """Words that live runs invent."""
    lines = []
    for name, run in runs.items():
        for sound, trace in run:
            shown, final = scores.invented(trace)
            share, windows = f"{scores.listened(trace):.0%}", len(trace.windows)
            texts = " / ".join(event.text for event in trace.finals)
            lines.append((name, sound.name, share, windows, shown, final, texts[:100]))
    head = ["run", "sound", "in windows", "windows", "words shown", "in finals", "text"]
    return table(head, lines)


def report(name: str, runs: Runs, *, show: bool) -> str:
    """All tables of a set of sounds."""
    first = next(iter(runs.values()))
    seconds = sum(trace.audio_ms for _, trace in first) / 1000
    title = f"## {name}: {len(first)} sounds, {seconds:.0f} s"
    if not first[0][0].reference:
        return f"{title}\n\n{noise_table(runs)}\n"
    n_words = scores.run_errors(first).words
    parts = [words_table(runs), marks_table(runs), causes_table(runs, show=show)]
    if all(sound.turns for sound, _ in first):
        parts.insert(2, dialogue_table(runs))
    return "\n\n".join([f"{title}, {n_words} words", *parts]) + "\n"


def main() -> None:
    """Do the runs that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of recorded speech")
    parser.add_argument("--out", type=Path, default=Path("build/quality"), help="keeps the runs")
    parser.add_argument("--sounds", nargs="+", default=["clips", "A", "C", "noise"])
    parser.add_argument("--wrong", action="store_true", help="list every wrong word")
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="NAME[:option=value;...]")
    args = parser.parse_args()
    runs = [Run(spec, args.model, args.out) for spec in args.runs]
    told: dict[str, Any] = {"model": Path(args.model).name, "sets": {}}
    commits = set()
    for name, sounds in sets(args.sounds, args.data, args.out).items():
        scored: Runs = {}
        for run in runs:
            if run.offline and not sounds[0].reference:
                continue  # nobody reads captions of noise afterwards
            scored[run.name] = []
            for sound, trace in zip(sounds, run.traces(sounds), strict=True):
                scored[run.name].append((sound, trace))
                commits.add(trace.commit)
            print(f"{name}: {run.name} done", file=sys.stderr, flush=True)
        print(report(name, scored, show=args.wrong), flush=True)
        if sounds[0].reference:
            told["sets"][name] = {run: score(each) for run, each in scored.items()}
    print(f"{Path(args.model).name}, measured at {', '.join(sorted(commits))}")
    told |= {"commits": sorted(commits), "machine": msgspec.to_builtins(machine())}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
