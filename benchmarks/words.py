"""Single words with pauses between them: how many get no text, live beside ``streamd transcribe``.

    python benchmarks/words.py [--data DIR...] [-m tiny.en] [--half judge] [--pause-ms 2200]
        [--most 120] [--runs NAME[:option=value;...]...] [--out DIR]

Each folder of --data has a ``manifest.jsonl`` or ``lines.jsonl`` of clips. Of clips with word times
(``words``), up to seven words of at least four letters and 280 ms are cut out, with 30 ms on
either side; clips of one word are taken as they are. Speakers are halved by a checksum of their
names; clips of one word by that of their paths, since one speaker recorded nearly all of them.
Rules are chosen on the half "design", and only "judge" says how good they are. Of each set, at most
--most words count. A word is lost if no final is within 300 ms of it, and untold if there is no
event `unclear` either. Prints a table and, last, a line of JSON.
"""

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile

from lab.latency import SpokenWord
from lab.recordings import read_recording
from runs import Run, Trace
from sounds import DATA, Sound
from streamd.cli.bench import spoken
from streamd.events import Final, Unclear
from streamd.types import SAMPLE_RATE, Samples
from tables import table

_PER_CLIP, _LETTERS, _SHORTEST_MS, _MARGIN_MS = 7, 4, 280, 30
_NEAR_MS = 300
_FADE = SAMPLE_RATE // 100
_NOISE = 10 ** (-75 / 20)


class Cut(NamedTuple):
    """A word alone: its sound, with `margin` samples on either side of it."""

    text: str
    sound: Samples
    margin: int


def cuts(folder: Path, half: str) -> tuple[list[Cut], list[Cut]]:
    """Words of the clips of a folder: those cut out of sentences, and those recorded alone."""
    manifest = next(path for path in map(folder.joinpath, _MANIFESTS) if path.exists())
    cut, alone = [], []
    for line in manifest.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        is_alone = len(spoken(row["text"])) == 1
        halved = row["path" if is_alone else "speaker"]
        is_judge = zlib.crc32(halved.encode()) % 2 == 0
        if row.get("lang", "en") != "en" or is_judge != (half == "judge"):
            continue
        if is_alone:
            alone.append(Cut(row["text"], _samples(folder / row["path"]), 0))
        elif row.get("words"):
            cut += _cut(_samples(folder / row["path"]), row["words"])
    return cut, alone


_MANIFESTS = ("manifest.jsonl", "lines.jsonl")


def _samples(path: Path) -> Samples:
    return read_recording(path).frames.reshape(-1)


def _cut(sound: Samples, words: Sequence[tuple[str, float, float]]) -> Iterator[Cut]:
    margin = _MARGIN_MS * SAMPLE_RATE // 1000
    long = [
        word
        for word in words
        if len(word[0]) >= _LETTERS and (word[2] - word[1]) * 1000 >= _SHORTEST_MS
    ]
    for text, start_s, end_s in long[:: -(-len(long) // _PER_CLIP) or 1]:
        first, last = round(start_s * SAMPLE_RATE) - margin, round(end_s * SAMPLE_RATE) + margin
        part = sound[max(0, first) : last].copy()
        part[:_FADE] *= np.linspace(0, 1, _FADE, dtype=np.float32)
        part[-_FADE:] *= np.linspace(1, 0, _FADE, dtype=np.float32)
        yield Cut(text, part, margin)


def write(words: Sequence[Cut], pause_ms: int, path: Path) -> Sound:
    """Write the words with pauses between them, in soft noise; return the sound and its words."""
    rng = np.random.default_rng(1)
    pause = np.zeros(pause_ms * SAMPLE_RATE // 1000, np.float32)
    parts, timed, at = [pause], [], len(pause)
    for word in words:
        last = at + len(word.sound)
        start_ms, end_ms = (
            each * 1000 // SAMPLE_RATE for each in (at + word.margin, last - word.margin)
        )
        timed.append(SpokenWord(word.text, start_ms, end_ms))
        parts += [word.sound, pause]
        at = last + len(pause)
    sound = np.concatenate(parts)
    sound += (_NOISE * rng.standard_normal(len(sound))).astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound, SAMPLE_RATE)
    return Sound(path.stem, path, " ".join(word.text for word in words), tuple(timed))


def score(sound: Sound, trace: Trace) -> dict[str, Any]:
    """A row of the table."""
    finals = [(each.start_ms, each.end_ms) for each in trace.finals]
    events = (each.event for each in trace.said)
    unclear = [(each.start_ms, each.end_ms) for each in events if isinstance(each, Unclear)]
    lost = [word for word in sound.words if not _is_near(word, finals)]
    return {
        "set": sound.name,
        "words": len(sound.words),
        "lost": len(lost),
        "untold": sum(not _is_near(word, unclear) for word in lost),
        "late (95 %)": _late(trace),
        "which": " ".join(word.text for word in lost),
    }


def _is_near(word: SpokenWord, spans: Sequence[tuple[int, int]]) -> bool:
    first, last = word.start_ms - _NEAR_MS, word.end_ms + _NEAR_MS
    return any(start_ms < last and end_ms > first for start_ms, end_ms in spans)


def _late(trace: Trace) -> str:
    """How many ms after the end of their last word finals come."""
    late = [
        entry.heard_ms - entry.event.words[-1].end_ms
        for entry in trace.said
        if isinstance(entry.event, Final) and entry.event.words
    ]
    return f"{np.percentile(late, 95):.0f}" if trace.live and late else ""


def main() -> None:
    """Make the sets, do the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [DATA, DATA.parent / "train", DATA.parent / "conversations"]
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--data", type=Path, nargs="+", default=usual)
    parser.add_argument("--half", choices=["design", "judge"], default="design")
    parser.add_argument("--pause-ms", type=int, default=2_200)
    parser.add_argument("--most", type=int, default=120, metavar="WORDS")
    parser.add_argument("--runs", nargs="+", default=["live", "offline"])
    parser.add_argument("--out", type=Path, default=Path("build/words"), help="keeps the runs")
    args = parser.parse_args()
    every = [cuts(folder, args.half) for folder in args.data]
    sounds = []
    for name, found in zip(("cut", "alone"), zip(*every, strict=True), strict=True):
        words = [word for each in found for word in each]
        chosen = np.random.default_rng(1).permutation(len(words))[: args.most]
        path = args.out / f"{name}-{args.half}-{args.pause_ms}-{args.most}.flac"
        if words:
            sounds.append(write([words[n] for n in chosen], args.pause_ms, path))
    rows = []
    for spec in args.runs:
        run = Run(spec, args.model, args.out)
        rows += [
            {"run": run.name, **score(sound, trace)}
            for sound, trace in zip(sounds, run.traces(sounds), strict=True)
        ]
    print(table(list(rows[0]), [tuple(row.values()) for row in rows]))
    print(json.dumps({"model": Path(args.model).name, "words": rows}))


if __name__ == "__main__":
    main()
