"""The fixed test sets: people and voices that no training heard, and sounds that are no speech."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
from clips import RATE_HZ, Clip, Samples, audible, load_shard
from noise import babble, coloured, hum, music, room
from numpy.random import Generator
from scipy.signal import butter, sosfilt


@dataclass(frozen=True)
class Said:
    """A sound, its text, and (where known) begin and end of its words in seconds."""

    samples: Samples
    text: str
    times: tuple[tuple[float, float], ...] = ()


def words_of(text: str) -> list[str]:
    """Words for scoring: lower case, "oh" is zero, ``...`` counts as nothing."""
    words = re.sub(r"[^a-z' ]", " ", text.lower()).split()
    return ["zero" if word == "oh" else word for word in words]


def _still(r: Generator, seconds: float) -> Samples:
    return (r.standard_normal(int(seconds * RATE_HZ)) * 3e-4).astype(np.float32)


def _alone(r: Generator, clips: list[Clip]) -> list[Said]:
    return [
        Said(np.concatenate([_still(r, 0.3), audible(clip), _still(r, 0.4)]),
             " ".join(run.text for run in clip.runs))
        for clip in clips
    ]  # fmt: skip


def strings(
    r: Generator,
    clips: list[Clip],
    count: int,
    digits: tuple[int, int],
    pauses: tuple[float, float],
) -> list[Said]:
    """Join single digits of a speaker; the times are where each digit sounds."""
    out = []
    for _ in range(count):
        parts, words, times = [_still(r, r.uniform(0.2, 0.6))], [], []
        at = len(parts[0])
        for _ in range(r.integers(digits[0], digits[1] + 1)):
            clip = clips[r.integers(len(clips))]
            gap = _still(r, r.uniform(*pauses))
            parts += [audible(clip), gap]
            run = clip.runs[0]
            words.append(run.text)
            times.append(((at + run.begin) / RATE_HZ, (at + run.end) / RATE_HZ))
            at += len(clip.samples) + len(gap)
        out.append(Said(np.concatenate(parts), " ".join(words), tuple(times)))
    return out


def recordings(folder: Path, chosen: str) -> list[Said]:
    """Read the recordings of a manifest whose paths begin as chosen (a regular expression)."""
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").open()]
    return [
        Said(soundfile.read(folder / row["path"], dtype="float32")[0], row["text"])
        for row in rows
        if re.match(chosen, row["path"])
    ]


def speech(shards: Path, data: Path) -> dict[str, list[Said]]:
    """Sets by name. ``data`` has the folders eval and demo; ``shards`` the prepared clips."""
    r = np.random.default_rng(5)
    fsdd = [c for c in load_shard(shards / "real-fsdd") if c.voice == "fsdd-lucas"]
    alnum = [c for c in load_shard(shards / "real-moonshine_alnum") if c.kind == "digit"]
    evmaki = [c for c in alnum if c.voice.endswith("evmaki")]
    development = [c for c in alnum if c.voice.endswith("petewarden")]
    some = [fsdd[i] for i in r.permutation(len(fsdd))[:150]]
    sets = {
        "lucas, single digits": _alone(r, some),
        "lucas, strings of 4-8, pauses 0.08-0.9 s": strings(r, fsdd, 50, (4, 8), (0.08, 0.9)),
        "lucas, strings of 8-16, pauses 0-0.25 s": strings(r, fsdd, 30, (8, 16), (0.0, 0.25)),
        "evmaki, single digits": _alone(r, evmaki),
        "evmaki, strings of 4-8, pauses 0.08-0.5 s": strings(r, evmaki, 30, (4, 8), (0.08, 0.5)),
    }
    for voice in ("en-US", "en-GB"):
        clips = load_shard(shards / f"pico-{voice}")
        sets[f"pico {voice}, words"] = _alone(r, [c for c in clips if c.kind == "word"][:189])
        phrases = [c for c in clips if c.kind == "phrase"]
        sets[f"pico {voice}, phrases"] = _alone(
            r, [c for c in phrases if len(c.samples) < 12 * RATE_HZ]
        )
    sets["recorded commands and cards"] = recordings(data / "demo", r"(cards|lamp|time|six|no)_")
    sets["vosk, 15 digits"] = recordings(data / "demo", "digits_vosk")
    sets["development: petewarden, strings"] = strings(r, development, 30, (4, 8), (0.05, 0.5))
    return sets


def with_noise(said: list[Said], snr_db: float, kind: str) -> list[Said]:
    """Add noise relative to the level of the active speech (louder than 34 dB below the peak)."""
    r = np.random.default_rng(9)
    slope = {"white": 0.0, "pink": 0.5}[kind]

    def noisy(x: Samples) -> Samples:
        active = x[np.abs(x) > 0.02 * np.abs(x).max()]
        level = np.sqrt(np.mean(active**2)) * 10 ** (-snr_db / 20)
        return x + level * coloured(r, len(x), slope)

    return _changed(said, noisy)


def in_rooms(said: list[Said]) -> list[Said]:
    """Let each sound be said in a room of its own."""
    r = np.random.default_rng(17)
    return _changed(said, lambda x: room(r, x))


def by_telephone(said: list[Said]) -> list[Said]:
    """Keep what a telephone lets through: 300 to 3400 Hz."""
    band = butter(6, (300, 3400), "bandpass", fs=RATE_HZ, output="sos")
    return _changed(said, lambda x: sosfilt(band, x))


def quieter(said: list[Said], db: float) -> list[Said]:
    """Turn the sounds down."""
    return _changed(said, lambda x: x * 10 ** (-db / 20))


def _changed(said: list[Said], change: Callable[[Samples], Samples]) -> list[Said]:
    return [replace(one, samples=change(one.samples).astype(np.float32)) for one in said]


def not_speech(data: Path) -> dict[str, list[Samples]]:
    """Sounds without words: four 5 s pieces at four levels of each kind, 80 s in all."""
    r, n = np.random.default_rng(13), 20 * RATE_HZ
    voices = [Clip((x.samples * 32767).astype(np.int16), (), "", "") for x in _english(data)]
    kinds = {
        "silence": np.zeros(n, np.float32),
        "white noise": coloured(r, n, 0.0),
        "pink noise": coloured(r, n, 0.5),
        "hum": hum(r, n),
        "music": music(r, n),
        "babble of 8": babble(r, voices, n, 8),
    }
    levels = [10 ** (db / 20) for db in (-60, -45, -30, -20)]
    piece = 5 * RATE_HZ
    return {
        name: [
            (x[k : k + piece] * level).astype(np.float32)
            for level in levels
            for k in range(0, n, piece)
        ]
        for name, x in kinds.items()
    }


def _english(data: Path) -> list[Said]:
    foreign = r"audio/(?!(de|es|fr|it|ja|ko|pt|zh|vosk|cards|voice2json)__)"
    return [x for x in recordings(data / "eval", foreign) if len(x.samples) < 16 * RATE_HZ]


def outside_speech(data: Path) -> list[Said]:
    """Read English that the vocabulary does not cover, 1 to 16 s."""
    return _english(data)


def false_words(text: str, reference: str) -> int:
    """Count written words that were not said at all."""
    said = set(words_of(reference))
    return sum(word not in said for word in words_of(text))
