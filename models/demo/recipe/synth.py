"""Let synthetic voices speak words and phrases of the vocabulary: ``synth.py OUT [ENGINE ...]``.

Engines: flite and festival (BSD-like voices), espeak-ng (free output); ``pico`` makes the held-out
evaluation voices. Each engine's texts and settings follow from a fixed seed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from align import Aligner, phones_of
from clips import RATE_HZ, Clip, Run, Samples, Shard, speech_bounds, trim
from vocabulary import ALONE, DIGITS, digits, phrase

Say = Callable[[random.Random, str, Path], None]


def _read(path: Path) -> Samples | None:
    if not path.exists() or path.stat().st_size < 1000:
        return None
    x, rate = soundfile.read(path, dtype="float32", always_2d=True)
    x = x[:, 0] if rate == RATE_HZ else soxr.resample(x[:, 0], rate, RATE_HZ)
    return trim(x) if np.abs(x).max() > 1e-3 else None


def texts(r: random.Random, words: int, phrases: int) -> list[str]:
    """Choose what a voice says: single words, extra digits, phrases and long digit strings."""
    alone = r.sample(ALONE, min(words, len(ALONE)))
    extra = [r.choice([*DIGITS, "oh"]) for _ in range(max(10, words // 5))]
    strings = [digits(r, 4, 16) for _ in range(phrases // 5)]
    return alone + extra + strings + [phrase(r) for _ in range(phrases)]


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)


def _flite(voice: str) -> Say:
    pitch = {"awb": 120, "rms": 95, "slt": 170, "kal16": 105}[voice]

    def say(r: random.Random, text: str, out: Path) -> None:
        stretch, f0 = r.uniform(0.75, 1.35), pitch * r.uniform(0.8, 1.25)
        settings = ["--setf", f"duration_stretch={stretch:.2f}",
                    "--setf", f"int_f0_target_mean={f0:.0f}"]  # fmt: skip
        _run(["flite", "-voice", voice, *settings, "-t", text, "-o", str(out)])

    return say


def _espeak(voice: str) -> Say:
    def say(r: random.Random, text: str, out: Path) -> None:
        pitch, speed = str(r.randint(25, 75)), str(r.randint(110, 210))
        _run(["espeak-ng", "-v", voice, "-p", pitch, "-s", speed, "-w", str(out), text])

    return say


def _pico(voice: str) -> Say:
    return lambda _, text, out: _run(["pico2wave", "-l", voice, "-w", str(out), text])


def _festival(voice: str, r: random.Random, said: list[str], folder: Path) -> Iterator[Path]:
    """Speak many texts with one start of festival, which is slow to start."""
    for start in range(0, len(said), 100):
        lines = [f"(voice_{voice})"]
        for i, text in enumerate(said[start : start + 100]):
            lines += [
                f"(Parameter.set 'Duration_Stretch {r.uniform(0.75, 1.3):.2f})",
                f'(set! u (utt.synth (Utterance Text "{text}")))',
                f'(utt.save.wave u "{folder}/{start + i}.wav" \'riff)',
            ]
        script = folder / "say.scm"
        script.write_text("\n".join(lines))
        _run(["festival", "-b", str(script)])
        yield from (folder / f"{start + i}.wav" for i in range(len(said[start : start + 100])))


def _clip(aligner: Aligner, x: Samples | None, text: str, voice: str) -> Clip | None:
    words = text.split()
    if x is None or not 0.1 < len(x) / RATE_HZ < 14:
        return None
    held = voice.startswith("pico")
    if len(words) == 1:
        begin, end = speech_bounds(x)
        return Clip(x, (Run(text, phones_of(text), begin, end),), voice, "word", held)
    aligned = aligner(x, words)
    runs = (
        [Run(a.word, a.phones, a.begin, a.end) for a in aligned] if aligned else _shared(x, words)
    )
    return Clip(x, tuple(runs), voice, "phrase", held)


def _shared(x: Samples, words: list[str]) -> list[Run]:
    """Share the time between the words by their phones, 0.1 s wider: some voices do not align."""
    begin, end = speech_bounds(x)
    phones = [phones_of(word) for word in words]
    borders = np.cumsum([0, *map(len, phones)]) / sum(map(len, phones)) * (end - begin) + begin
    slack = RATE_HZ // 10
    return [
        Run(word, said, max(begin, int(borders[i]) - slack), min(end, int(borders[i + 1]) + slack))
        for i, (word, said) in enumerate(zip(words, phones, strict=True))
    ]


def speak(voice: str, say: Say | None, said: list[str], r: random.Random) -> Shard:
    """Let one voice say the texts; ``say`` is None for festival's voices."""
    shard, aligner = Shard(), Aligner()
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "one.wav"

        def sounds() -> Iterator[Path]:
            if say is None:
                yield from _festival(voice.removeprefix("festival-"), r, said, folder)
                return
            for text in said:
                out.unlink(missing_ok=True)
                say(r, text, out)
                yield out

        for text, path in zip(said, sounds(), strict=True):
            clip = _clip(aligner, _read(path), text, voice)
            if clip is not None:
                shard.add(clip)
    return shard


def voices() -> dict[str, list[tuple[str, Say | None, int, int]]]:
    """Per engine: name of the voice, how it speaks, number of words and of phrases."""
    accents = {
        ("en-us", "en-gb"): (["", "+f2", "+m3", "+f4", "+m7", "+f1", "+m5"], 150, 110),
        ("en-gb-x-rp", "en-gb-scotland", "en-029", "en-gb-x-gbcwmd"): (
            ["+m1", "+f5", "+m8", "+f3"], 110, 80,
        ),
    }  # fmt: skip
    espeak = [
        (f"espeak-{accent}{variant}", _espeak(accent + variant), words, phrases)
        for group, (variants, words, phrases) in accents.items()
        for accent in group
        for variant in variants
    ]
    festival = ("cmu_us_slt_arctic_hts", "kal_diphone", "ked_diphone")
    return {
        "flite": [(f"flite-{v}", _flite(v), 189, 700) for v in ("slt", "rms", "awb", "kal16")],
        "festival": [(f"festival-{v}", None, 189, 500) for v in festival],
        "espeak": espeak,
        "pico": [(f"pico-{v}", _pico(v), 189, 80) for v in ("en-US", "en-GB")],
    }


def main() -> None:
    """Let all voices of the engines speak, a shard each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the shards")
    parser.add_argument("engine", nargs="*", help="default: all")
    args = parser.parse_args()
    for engine, speakers in voices().items():
        for voice, say, words, phrases in speakers if engine in (args.engine or voices()) else []:
            r = random.Random(voice)
            # every word is said twice, at two speeds; phrases once
            said = texts(r, words, phrases) + texts(r, words, 0)
            speak(voice, say, said, r).save(args.out / voice)


if __name__ == "__main__":
    main()
