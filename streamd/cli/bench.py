"""``streamd bench``: what a step costs here, and how soon the words of a recording are there."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from streamd.bench.machine import machine
from streamd.bench.metrics import measure
from streamd.bench.recordings import Clip, Recording, of_clips, read_recording
from streamd.bench.replay import Clock
from streamd.bench.step import StepBench, bench_step, step_table
from streamd.bench.streaming import Bench, as_table
from streamd.config import Config
from streamd.engine.check import clips
from streamd.types import FRAME, ms_from_frames

log = logging.getLogger(__name__)

_PAUSE = 75
"""Frames of silence around each of the bundled clips: 1.5 s."""


Row = dict[str, Any]


def report(
    config: Config, *, clock: Clock = "real", n_steps: int = 20
) -> Iterator[tuple[str, StepBench | Row]]:
    """Measure the configured model: its steps, then each recording; as a table and as figures.

    The recordings are the configured files, or the clips that ship with streamd.

    Raises
    ------
    ModelError : the model cannot be loaded
    SourceError : a file cannot be read
    """
    log.info("measuring steps")
    steps = bench_step(config, n_steps=n_steps)
    yield step_table(steps), steps
    files = config.input.files
    recordings = [read_recording(Path(name)) for name in files] or [bundled()]
    bench = Bench(config)
    for recording in recordings:
        seconds = recording.audio_ms / 1000
        log.info("playing %s, %.0f s", recording.name, seconds)
        timed, wer_offline = bench.timed(recording)
        metrics = measure(bench.stream(recording, clock), timed.words, recording.text)
        table = f"{recording.name}\n{as_table(metrics, wer_offline=wer_offline)}"
        row = {"file": recording.name, "wer_offline": wer_offline}
        yield table, row | msgspec.to_builtins(metrics)


def as_json(parts: Iterable[tuple[str, StepBench | Row]]) -> str:
    """The figures of a report as one line, with the machine that they are from."""
    steps, *rows = (figures for _, figures in parts)
    told = {"machine": machine(), "step": steps, "streaming": rows}
    return msgspec.json.encode(told).decode()


def bundled() -> Recording:
    """The clips that ship with streamd, one after the other. Raises `StreamdError`."""
    silence = np.zeros((_PAUSE, FRAME), np.float32)
    parts, places, at = [silence], [], _PAUSE
    for clip in clips():
        n = len(clip.samples) // FRAME
        parts += [clip.samples[: n * FRAME].reshape(n, FRAME), silence]
        begin_ms, end_ms = ms_from_frames(at), ms_from_frames(at + n)
        places.append(Clip(start_ms=begin_ms, end_ms=end_ms, text=clip.text))
        at += n + _PAUSE
    return of_clips("bundled clips", np.concatenate(parts), places)
