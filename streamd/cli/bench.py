"""Measures models: what a live stream costs, and the words that are wrong.

The stream is the bundled recording, with everything that a live session does: voice detection,
windows, kept states, drafts, finals. It is played on a clock on which computing takes no time, so
each window is transcribed as soon as it is due, and none is merged with the next one, however slow
the model is. Experiments with streams, latencies and load are programs in ``benchmarks/``.
"""

import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby
from typing import Generic

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.families import OpenFamily, open_model_file
from streamd.daemon.opening import (
    MOST_BUSY,
    OpenModel,
    OpenWhisper,
    family_file,
    live_cost,
    n_streams,
    open_model,
)
from streamd.daemon.phrases import with_vocabulary
from streamd.engines.precision import LIVE_WINDOW, LiveCost, window_timer
from streamd.engines.prepared import bundled_speech
from streamd.engines.supervised.remote import RemoteEngine
from streamd.errors import ConfigError
from streamd.models.catalog import dimensions
from streamd.options import DEFAULT_STEP
from streamd.streams.auto_step import STEPS_MS
from streamd.system.processor import fast_cores, machine
from streamd.types import FRAME, Mel, WindowRecognizer, frames_from_ms, ms_from_frames
from streamd.whisper.engine import AnyEngine, Decoder, Engine, FeaturesT, Reuse, on_one_of

_BLOCK = 5
"""Frames that are fed at once: 100 ms, as of a file that is played in real time."""
_PATIENCE_S = 30.0


class StreamCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a live stream of `speech_s` seconds costs.

    Of its `n_windows` windows: the median, least and 95th percentile of the time, and the medians
    of the CPU time of all threads, of the time in the encoder, and of the time for the rest, which
    is mostly the decoder's. Of all that a session does, per second of the stream: the seconds
    (`rtf`, the real-time factor) and the CPU seconds, without those of another process that has the
    model. `n_streams` is how many streams ``streamd serve`` keeps up with.
    """

    model: str
    speech_s: float
    n_windows: int
    median_ms: float
    best_ms: float
    p95_ms: float
    cpu_ms: float
    encode_ms: float
    decode_ms: float
    rtf: float
    cpu_s: float
    n_streams: int


def report(config: Config) -> Iterator[str]:
    """Yield what the configured model costs: a table on a terminal, else JSON."""
    config = with_vocabulary(config)
    form = cost_table if sys.stdout.isatty() else cost_json
    opened: OpenModel
    if path := family_file(config):
        opened, gpu = open_model_file(config, path), None
    else:
        opened = OpenWhisper(config, *open_model(config, wait=True))
        gpu = opened.engine
    cost = measure(config, opened)
    yield form(cost, estimates(config), gpu_cost(gpu) if gpu else None)
    opened.close()


def measure(config: Config, opened: OpenModel, *, within_s: float = _PATIENCE_S) -> StreamCost:
    """Play the bundled recording to a live session, and time its windows.

    The recording is cut off once `within_s` seconds have passed, but not before its first window.
    Of another family than Whisper, all of the time is the decoder's. Raises `ConfigError` for
    options that contradict each other or the model, or find no speech.
    """
    recognizer, clocks, on_cpu = _clocked(config, opened)
    session, speech = build.new_session(config), bundled_speech()
    frames = speech[: len(speech) // FRAME * FRAME].reshape(-1, FRAME)
    rows: list[NDArray[np.float64]] = []
    begun, is_over = clocks(), False
    while not is_over:
        session.feed(frames[session.now :][:_BLOCK])
        is_late = bool(rows) and (clocks() - begun)[0] > within_s * 1000
        is_over = is_late or session.now == len(frames)
        if is_over:
            session.flush()
        while (window := session.next_window()) is not None:
            before = clocks()
            hypothesis = recognizer.recognize(window)
            rows.append(clocks() - before)
            session.accept(window, hypothesis)
    all_ms = clocks() - begun
    if not rows:
        raise ConfigError("these options find no speech in the bundled recording: change --vad")
    took, cpu, encode = np.array(rows).T
    rtf, cpu_s = (all_ms[:2] / ms_from_frames(session.now)).tolist()
    return StreamCost(
        model=opened.name,
        speech_s=ms_from_frames(session.now) / 1000,
        n_windows=len(rows),
        median_ms=_rounded(np.median(took)),
        best_ms=_rounded(took.min()),
        p95_ms=_rounded(np.percentile(took, 95)),
        cpu_ms=_rounded(np.median(cpu)),
        encode_ms=_rounded(np.median(encode)),
        decode_ms=_rounded(np.median(took - encode)),
        rtf=round(rtf, 4),
        cpu_s=round(cpu_s, 4),
        n_streams=n_streams(config, rtf=rtf, cpu_s=cpu_s, on_cpu=on_cpu),
    )


def _clocked(
    config: Config, opened: OpenModel
) -> tuple[WindowRecognizer, Callable[[], NDArray[np.float64]], bool]:
    """Return a recognizer, what tells its times, and whether the CPU runs it."""
    if isinstance(opened, OpenFamily):
        family = opened.family

        def clocks() -> NDArray[np.float64]:
            return np.array([time.perf_counter(), time.process_time() + family.cpu_s(), 0]) * 1000

        return opened.recognizers()[0][0], clocks, family.abilities.device == "CPU"
    serving = on_one_of(opened.engine, lambda used: used)
    timed = _TimedEngine(serving)
    recognizers, _ = OpenWhisper(config, opened.model, timed).recognizers()
    return recognizers[0], timed.clocks, not isinstance(serving, RemoteEngine)


class SizeEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a live stream takes with models of one size and so many threads for each window.

    `busy_s` and `cpu_s` are per second of the stream, with the chosen step, `step_ms` is the
    shortest step that keeps up, None if none does. All follow from one layer of random weights; it
    `is_measured` with so many threads, or with fewer.
    """

    size: str
    threads: int
    busy_s: float
    cpu_s: float
    is_measured: bool
    step_ms: int | None


_SIZES = ("tiny", "base", "small", "medium", "large-v3-turbo", "large-v3")


def estimates(config: Config) -> list[SizeEstimate]:
    """Estimate what the sizes of Whisper take with 2, 4, the usual and all threads."""
    counts = sorted({2, 4, build.threads(config), fast_cores()} - {1})
    return [_estimate(config, size, threads) for size in _SIZES for threads in counts]


def _estimate(config: Config, size: str, threads: int) -> SizeEstimate:
    dims = dimensions(size)

    def cost(step: int | None) -> LiveCost:
        o, s = config.decoding, config.session
        with_step = replace(s, step=step, length=max(s.length, step or 0))
        with_threads = replace(o, threads=threads)
        return live_cost(replace(config, decoding=with_threads, session=with_step), dims)

    asked = cost(DEFAULT_STEP if config.session.step is None else config.session.step)
    fit = (ms for ms in STEPS_MS if cost(frames_from_ms(ms)).busy_s <= MOST_BUSY)
    return SizeEstimate(
        size=size,
        threads=threads,
        busy_s=round(asked.busy_s, 3),
        cpu_s=round(asked.cpu_s, 3),
        is_measured=asked.is_measured,
        step_ms=next(fit, None),
    )


class GpuCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes of a GPU: memory in use and cached, and the time of usual windows.

    `graph_ms` is spent on building the graphs of a window, in which the GPU waits, and
    `after_pause_ms` is a window's time after `_PAUSE_S` of silence, in which the system may have
    given the GPU's memory to others.
    """

    device: str
    active_mb: float
    cached_mb: float
    window_ms: float
    graph_ms: float
    after_pause_ms: float


_PAUSE_S = 10.0
_N_WINDOWS = 10


def gpu_cost(engine: AnyEngine, pause: Callable[[float], object] = time.sleep) -> GpuCost | None:
    """Measure the GPU that runs the model; None if the CPU does."""
    gpu = on_one_of(engine, lambda used: used)
    if not isinstance(gpu, RemoteEngine):
        return None
    window_ms = window_timer(gpu, LIVE_WINDOW)
    before = gpu.figures()
    times = [window_ms() for _ in range(_N_WINDOWS)]
    figures = gpu.figures()
    graphs_s = float(figures["graph_s"]) - float(before["graph_s"])
    pause(_PAUSE_S)
    return GpuCost(
        device=f"{figures['device']}, {figures['library']}",
        active_mb=_rounded(np.float64(figures["active"]) / 1e6),
        cached_mb=_rounded(np.float64(figures["cached"]) / 1e6),
        window_ms=_rounded(np.median(times)),
        graph_ms=_rounded(np.float64(graphs_s / _N_WINDOWS * 1000)),
        after_pause_ms=_rounded(np.float64(window_ms())),
    )


class _TimedEngine(Generic[FeaturesT]):
    """An engine that adds up the seconds in its encoder."""

    def __init__(self, engine: Engine[FeaturesT]) -> None:
        self.dims, self.n_cheap = engine.dims, engine.n_cheap
        self._engine, self._encode_s = engine, 0.0

    def clocks(self) -> NDArray[np.float64]:
        """Return milliseconds: the time, the CPU time of all threads, the time in the encoder."""
        return np.array([time.perf_counter(), time.process_time(), self._encode_s]) * 1000

    def encode(
        self, mel: Mel, reuse: Reuse[FeaturesT] | None = None, *, audio_ctx: int = 0
    ) -> FeaturesT:
        begun_s = time.perf_counter()
        features = self._engine.encode(mel, reuse, audio_ctx=audio_ctx)
        self._encode_s += time.perf_counter() - begun_s
        return features

    def decoder(self, features: FeaturesT, n_slots: int) -> Decoder:
        return self._engine.decoder(features, n_slots)


def cost_table(cost: StreamCost, sizes: Sequence[SizeEstimate], gpu: GpuCost | None = None) -> str:
    """Return the figures as a table for a terminal."""
    head = f"{cost.model}: {cost.n_windows} windows of {cost.speech_s:.0f} s of speech"
    rows = {
        "a window, ms": f"median {cost.median_ms:.1f}, best {cost.best_ms:.1f}, "
        f"95th percentile {cost.p95_ms:.1f}",
        "of it": f"encoder {cost.encode_ms:.1f}, decoder {cost.decode_ms:.1f}; "
        f"CPU time {cost.cpu_ms:.1f}",
        "a live stream": f"{cost.cpu_s:.3f} CPU seconds per second",
        "real-time factor": f"{cost.rtf:.3f}; above 1 captions fall behind",
        "live streams": f"serve keeps up with {cost.n_streams}",
    }
    if gpu is not None:
        rows["GPU"] = f"{gpu.device}; {gpu.active_mb:.0f} MB, {gpu.cached_mb:.0f} MB cached"
        rows["a usual window"] = (
            f"{gpu.window_ms:.1f} ms, of it {gpu.graph_ms:.1f} for graphs; "
            f"{gpu.after_pause_ms:.1f} after {_PAUSE_S:.0f} s of silence"
        )
    lines = (f"{name:18}{figures}" for name, figures in rows.items())
    return "\n".join([head, *lines, *_size_lines(sizes)])


def _size_lines(sizes: Sequence[SizeEstimate]) -> Iterator[str]:
    """Yield a table: a line for each size, a column for each number of threads."""
    if not sizes:
        return
    counts = sorted({each.threads for each in sizes})
    yield "seconds of computing per second, and the shortest step that keeps up, by a layer of each"
    yield f"{'':18}" + "".join(f"{f'{n} threads':20}" for n in counts).rstrip()
    for size, of_size in groupby(sizes, key=lambda each: each.size):
        yield f"{size:18}" + "".join(f"{_size_cell(each):20}" for each in of_size).rstrip()
    if not all(each.is_measured for each in sizes):
        yield "*: estimated from two threads; this machine has fewer cores"


def _size_cell(each: SizeEstimate) -> str:
    step = f"{each.step_ms} ms" if each.step_ms else "none"
    return f"{each.busy_s:.2f}{'' if each.is_measured else '*'}, {step}"


def cost_json(cost: StreamCost, sizes: Sequence[SizeEstimate], gpu: GpuCost | None = None) -> str:
    """Return the figures and the machine as one line of JSON."""
    figures = {"machine": machine(), "stream": cost, "sizes": sizes, "gpu": gpu}
    return msgspec.json.encode(figures).decode()


def _rounded(value: np.floating) -> float:
    return round(float(value), 2)


# -- the words ------------------------------------------------------------------------------------

_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff])")
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which put no spaces between words."""


def spoken(text: str) -> list[str]:
    """Return the words of a text as they are compared, whatever their spelling.

    Whisper's English normaliser removes case, punctuation and fillers, and unifies contractions,
    numbers and British spelling. It does not group digits ("10001 90210" and "1000190210" sound the
    same), so each digit of a number counts as a word. In scripts without spaces each letter does.
    Source: openai/whisper ``normalizers``.
    """
    return list(_spoken(text))


@lru_cache(maxsize=10_000)  # latencies look at each word of each partial
def _spoken(text: str) -> tuple[str, ...]:
    english, basic = normalizers()
    normal = basic(_UNSPACED.sub(r" \1 ", text)) if _UNSPACED.search(text) else english(text)
    words: list[str] = []
    for word in normal.split():
        if word.isdecimal():
            words += word
        elif word == "one":  # the normaliser's spelling of a 1 that stands alone
            words.append("1")
        elif any(map(str.isalnum, word)):
            words.append(word)
    return tuple(words)


@cache
def normalizers() -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return Whisper's text normalisers: for English, and for all other languages."""
    # Imported here because it takes a tenth of a second. Python warns of invalid escapes in the
    # package's strings whenever it compiles them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    return EnglishTextNormalizer(), BasicTextNormalizer()


def n_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Count substituted, deleted and inserted words."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference):
        diagonal, row[0] = row[0], i + 1
        for j, other in enumerate(hypothesis):
            cost = min(diagonal + (word != other), row[j] + 1, row[j + 1] + 1)
            diagonal, row[j + 1] = row[j + 1], cost
    return row[-1]
