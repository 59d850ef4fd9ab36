"""How many streams one engine serves: all of them hear real speech.

A step is in time if its window is transcribed within a step of its audio's end, and none was merged
into it. Streams, recognizers and engine are the daemon's. On the real clock all of it runs as it
does in a daemon, on the others the work of the event loop is not counted, and each recognizer
computes alone.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from lab.eventlog import Began, Decoded, Ended, Log
from lab.recordings import Recording
from lab.replay import replay
from streamd.session import Session
from streamd.types import FRAME_MS, WindowRecognizer


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What `streams` at once got; times in ms from a step's last audio to its words.

    `missed`: the share of steps that were late or merged into a later one. `apart_ms`: how much
    later, in the mean, the worst stream was served than the best. `busy`: the share of the time in
    which the recognizers (`workers`) worked. `window_ms` and `frames`: the median time and the mean
    length of a window. `cpu`: CPU seconds for each second of a stream, of the whole process.
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
    cpu: float


def measure_load(
    recognizers: Sequence[WindowRecognizer],
    new_session: Callable[[], Session],
    recording: Recording,
    *,
    n_streams: int,
    began: Began,
) -> Load:
    """Run so many streams as `began` says; each of `recognizers` serves one window at a time.

    Each hears the recording from another place on, and its beginning after its end.
    """
    frames, n_frames = recording.frames, began.audio_ms // FRAME_MS
    shift = len(frames) // n_streams
    heard = [
        np.resize(np.roll(frames, -n * shift, axis=0), (n_frames, frames.shape[1]))
        for n in range(n_streams)
    ]
    return summary(replay(recognizers, new_session, heard, began=began), len(recognizers))


def summary(logs: Sequence[Log], n_workers: int) -> Load:
    """What the logs of streams that ran together say."""
    began, ended = logs[0][0], logs[0][-1]
    assert isinstance(began, Began)
    assert isinstance(ended, Ended)
    windows = [_windows(log) for log in logs]
    latencies = [_latencies(each) for each in windows]
    every = np.array([ms for stream in latencies for ms in stream])
    n_missed = int((every > began.step_ms).sum())
    n_merged = sum(_merged(each, began.step_ms) for each in windows)
    whole = [entry for stream in windows for entry in stream]
    means = [float(np.mean(stream)) for stream in latencies if stream]
    duration_ms = max(entry.t_ms for entry in whole) - min(entry.begun_ms for entry in whole)
    return Load(
        streams=len(logs),
        workers=n_workers,
        steps=len(every) + n_merged,
        median_ms=round(float(np.median(every)), 1),
        p95_ms=round(float(np.percentile(every, 95)), 1),
        missed=round((n_missed + n_merged) / (len(every) + n_merged), 4),
        apart_ms=round(max(means) - min(means), 1),
        busy=round(sum(window.compute_ms for window in whole) / duration_ms / n_workers, 3),
        window_ms=round(float(np.median([window.compute_ms for window in whole])), 2),
        frames=round(float(np.mean([window.encoded_frames for window in whole])), 1),
        cpu=round(ended.cpu_ms / began.audio_ms / len(logs), 3),
    )


def _windows(log: Log) -> list[Decoded]:
    return [entry for entry in log if isinstance(entry, Decoded)]


def _latencies(windows: Sequence[Decoded]) -> list[float]:
    """Of steps: the last window of an utterance comes when its pause is long enough."""
    return [window.t_ms - window.end_ms for window in windows if not window.last]


def _merged(windows: Sequence[Decoded], step_ms: int) -> int:
    """Steps that had to share a window with a later one of the same stretch of speech.

    Between utterances, and in a pause, no step is due.
    """
    return sum(
        max(0, (now.end_ms - before.end_ms) // step_ms - 1)
        for before, now in pairwise(windows)
        if not (before.last or now.last) and now.start_ms <= before.end_ms
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
