"""Dialogues built from single lines: who speaks when, and what, is known exactly.

``lines.jsonl`` names lines with ``path``, ``speaker``, ``speech`` (its bounds in s), ``game`` and
``text``. All speakers of a dialogue are of one game, so that the kind of recording tells nothing.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.types import SAMPLE_RATE

_LENGTH_S, _LONG_S = 90, 240
_HOST_S, _GUEST_WORDS = 125, range(9, 13)
"""What each of two people says at least who talk for `_LONG_S`, and the guest in the middle."""
_OVERLAPPED = 0.2
"""The share of turns that begin before the end of the one before, by up to a second."""


_ONE_VOICE = {"SKIP": "SPARKY"}
"""Characters of one actor, who do not meet in a dialogue: the mean cosine of lines of both (0.50)
is that of lines of one (0.50 and 0.53; of other pairs it is 0.29 at most), and 30 % of their lines
are nearer to the other's mean (of other pairs, none to 5.5 %)."""


UNNAMED = "PERSON_"
"""Characters who may have one actor, or that of somebody else."""


class Talk(NamedTuple):
    """Who talks from `start` to `end`, in seconds, and the text, if it is known."""

    start: float
    end: float
    speaker: str
    text: str = ""


@dataclass(frozen=True)
class Built:
    """A dialogue: its sound at 16 kHz, and its turns."""

    name: str
    sound: NDArray[np.float32]
    talk: tuple[Talk, ...]


def built(lines: Path, n_speakers: int, seed: int, *, guest: bool = False) -> Built:
    """Build a dialogue of 90 s, with pauses of 0 to 1 s.

    With a `guest`, one more person says a line of about ten words once, in the middle of 240 s.
    """
    rng = np.random.default_rng(seed)
    every = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    game = rng.choice(sorted({line["game"] for line in every}))
    by_speaker: dict[str, list[dict[str, Any]]] = {}
    for line in every:
        if line["game"] == game:
            by_speaker.setdefault(line["speaker"], []).append(line)
    enough = sorted(name for name, said in by_speaker.items() if len(said) >= 80 // n_speakers)
    length_s = _LONG_S if guest else _LENGTH_S
    if guest:
        enough = [each for each in sorted(by_speaker) if _seconds(by_speaker[each]) >= _HOST_S]
    chosen: list[str] = []
    for name in map(str, rng.permutation(enough)):
        voices = {_ONE_VOICE.get(each, each) for each in chosen}
        if len(chosen) < n_speakers and _ONE_VOICE.get(name, name) not in voices:
            chosen.append(name)
    sound, end = np.zeros((length_s + 10) * SAMPLE_RATE, np.float32), 0.5
    talk: list[Talk] = []
    left = {name: list(rng.permutation(len(by_speaker[name]))) for name in chosen}
    last, visit = "", _visit(by_speaker, chosen, rng) if guest else None
    while end < length_s:
        name = str(rng.choice([each for each in chosen if each != last]))
        line = None
        if visit and end > length_s / 2:
            (name, line), visit = visit, None
        line = line or by_speaker[name][left[name].pop()]
        first, after = (round(SAMPLE_RATE * at) for at in line["speech"])
        part = _decoded(lines.parent / line["path"])[first:after]
        overlaps = bool(talk) and rng.random() < _OVERLAPPED
        start = end + (-rng.uniform(0.2, 1) if overlaps else rng.uniform(0, 1))
        start = max(start, talk[-1].start + 0.2 if talk else 0)
        at = round(SAMPLE_RATE * start)
        sound[at : at + len(part)] += part[: len(sound) - at]
        end = start + len(part) / SAMPLE_RATE
        talk.append(Talk(start, end, name, line["text"]))
        last = name
    name = f"built-{len(chosen)}{'-guest' if guest else ''}-{seed}-{game}"
    return Built(name, sound[: round(SAMPLE_RATE * (end + 1))], tuple(talk))


def _seconds(said: Iterable[dict[str, Any]]) -> float:
    return sum(float(line["speech"][1] - line["speech"][0]) for line in said)


def _visit(
    by_speaker: dict[str, list[dict[str, Any]]], hosts: Sequence[str], rng: np.random.Generator
) -> tuple[str, dict[str, Any]]:
    """Choose a guest, and what they say."""
    voices = {_ONE_VOICE.get(each, each) for each in hosts}
    lines = [
        (name, line)
        for name, said in sorted(by_speaker.items())
        if _ONE_VOICE.get(name, name) not in voices and not name.startswith(UNNAMED)
        for line in said
        if len(line["text"].split()) in _GUEST_WORDS
    ]
    guests = sorted({name for name, _ in lines})
    guest = guests[rng.integers(len(guests))]
    of = [each for each in lines if each[0] == guest]
    return of[rng.integers(len(of))]


def write(lines: Path, n_speakers: int, seed: int, folder: Path) -> tuple[Path, tuple[Talk, ...]]:
    """Write the sound of a dialogue; return where it is, and its turns."""
    made = built(lines, n_speakers, seed)
    path = folder / f"{made.name}.flac"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, made.sound, SAMPLE_RATE)
    return path, made.talk


def _decoded(path: Path) -> NDArray[np.float32]:
    """Decode a line to 16 kHz, mono."""
    with av.open(str(path)) as file:
        resampler = av.AudioResampler("flt", "mono", SAMPLE_RATE)
        frames = [f for each in file.decode(audio=0) for f in resampler.resample(each)]
        return np.concatenate([f.to_ndarray()[0] for f in (*frames, *resampler.resample(None))])
