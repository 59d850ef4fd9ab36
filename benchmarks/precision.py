"""What int8 changes: a model's text in both precisions, clip by clip.

    python benchmarks/precision.py [-m tiny.en] [--data ../shared/data/eval] [--page PAGE.md]

Each recorded clip, clean and in pink noise of 10 dB below the speech, in one window at the full
encoder context; where there are no such clips, those of the recording of ``make demo``. Prints
every clip whose tokens differ and the word error rates; writes all of it down as a page; and
prints, last, one JSON line.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sounds import DATA, RECORDING, clips
from tables import table

from streamd.bench.recordings import Clip, Recording, offline, read_recording
from streamd.bench.words import n_edits, spoken
from streamd.config import load
from streamd.daemon import build
from streamd.engine.recognizer import Recognizer
from streamd.engine.store import load_model
from streamd.types import FRAME, N_AUDIO_CTX, Frames, text_of

PRECISIONS = ("float32", "int8")
SNR_DB = 10


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A clip: what was said, what was read (by precision), and how many words of that are wrong."""

    condition: str
    said: str
    heard: tuple[str, ...]
    wrong: tuple[int, ...]
    differs: bool


def recordings(data: Path) -> list[Recording]:
    """The sounds to read; clips that are longer than a window are left out."""
    if not data.is_dir():
        return [read_recording(RECORDING)]
    found = []
    for sound in clips(data):
        recording = read_recording(sound.path)
        if len(recording.frames) <= N_AUDIO_CTX:
            clip = Clip(start_ms=0, end_ms=recording.audio_ms, text=sound.reference)
            found.append(replace(recording, clips=(clip,)))
    return found


def noisy(frames: Frames) -> Frames:
    """Pink noise, relative to the level of the active speech."""
    x = frames.ravel()
    spectrum = np.fft.rfft(np.random.default_rng(9).standard_normal(len(x)))
    noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 20)), len(x))
    active = x[np.abs(x) > 0.02 * np.abs(x).max()]
    level = np.sqrt(np.mean(active**2)) * 10 ** (-SNR_DB / 20)
    return (x + noise / noise.std() * level).astype(np.float32).reshape(-1, FRAME)


def compare(name: str, data: Path) -> Iterator[Row]:
    """Read every clip in both precisions."""
    model = load_model(name)
    whole = []
    for precision in PRECISIONS:
        given = {"model": name, "language": "en", "precision": precision, "threads": "1"}
        config = load({**given, "audio-ctx": str(model.dims.n_audio_ctx)}, {})
        whole.append(build.recognizer(config, model))
    for clean in recordings(data):
        for condition in ("clean", f"{SNR_DB} dB"):
            noise = condition != "clean"
            frames = noisy(clean.frames) if noise else clean.frames
            yield from _rows(condition, replace(clean, frames=frames), whole)


def _rows(condition: str, sound: Recording, whole: Sequence[Recognizer[Any]]) -> Iterator[Row]:
    heard = zip(*(offline(recognizer, sound) for recognizer in whole), strict=True)
    for clip, both in zip(sound.clips, heard, strict=True):
        texts = [spoken(text_of(each.words)) for each in both]
        said = spoken(clip.text)
        yield Row(
            condition=condition,
            said=" ".join(said),
            heard=tuple(" ".join(text) for text in texts),
            wrong=tuple(n_edits(said, text) for text in texts),
            differs=len({each.tokens for each in both}) > 1,
        )


def scores(rows: Sequence[Row]) -> dict[str, object]:
    """Clips and words of these rows, how many clips differ, and the word error rates."""
    n_words = sum(len(row.said.split()) for row in rows)
    rates = [100 * sum(row.wrong[i] for row in rows) / n_words for i in range(len(PRECISIONS))]
    return {
        "clips": len(rows),
        "words": n_words,
        "differ": sum(row.differs for row in rows),
        **{precision: round(rate, 2) for precision, rate in zip(PRECISIONS, rates, strict=True)},
    }


def page(name: str, rows: Sequence[Row]) -> str:
    """The whole comparison, for people."""
    by_condition: dict[str, list[Row]] = {}
    for row in rows:
        by_condition.setdefault(row.condition, []).append(row)
    totals = [(condition, scores(its)) for condition, its in by_condition.items()]
    totals.append(("**all**", scores(rows)))
    differing = [row for row in rows if row.differs]
    better, worse = (
        sum(sign * (row.wrong[1] - row.wrong[0]) > 0 for row in differing) for sign in (-1, 1)
    )
    lines = [
        (row.condition, row.said, *row.heard, " → ".join(map(str, row.wrong))) for row in differing
    ]
    return f"""# What int8 changes
Made by `benchmarks/precision.py`; not to be edited. {name} reads recorded clips in both precisions, each in one window at the full encoder context.

Word error rates in percent; *differ*: clips whose tokens are not the same.

{table(["", *totals[0][1]], [(what, *score.values()) for what, score in totals])}

## Every clip that differs
{len(differing)} of {len(rows)}: {better} have fewer wrong words in int8, {worse} have more, the others as many. *Wrong*: words, in float32 and in int8.

{table(["", "said", *PRECISIONS, "wrong"], lines)}
"""  # noqa: E501 - paragraphs of Markdown


def main() -> None:
    """Compare all clips."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of recorded speech")
    parser.add_argument("--page", type=Path, help="a page of documentation to write")
    args = parser.parse_args()
    rows = []
    for row in compare(args.model, args.data):
        rows.append(row)
        if row.differs:
            print(f"{row.condition}\n  {'said':8} {row.said}")
            for precision, text in zip(PRECISIONS, row.heard, strict=True):
                print(f"  {precision:8} {text}", flush=True)
    if args.page:
        args.page.write_text(page(Path(args.model).name, rows), encoding="utf-8")
    print(json.dumps(scores(rows)))


if __name__ == "__main__":
    main()
