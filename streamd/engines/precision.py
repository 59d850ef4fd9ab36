"""Chooses the precision of a model by measuring, and estimates what live captions with it cost.

int8 is two to three times as fast as float32 if the processor has instructions for it, and may be
slower if not. One layer of each kind, with random weights of the model's width, shows it in a
fraction of a second, by the time of a window of a live stream; the result is kept in the cache
folder. The same measurement, for as many layers as a model has, tells whether it would keep up.
"""

import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import msgspec
import numpy as np
import onnxruntime

from streamd.engines import Precision
from streamd.engines.memory import fits
from streamd.engines.onnx import build
from streamd.models import ModelDimensions
from streamd.models.model import Model, parameter_shapes
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.text_tokens import TextTokens
from streamd.system.disk import cache_folder, put_file
from streamd.system.processor import instruction_sets, processor_name
from streamd.whisper.decode import RIGHT_CONTEXT
from streamd.whisper.engine import Engine, FeaturesT, Reuse, run_in_order

log = logging.getLogger(__name__)

Choice = Literal["auto", "float32", "int8"]


@dataclass(frozen=True, slots=True)
class WindowShape:
    """What a window of a live stream takes, after one that began at the same frame.

    It has `n_frames`, of which the encoder computes the last `n_new`. The decoder has `n_given`
    tokens from the window before; it runs `n_first` tokens, the last of them a draft, then a pass
    for each of `passes`, which is the number of its tokens.
    """

    n_frames: int
    n_new: int
    n_given: int
    n_first: int
    passes: tuple[int, ...]


LIVE_WINDOW = WindowShape(n_frames=540, n_new=102, n_given=20, n_first=12, passes=(2, 2))
"""About the median of the bundled recording, with `tiny.en` and with `base`."""

_GAIN = 0.9
"""Int8 must take less than this share of float32's CPU time to be worth its rounding errors."""
_LEAST_STATE = 384
"""The width of `tiny`; narrower models are fast enough in float32."""
_N_TIMES = 15
"""In ten runs each on a busy machine, the least CPU time of 5 windows of `base` was up to 45 %
above the least of all, that of 15 up to 15 %."""
_N_CLEAR = 12
"""Float32, which needs 100 MB more, is chosen if int8 is not worth it in so many of them. Beside
seven other programs, where int8 takes 0.8 of the CPU time, it was so in up to 8."""
_WHOLE = 1.5
"""What a live stream takes of the CPU, for what its windows of this shape take on one layer each:
some are longer, and there are the spectrogram, the vocabulary, the search and the voice detector.
``streamd bench`` gives 1.45 for `tiny.en` and 1.58 for `base`."""
_USUAL_MS, _BY_STEP = 500, 0.53
"""The step for which that holds, and the share of the cost that a step of twice the length halves.
The rest are finals, and what each window computes of the new sound: 250 ms take 1.55 times as much,
1000 ms 0.75 (benchmarks/RESULTS.md, "Commit rules, steps, lengths and beams")."""


class ChosenPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """The precision to use, and the measured times, or None if nothing was measured.

    `float32_ms` and `int8_ms` are elapsed. `cpu_ms` is the CPU time of all threads for a window, on
    one layer each, in the chosen precision.
    """

    precision: Precision
    float32_ms: float | None = None
    int8_ms: float | None = None
    cpu_ms: float | None = None

    @property
    def window_ms(self) -> float:
        """The elapsed time of a window in the chosen precision; 0 if nothing was measured."""
        return (self.int8_ms if self.precision == "int8" else self.float32_ms) or 0.0


class LiveCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a second of a live stream takes of the threads that compute each window.

    `busy_s` is how long they compute, all at once, `cpu_s` the sum of their CPU time. It is
    `is_measured`, by one layer, or follows from fewer threads.
    """

    busy_s: float
    cpu_s: float
    is_measured: bool


def choose_precision(
    dims: ModelDimensions, choice: Choice = "auto", *, threads: int
) -> ChosenPrecision:
    """Return the user's choice, or for "auto" the result of a measurement, now or earlier."""
    if choice != "auto":
        return ChosenPrecision(precision=choice)
    if dims.n_audio_state < _LEAST_STATE:
        return ChosenPrecision(precision="float32")
    folder, kept = cache_folder(), None
    if folder:
        shape = (dims.n_audio_state, dims.n_audio_head, dims.n_text_state, dims.n_text_head)
        fields = ChosenPrecision.__struct_fields__
        about = f"{machine()} {threads} {shape} {LIVE_WINDOW} {_N_TIMES} {_N_CLEAR} {fields}"
        key = hashlib.sha256(about.encode()).hexdigest()[:40]
        kept = folder / "precision" / key
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(kept.read_bytes(), type=ChosenPrecision)
    if kept:
        log.info("measuring once how fast this machine runs models of this size")
    chosen = _measure(dims, threads)
    if chosen.precision == "float32" and not fits(dims, "float32"):
        chosen = msgspec.structs.replace(chosen, precision="int8")  # slower, but not swapped out
    if kept:
        with suppress(OSError):  # then it is measured again next time
            put_file(kept, msgspec.json.encode(chosen))
    return chosen


def live_cost(dims: ModelDimensions, *, threads: int, step_ms: int) -> LiveCost:
    """Estimate what a live stream takes; nothing for a model too small to be worth a measurement.

    More threads than this machine has cores get the rest of the work divided evenly, after the part
    that two do not share (Amdahl's law): the best that can be expected.
    """
    n_layers = (dims.n_audio_layer + dims.n_text_layer) / 2
    per_step = 1 - _BY_STEP + _BY_STEP * _USUAL_MS / step_ms
    share = _WHOLE * n_layers * per_step / _USUAL_MS
    if threads <= max(2, os.cpu_count() or 1):
        chosen = choose_precision(dims, threads=threads)
        cpu_ms = chosen.cpu_ms or 0.0
        # Other programs lengthen the elapsed time, but hardly the CPU time. Of two threads neither
        # waits for long; more are taken to be worth two at least.
        busy_ms = min(max(chosen.window_ms, cpu_ms / threads), cpu_ms / min(threads, 2))
        return LiveCost(busy_s=share * busy_ms, cpu_s=share * cpu_ms, is_measured=True)
    one, two = ((choose_precision(dims, threads=n).cpu_ms or 0.0) for n in (1, 2))
    alone = min(max(two - one, 0.0), one)
    busy_s = share * (alone + (one - alone) / threads)
    return LiveCost(busy_s=busy_s, cpu_s=busy_s * threads, is_measured=False)


@cache
def machine() -> str:
    """Return a line that identifies the processor and the version of ONNX Runtime."""
    processor = (processor_name(), *instruction_sets(), platform.machine(), os.cpu_count())
    return " ".join(map(str, (*processor, onnxruntime.__version__)))


def _measure(dims: ModelDimensions, threads: int) -> ChosenPrecision:
    """Time one layer of encoder and decoder in both precisions by turns."""
    slice_of = replace(dims, n_audio_layer=1, n_text_layer=1, n_vocab=4 * dims.n_text_state)
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        for name, shape in parameter_shapes(slice_of).items()
    }
    silence = SilenceStates(np.zeros(silence_shape(slice_of), np.float16))
    model = Model("", slice_of, weights, TextTokens(()), ((0, 0),), None, silence)
    choices: tuple[Precision, ...] = "float32", "int8"
    engines = [build(model, threads=threads, precision=each) for each in choices]
    timers = [window_timer(engine, LIVE_WINDOW) for engine in engines]
    # By turns, so that other load affects both.
    return chosen_by([[_with_cpu_ms(timed_ms) for timed_ms in timers] for _ in range(_N_TIMES)])


def chosen_by(rounds: Sequence[Sequence[tuple[float, float]]]) -> ChosenPrecision:
    """Choose by rounds of a window in float32 and in int8, each with its elapsed and CPU ms.

    Other programs lengthen some windows, of either kind: each round has a vote, and CPU time, which
    they lengthen less, decides it. Of the times, the least says most of the machine.
    """
    n_slow = sum(int8_cpu >= _GAIN * float32_cpu for (_, float32_cpu), (_, int8_cpu) in rounds)
    (float32_ms, float32_cpu), (int8_ms, int8_cpu) = np.min(rounds, axis=0).round(3).tolist()
    is_int8 = n_slow < _N_CLEAR
    return ChosenPrecision(
        precision="int8" if is_int8 else "float32",
        float32_ms=float32_ms,
        int8_ms=int8_ms,
        cpu_ms=int8_cpu if is_int8 else float32_cpu,
    )


def _with_cpu_ms(timed_ms: Callable[[], float]) -> tuple[float, float]:
    begun_s = time.process_time()
    return timed_ms(), (time.process_time() - begun_s) * 1000


def window_timer(engine: Engine[FeaturesT], shape: WindowShape) -> Callable[[], float]:
    """Return what times a window of this shape, in ms; the one before it is transcribed now."""
    n_slots = shape.n_given + shape.n_first + sum(shape.passes)
    n_frames = min(shape.n_frames, engine.dims.n_audio_ctx)
    n_reused = max(0, n_frames - shape.n_new)
    mel = np.zeros((engine.dims.n_mels, 2 * n_frames), np.float32)
    previous = engine.encode(mel[:, : 2 * (n_reused + RIGHT_CONTEXT)])
    before = engine.decoder(previous, n_slots)
    run_in_order(before, [0] * shape.n_given, 0)

    def window_ms() -> float:
        begun_s = time.perf_counter()
        decoder = engine.decoder(engine.encode(mel, Reuse(previous, n_reused)), n_slots)
        first = shape.n_given if decoder.adopt(before, shape.n_given) else 0
        for n_tokens in (shape.n_given + shape.n_first - first, *shape.passes):
            run_in_order(decoder, [0] * n_tokens, first)
            first += n_tokens
        return (time.perf_counter() - begun_s) * 1000

    return window_ms
