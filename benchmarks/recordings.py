"""Whole recordings: words wrong, time and memory of streamd and other programs, same weights.

    python benchmarks/recordings.py CLIPS --weights FOLDER [--model FOLDER] [--minutes 30]

CLIPS is a manifest of English clips, JSON lines with `path` and `text` (and `lang` where there are
others). They are joined in a random order, again and again, with pauses of 0.5 to 1.5 s of very
quiet noise, until the recording is that long; `--noise` adds other clips on top, as loud as that
many dB below the speech. `--weights` is a folder of `peer_weights.py`, which has a model in all
forms; streamd takes `--model` instead if it is given. faster-whisper runs as it is, with its voice
detector, and with its pipeline that decodes eight windows at once; whisper.cpp runs in float16,
openai-whisper in float32, the others in int8. All are greedy; streamd and faster-whisper's first
two give word times. `--peer` is a Python that has the others, if this one has not. Each program has
a process of its own, with `--threads`; they run one after the other, and their start counts, but
not that streamd prepares the model, once for the machine. Prints a table and, last, one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from scores import errors
from streamd.system.processor import machine

RATE_HZ = 16_000
STREAMD = Path(sys.executable).with_name("streamd")
RUNS = {
    "streamd": [],
    "streamd, --vad off": ["--vad", "off"],
    "faster-whisper": ["plain"],
    "faster-whisper, vad_filter": ["vad"],
    "faster-whisper, batched": ["batched"],
    "whisper.cpp": [],
    "openai-whisper": [],
}
"""Name of a run -> the program's own arguments."""


@dataclass(frozen=True)
class Cost:
    """What a process took: CPU and elapsed seconds, and its largest resident memory."""

    cpu_s: float
    elapsed_s: float
    peak_mb: float


def main() -> None:
    """Join the clips, let every program read the recording, count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--noise", type=float, metavar="DB")
    parser.add_argument("--threads", type=int, default=2)
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
        minutes = round(soundfile.info(sound).duration / 60, 1)
        print(f"{minutes} minutes")
        print("| | words | wrong | substituted, deleted, inserted | CPU s | elapsed s | peak MB |")
        print("|---|---|---|---|---|---|---|", flush=True)
        rows = []
        if any(name.startswith("streamd") for name in args.only):
            start = folder / "start.wav"
            samples, _ = soundfile.read(sound, RATE_HZ, dtype="int16")
            soundfile.write(start, samples, RATE_HZ)
            said("streamd", start, args)  # prepares the model, once for the machine
        for name in args.only:
            text, cost = said(name, sound, args)
            counted = errors([reference], [text])
            (folder / f"{name}.txt").write_text(text)
            counts = f"{counted.substituted}, {counted.deleted}, {counted.inserted}"
            row = f"{counted.words} | {counted.rate:.2f} % | {counts}"
            times = f"{cost.cpu_s:.1f} | {cost.elapsed_s:.1f} | {cost.peak_mb:.0f}"
            print(f"| {name} | {row} | {times} |", flush=True)
            rows.append({"run": name, **asdict(cost), **asdict(counted)})
    told = {"minutes": minutes, "threads": args.threads, "recordings": rows}
    print(json.dumps(told | {"machine": msgspec.to_builtins(machine())}))


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
                if args.noise is not None:
                    speech = speech + crowd(speech, args.noise, clips, at, args.clips.parent)
                pause = rng.normal(0, 1e-4, round(rng.uniform(0.5, 1.5) * RATE_HZ))
                file.write(np.concatenate((speech, pause)))
                n_written += len(speech) + len(pause)
                yield clips[at]["text"]
                if n_written >= n_wanted:
                    return


def crowd(
    speech: NDArray[np.float64], db: float, clips: Sequence[Any], at: int, folder: Path
) -> NDArray[np.float64]:
    """Four other clips at once, together that many dB below the speech."""
    mixed = np.zeros(len(speech))
    for clip in (clips[(at + i) % len(clips)] for i in range(1, 5)):
        samples, rate = soundfile.read(folder / clip["path"], always_2d=True)
        voice = np.resize(soxr.resample(samples.mean(axis=1), rate, RATE_HZ), len(speech))
        mixed += voice / np.sqrt(np.mean(voice**2))
    level = np.sqrt(np.mean(speech**2) / np.mean(mixed**2))
    scaled: NDArray[np.float64] = mixed * level * 10 ** (-db / 20)
    return scaled


def said(name: str, sound: Path, args: argparse.Namespace) -> tuple[str, Cost]:
    """What one program writes, and what it costs."""
    threads = str(args.threads)
    if name.startswith("streamd"):
        model = args.model or args.weights / "hf"
        command = [STREAMD, "transcribe", sound, "-m", model, "-l", "en", "--quiet"]
        command += ["--precision", "int8", "--threads", threads]
    else:
        program, file = _PROGRAMS[name.partition(",")[0]]
        weights = args.weights / file.format(name=args.weights.name)
        command = [args.peer, "-c", program, weights, sound, threads]
    begun_s = time.monotonic()
    with subprocess.Popen([*command, *RUNS[name]], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}")
    peak_mb = used.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    elapsed_s = time.monotonic() - begun_s
    return text, Cost(round(used.ru_utime + used.ru_stime, 1), round(elapsed_s, 1), round(peak_mb))


_FASTER_WHISPER = """
import sys
from faster_whisper import BatchedInferencePipeline, WhisperModel
_, folder, sound, threads, how = sys.argv
model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=int(threads))
given = {"language": "en", "beam_size": 1}
if how == "batched":
    segments, _ = BatchedInferencePipeline(model).transcribe(sound, batch_size=8, **given)
else:
    given |= {"word_timestamps": True, "vad_filter": how == "vad"}
    segments, _ = model.transcribe(sound, **given)
for segment in segments:
    print(segment.text.strip())
"""
_WHISPER_CPP = """
import sys
from pywhispercpp.model import Model
_, file, sound, threads = sys.argv
model = Model(file, n_threads=int(threads), redirect_whispercpp_logs_to=None)
for segment in model.transcribe(sound, language="en", print_progress=False):
    print(segment.text.strip())
"""
_OPENAI_WHISPER = """
import sys
import soundfile, torch, whisper
_, file, sound, threads = sys.argv
torch.set_num_threads(int(threads))
samples, _ = soundfile.read(sound, dtype="float32")
model = whisper.load_model(file, device="cpu")
said = model.transcribe(samples, language="en", fp16=False)
for segment in said["segments"]:
    print(segment["text"].strip())
"""
_PROGRAMS = {
    "faster-whisper": (_FASTER_WHISPER, "ct2"),
    "whisper.cpp": (_WHISPER_CPP, "ggml-model.bin"),
    "openai-whisper": (_OPENAI_WHISPER, "{name}.pt"),
}
"""Name of a program -> what runs it, and the name of the weights that it reads, where ``{name}`` is
that of their folder."""


if __name__ == "__main__":
    main()
