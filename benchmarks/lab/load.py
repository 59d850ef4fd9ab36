"""How many streams one engine serves: all of them speak without a pause.

A partial is in time if it is there within a step of its audio's end and no step was merged into it;
then a stream that speaks for ever stays live. Streams, recognizers and engine are the daemon's; the
words are a script's. On the real clock all of it runs as it does in a daemon, on the others the
work of the event loop is not counted, and each recognizer computes alone.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np

from lab.eventlog import Began, Decoded, Log, Said
from lab.replay import Clock, replay
from streamd.bench.step import Costs, ScriptedRecognizer, noise
from streamd.config import load
from streamd.daemon import build
from streamd.events import Partial
from streamd.types import FRAME, SAMPLE_RATE


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What `streams` at once got; times in ms from a partial's last audio to the partial.

    `missed`: the share of steps without a partial in time. `apart_ms`: how much later, in the mean,
    the worst stream was served than the best. `busy`: the share of the time in which the
    recognizers (`workers`) worked. Of a window in the mean: its frames (`frames`), the time
    in the encoder and in the decoder (real time on every clock), and the decoder's passes.
    """

    streams: int
    workers: int
    steps: int
    median_ms: float
    p95_ms: float
    missed: float
    apart_ms: float
    busy: float
    window_ms: float
    frames: float
    encode_ms: float
    decode_ms: float
    passes: float


def measure_load(
    recognizers: Sequence[ScriptedRecognizer],
    *,
    n_streams: int,
    seconds: int = 20,
    step_ms: int = 500,
    clock: Clock = "real",
) -> Load:
    """Run so many streams for so long; each of `recognizers` serves one window at a time."""
    config = load({"vad": "off", "step": str(step_ms)}, {})
    frames = noise(seconds * SAMPLE_RATE // FRAME).reshape(-1, FRAME)
    began = Began(
        name="noise", model="scripted", clock=clock, step_ms=step_ms, audio_ms=seconds * 1000
    )
    new_session = partial(build.new_session, config)
    costs = [recognizer.engine.reset() for recognizer in recognizers]
    logs = replay(recognizers, new_session, [frames] * n_streams, began=began)
    return summary(logs, step_ms, costs)


def summary(logs: Sequence[Log], step_ms: int, costs: Sequence[Costs]) -> Load:
    """What the logs of streams that ran together say; `costs`: of each recognizer, in all."""
    latencies = [_latencies(log) for log in logs]
    every = np.array([ms for stream in latencies for ms in stream])
    n_missed = sum(_missed(log, step_ms) for log in logs)
    n_merged = sum(_merged(log, step_ms) for log in logs)
    windows = [entry for log in logs for entry in log if isinstance(entry, Decoded)]
    means = [float(np.mean(stream)) for stream in latencies if stream]
    duration_ms = max(entry.t_ms for entry in windows) - min(entry.begun_ms for entry in windows)
    return Load(
        streams=len(logs),
        workers=len(costs),
        steps=len(every) + n_merged,
        median_ms=round(float(np.median(every)), 1),
        p95_ms=round(float(np.percentile(every, 95)), 1),
        missed=round((n_missed + n_merged) / (len(every) + n_merged), 4),
        apart_ms=round(max(means) - min(means), 1),
        busy=round(sum(window.compute_ms for window in windows) / duration_ms / len(costs), 3),
        window_ms=round(float(np.median([window.compute_ms for window in windows])), 2),
        frames=round(float(np.mean([window.encoded_frames for window in windows])), 1),
        encode_ms=round(sum(each.encode_s for each in costs) * 1000 / len(windows), 2),
        decode_ms=round(sum(each.decode_s for each in costs) * 1000 / len(windows), 2),
        passes=round(sum(each.passes for each in costs) / len(windows), 1),
    )


def _partials(log: Log) -> list[tuple[float, Partial]]:
    return [
        (entry.t_ms, entry.event)
        for entry in log
        if isinstance(entry, Said) and isinstance(entry.event, Partial)
    ]


def _latencies(log: Log) -> list[float]:
    return [t_ms - partial.end_ms for t_ms, partial in _partials(log)]


def _missed(log: Log, step_ms: int) -> int:
    return sum(ms > step_ms for ms in _latencies(log))


def _merged(log: Log, step_ms: int) -> int:
    """Steps that had to share a window with a later one."""
    partials = [partial for _, partial in _partials(log)]
    return sum(
        max(0, (now.end_ms - before.end_ms) // step_ms - 1)
        for before, now in pairwise(partials)
        if now.seg == before.seg
    )


def plot(rows: Sequence[Load], step_ms: int = 500) -> str:
    """Median and 95th percentile of the latency against the number of streams, as SVG."""
    width, height, left, bottom = 640, 360, 60, 50
    most = max(row.streams for row in rows)
    top_ms = 1.1 * max(step_ms, *(row.p95_ms for row in rows))

    def at(n: float, ms: float) -> tuple[float, float]:
        x = left + n / most * (width - left - 20)
        return round(x, 1), round(height - bottom - ms / top_ms * (height - bottom - 20), 1)

    def text(x: float, y: float, said: str, anchor: str = "middle") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{said}</text>'

    (x0, y0), (x1, y_step) = at(0, 0), at(most, step_ms)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>',
        f'<path d="M{x0} 20V{y0}H{x1}" fill="none" stroke="black"/>',
        f'<path d="M{x0} {y_step}H{x1}" stroke="gray" stroke-dasharray="4"/>',
        text(x1, y_step - 6, f"a step, {step_ms} ms", "end"),
        text((x0 + x1) / 2, height - 10, "streams that speak at once"),
    ]
    parts += [text(at(row.streams, 0)[0], y0 + 18, str(row.streams)) for row in rows]
    marks = range(0, int(top_ms), 100 if top_ms < 1_500 else 500)
    parts += [text(x0 - 6, at(0, ms)[1] + 4, str(ms), "end") for ms in marks]
    for colour, name, y_name, latencies in (
        ("#1f77b4", "median, ms", 48, [row.median_ms for row in rows]),
        ("#d62728", "95th percentile, ms", 30, [row.p95_ms for row in rows]),
    ):
        points = [at(row.streams, ms) for row, ms in zip(rows, latencies, strict=True)]
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<g fill="{colour}">{text(x0 + 12, y_name, name, "start")}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"
