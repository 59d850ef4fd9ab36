"""How many words are wrong: the demo model offline and streaming, clean and in noise.

    python benchmarks/accuracy.py [--data ../shared/data] [--limit 40] [NAME=VALUE...]

Offline is the whole clip in one window at full encoder context, streaming is the session as the
daemon runs it, on the same weights with the same options (such as ``beam-size=5``). Sets: the
bundled recording, and where the speech data is at hand unheard speakers' digits, strings of them
with pauses, and recorded commands. Prints a table and, last, one JSON line.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import soundfile

from streamd.config import Config, load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engine.recognizer import Recognizer
from streamd.events import Event, Final
from streamd.types import FRAME, SAMPLE_RATE, Samples, Window, text_of

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 5
"""Frames fed at a time (100 ms), as a microphone would."""


@dataclass(frozen=True)
class Clip:
    """A sound and what is said in it."""

    samples: Samples
    text: str


def words(text: str) -> str:
    """Normalise for scoring: lower case, letters only, "oh" is zero, "..." is nothing."""
    said = re.sub(r"[^a-z' ]", " ", text.lower()).split()
    return " ".join("zero" if word == "oh" else word for word in said)


def bundled() -> list[Clip]:
    """The clips of the recording that ``make demo`` plays."""
    samples, rate = soundfile.read(ROOT / "models/demo/recording.flac", dtype="float32")
    notes = json.loads((ROOT / "models/demo/recording.json").read_text())
    cut = lambda ms: ms * rate // 1000  # noqa: E731 - one use, one line
    return [
        Clip(samples[max(0, cut(c["start_ms"] - 300)) : cut(c["end_ms"] + 300)], c["text"])
        for c in notes["clips"]
    ]


def manifest(folder: Path, chosen: str) -> Iterator[tuple[Path, str]]:
    """Paths and texts of the recordings whose path matches."""
    for line in (folder / "manifest.jsonl").open():
        row = json.loads(line)
        if re.match(chosen, row["path"]):
            yield folder / row["path"], row["text"]


def read(path: Path) -> Samples:
    """A 16 kHz recording, at most at half of full scale, without its own silence."""
    samples, _ = soundfile.read(path, dtype="float32")
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    samples = samples[max(0, loud[0] - 800) : loud[-1] + 1600]
    return (samples * (0.5 / np.abs(samples).max())).astype(np.float32)


def strings(path_texts: list[tuple[Path, str]], n: int, longest: int) -> list[Clip]:
    """Digits of one speaker joined with pauses of 0.1 to 0.9 s; `longest` 1: single digits."""
    draw = np.random.default_rng(5)
    out = []
    for _ in range(n):
        n_digits = draw.integers(max(1, longest // 2), longest + 1)
        parts, text = [still(draw, 0.5)], []
        for path, word in (path_texts[draw.integers(len(path_texts))] for _ in range(n_digits)):
            parts += [read(path), still(draw, draw.uniform(0.1, 0.9))]
            text.append(word)
        out.append(Clip(np.concatenate([*parts, still(draw, 0.3)]), " ".join(text)))
    return out


def still(draw: np.random.Generator, seconds: float) -> Samples:
    """A quiet room."""
    return (draw.standard_normal(int(seconds * SAMPLE_RATE)) * 3e-4).astype(np.float32)


def noisy(clips: list[Clip], snr_db: float) -> list[Clip]:
    """Pink noise, relative to the level of the active speech."""
    draw, out = np.random.default_rng(9), []
    for clip in clips:
        x = clip.samples
        spectrum = np.fft.rfft(draw.standard_normal(len(x)))
        noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 20)), len(x))
        active = x[np.abs(x) > 0.02 * np.abs(x).max()]
        level = np.sqrt(np.mean(active**2)) * 10 ** (-snr_db / 20)
        out.append(Clip((x + noise / noise.std() * level).astype(np.float32), clip.text))
    return out


def sets(data: Path, limit: int) -> dict[str, list[Clip]]:
    """All test sets at hand, by name."""
    found = {"bundled recording": bundled()}
    if not data.is_dir():
        return found
    found["demo recordings"] = [Clip(read(p), t) for p, t in manifest(data / "demo", ".")][:limit]
    for speaker, pattern in (
        ("lucas", r"fsdd/\d_lucas_"),
        ("evmaki", r"moonshine_alnum/(?!._)\w+_evmaki_"),
    ):
        digits = list(manifest(data / "train", pattern))
        found[f"{speaker}, single digits"] = strings(digits, limit, 1)
        found[f"{speaker}, strings of 4-8"] = strings(digits, limit, 8)
    return found


def offline(recognizer: Recognizer, clip: Clip) -> str:
    """The clip in one window."""
    n = -(-len(clip.samples) // FRAME)
    samples = np.pad(clip.samples, (0, n * FRAME - len(clip.samples)))
    return text_of(recognizer.recognize(Window(0, n, samples, last=True)).words)


def streaming(config: Config, recognizer: Recognizer, clip: Clip) -> str:
    """The clip as the daemon hears it, on an engine that is always in time."""
    session, said = build.session_factory(config)(), []
    n = -(-len(clip.samples) // FRAME)
    frames = np.pad(clip.samples, (0, n * FRAME - len(clip.samples))).reshape(-1, FRAME)

    def take(events: Iterable[Event]) -> None:
        said.extend(event.text for event in events if isinstance(event, Final))

    def drain() -> None:
        while (window := session.next_window()) is not None:
            take(session.accept(window, recognizer.recognize(window)))

    for at in range(0, n, BLOCK):
        take(session.feed(frames[at : at + BLOCK]))
        drain()
    take(session.flush())
    drain()
    return " ".join(said)


def error_rate(clips: list[Clip], texts: list[str]) -> float:
    """Word error rate over all clips, in percent."""
    return 100 * jiwer.wer([words(c.text) for c in clips], [words(t) for t in texts])


def main() -> None:
    """Score all sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--limit", type=int, default=40, help="clips per set")
    parser.add_argument("--set", default="", help="only sets whose name contains this")
    parser.add_argument("--show", action="store_true", help="print each differing text")
    parser.add_argument("option", nargs="*", metavar="NAME=VALUE", help="streamd's options")
    args = parser.parse_args()
    given = {"model": "demo"} | dict(option.split("=", 1) for option in args.option)
    config = load({"model": "demo"} | given, {})
    model, engine = open_model(config)
    live = build.recognizer(config, model, engine)
    at_full_context = load({"model": "demo", **given, "audio-ctx": "1500"}, {})
    whole = build.recognizer(at_full_context, model, engine)
    print(f"{'word error rate, %':34} {'words':>6} {'offline':>8} {'streaming':>9} {'delta':>7}")
    rows = []
    for name, clean in sets(args.data, args.limit).items():
        for condition, clips in (("clean", clean), ("10 dB", noisy(clean, 10.0))):
            if args.set not in f"{name}, {condition}":
                continue
            texts = [offline(whole, c) for c in clips], [streaming(config, live, c) for c in clips]
            off, on = (error_rate(clips, t) for t in texts)
            n = sum(len(words(c.text).split()) for c in clips)
            print(f"{name + ', ' + condition:34} {n:6} {off:8.1f} {on:9.1f} {on - off:+7.1f}")
            row = {"set": name, "condition": condition, "words": n}
            rows.append(row | {"offline": round(off, 2), "streaming": round(on, 2)})
            for clip, a, b in zip(clips, *texts, strict=True):
                if args.show and words(a) != words(b):
                    print(f"  said {words(clip.text)}\n  off  {words(a)}\n  on   {words(b)}")
            sys.stdout.flush()
    n = sum(row["words"] for row in rows)
    off, on = (sum(row["words"] * row[key] for row in rows) / n for key in ("offline", "streaming"))
    print(f"{'all':34} {n:6} {off:8.1f} {on:9.1f} {on - off:+7.1f}")
    print(json.dumps({"wer": rows, "model": config.decoding.model, "options": given}))


if __name__ == "__main__":
    main()
