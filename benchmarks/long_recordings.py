"""Words wrong in half an hour of speech: streamd beside faster-whisper, same sound, same weights.

    python benchmarks/long_recordings.py CLIPS --model FOLDER --ct2 FOLDER [--minutes 30] [--seed 0]

CLIPS is a manifest of English clips, JSON lines with `path` and `text` (and `lang` where there are
others). They are joined in a random order, again and again, with pauses of 0.5 to 1.5 s of very
quiet noise, until the recording is that long. `--model` is for ``streamd transcribe``, whose beam
is 1; `--ct2` is the same model for faster-whisper, greedy and with its usual beam of five, always
with word times. `--peer` is a Python that has faster-whisper, if this one has not. Each program has
a process of its own with one thread; they run one after the other. Prints a table and, last, one
JSON line.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np
import soundfile
import soxr

from scores import errors
from streamd.system.processor import machine

RATE_HZ = 16_000
STREAMD = Path(sys.executable).with_name("streamd")
RUNS = {
    "streamd int8": ["--precision", "int8"],
    "streamd int8, --vad off": ["--precision", "int8", "--vad", "off"],
    "faster-whisper int8": ["1"],
    "faster-whisper int8, beam 5": ["5"],
}
"""Name of a run -> the program's own arguments."""


def main() -> None:
    """Join the clips, let every program read the recording, count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ct2", required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="RUN")
    parser.add_argument("--keep", type=Path, help="folder for the recording and all texts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        sound = folder / "recording.wav"
        reference = " ".join(joined(args, sound))
        (folder / "reference.txt").write_text(reference)
        print(f"{soundfile.info(sound).duration / 60:.1f} minutes")
        print("| | words | wrong | substituted, deleted, inserted | CPU s |")
        print("|---|---|---|---|---|", flush=True)
        rows = []
        for name in args.only:
            before = _cpu_s()
            text = said(name, sound, args)
            cpu_s, counted = _cpu_s() - before, errors([reference], [text])
            (folder / f"{name}.txt").write_text(text)
            counts = f"{counted.substituted}, {counted.deleted}, {counted.inserted}"
            row = f"{counted.words} | {counted.rate:.2f} % | {counts} | {cpu_s:.0f}"
            print(f"| {name} | {row} |", flush=True)
            rows.append({"run": name, "cpu_s": round(cpu_s, 1), **asdict(counted)})
    print(json.dumps({"long_recordings": rows, "machine": msgspec.to_builtins(machine())}))


def joined(args: argparse.Namespace, path: Path) -> Iterator[str]:
    """Write the recording; the texts in it."""
    rng = np.random.default_rng(args.seed)
    clips = [json.loads(line) for line in args.clips.open()]
    clips = [clip for clip in clips if clip.get("lang", "en") == "en"]
    n_wanted, n_written = round(args.minutes * 60 * RATE_HZ), 0
    with soundfile.SoundFile(path, "w", RATE_HZ, 1) as file:
        while n_written < n_wanted:
            for at in rng.permutation(len(clips)):
                samples, rate = soundfile.read(
                    args.clips.parent / clips[at]["path"], always_2d=True
                )
                speech = soxr.resample(samples.mean(axis=1), rate, RATE_HZ)
                pause = rng.normal(0, 1e-4, round(rng.uniform(0.5, 1.5) * RATE_HZ))
                file.write(np.concatenate((speech, pause)))
                n_written += len(speech) + len(pause)
                yield clips[at]["text"]
                if n_written >= n_wanted:
                    return


def said(name: str, sound: Path, args: argparse.Namespace) -> str:
    """What one program writes."""
    if name.startswith("streamd"):
        command = [STREAMD, "transcribe", sound, "-m", args.model, "--threads", "1", "--quiet"]
    else:
        command = [args.peer, "-c", _FASTER_WHISPER, args.ct2, sound]
    done = subprocess.run([*command, *RUNS[name]], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


_FASTER_WHISPER = """
import sys
from faster_whisper import WhisperModel
_, folder, sound, beam = sys.argv
model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=1)
segments, _ = model.transcribe(sound, language="en", beam_size=int(beam), word_timestamps=True)
for segment in segments:
    print(segment.text.strip())
"""


def _cpu_s() -> float:
    """Of all programs that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
