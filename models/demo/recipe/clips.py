"""Clips: recorded or synthesised speech with the times of its words, packed in shards.

A shard is a pair of files: ``NAME.npy`` (int16, 16 kHz, all clips one after the other) and
``NAME.json`` (one entry per clip). Shards are independent, so that speech can be added without
preparing the rest again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Run:
    """One written word (or ``...``) and where in its clip it is heard, in samples."""

    text: str
    phones: tuple[str, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Clip:
    """A piece of one voice.

    ``kind`` says what it can be used for: ``digit`` and ``word`` are single words, ``phrase`` is
    vocabulary speech in one breath, ``sentence`` is read speech with unknown stretches,
    ``unknown`` is outside the vocabulary. ``held`` clips are for evaluation only.
    """

    samples: Samples
    runs: tuple[Run, ...]
    voice: str
    kind: str
    held: bool = False


class Shard:
    """Collects clips and writes them as one shard."""

    SHORTEST, LONGEST = 1_200, 14 * RATE_HZ

    def __init__(self) -> None:
        self._audio: list[NDArray[np.int16]] = []
        self._index: list[dict[str, object]] = []
        self._length = 0

    def __len__(self) -> int:
        return len(self._index)

    def add(self, clip: Clip) -> None:
        """Append a clip, levelled to a peak of 0.7; clips of odd length are left out."""
        n = len(clip.samples)
        if not self.SHORTEST <= n <= self.LONGEST or not all(run.phones for run in clip.runs):
            return
        peak = max(float(np.abs(clip.samples).max()), 1e-5)
        self._audio.append((clip.samples * (0.7 / peak * 32767)).astype(np.int16))
        entry = asdict(clip) | {"offset": self._length, "length": n}
        del entry["samples"]
        self._index.append(entry)
        self._length += n

    def save(self, path: Path) -> None:
        """Write ``path`` + .npy and .json; the index last: it says that the shard is whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path.with_suffix(".npy"), np.concatenate(self._audio))
        path.with_suffix(".json").write_text(json.dumps(self._index))
        hours = self._length / RATE_HZ / 3600
        print(f"{path.name}: {len(self)} clips, {hours:.2f} h", flush=True)


def load_shard(path: Path) -> list[Clip]:
    """Read a shard; the samples stay int16 views of the file until ``audible`` copies them."""
    audio = np.load(path.with_suffix(".npy"), mmap_mode="r")
    return [
        Clip(
            samples=audio[entry["offset"] : entry["offset"] + entry["length"]],
            runs=tuple(
                Run(r["text"], tuple(r["phones"]), r["begin"], r["end"]) for r in entry["runs"]
            ),
            voice=entry["voice"],
            kind=entry["kind"],
            held=entry["held"],
        )
        for entry in json.loads(path.with_suffix(".json").read_text())
    ]


def load_clips(folder: Path) -> list[Clip]:
    """Read all shards of a folder, in the order of their names."""
    return [clip for index in sorted(folder.glob("*.json")) for clip in load_shard(index)]


def audible(clip: Clip) -> Samples:
    """Return the clip's samples as float32 in [-1, 1]."""
    return np.asarray(clip.samples, dtype=np.float32) / 32768


def speech_bounds(x: Samples) -> tuple[int, int]:
    """Find where sound begins and ends, in samples.

    Sound is what is above 35 dB below the peak and 8 dB above the floor.
    """
    hop = RATE_HZ // 100
    frames = x[: len(x) // hop * hop].reshape(-1, hop)
    if len(frames) < 3:
        return 0, len(x)
    level = 10 * np.log10((frames.astype(np.float64) ** 2).mean(axis=1) + 1e-10)
    floor = np.quantile(level, 0.1) + 8
    loud = np.flatnonzero(level > min(max(level.max() - 35, floor), level.max() - 12))
    return int(loud[0]) * hop, min(len(x), int(loud[-1] + 1) * hop)


def trim(x: Samples, margin_s: float = 0.04) -> Samples:
    """Cut the silence around a sound down to a margin."""
    begin, end = speech_bounds(x)
    margin = int(margin_s * RATE_HZ)
    return x[max(0, begin - margin) : end + margin]
