"""Chooses the faster precision for this machine by measuring.

Int8 is two to three times as fast if the processor has instructions for it, and may be slower if
not. One layer of each kind, with random weights of the model's width, shows it in a fraction of a
second; the result is kept in the cache folder.
"""

import hashlib
import os
import platform
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Literal

import msgspec
import numpy as np
import onnxruntime

from streamd.disk import cache_folder, put_file
from streamd.engine import ModelDimensions
from streamd.engine.onnx import OnnxEngine, Precision, build
from streamd.engine.weights import parameter_shapes
from streamd.processor import instruction_sets, processor_name

Choice = Literal["auto", "float32", "int8"]

_GAIN = 0.9
"""Int8 must take less than this share of float32's time to be worth its rounding errors."""
_LEAST_STATE = 384
"""The width of `tiny`; narrower models are fast enough in float32."""
_N_CTX = 384
_N_TOKENS = 24
"""About what a step of `--step 500 --length 5000` decodes."""
_N_TIMES = 5
_BOTH: tuple[Precision, Precision] = ("float32", "int8")


class ChosenPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """The precision to use, and the measured times, or None if nothing was measured."""

    precision: Precision
    float32_ms: float | None = None
    int8_ms: float | None = None


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
        key = hashlib.sha256(f"{machine()} {threads} {shape}".encode()).hexdigest()[:40]
        kept = folder / "precision" / key
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(kept.read_bytes(), type=ChosenPrecision)
    chosen = _measure(dims, threads)
    if kept:
        with suppress(OSError):  # then it is measured again next time
            put_file(kept, msgspec.json.encode(chosen))
    return chosen


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
    engines = {
        precision: build(
            slice_of, weights, alignment_heads=[(0, 0)], threads=threads, precision=precision
        )
        for precision in _BOTH
    }
    times: dict[Precision, list[float]] = {precision: [] for precision in _BOTH}
    for _ in range(_N_TIMES):
        for precision, engine in engines.items():
            times[precision].append(_step_ms(engine))
    best = {precision: min(each) for precision, each in times.items()}
    wins = best["int8"] < _GAIN * best["float32"]
    return ChosenPrecision(
        precision="int8" if wins else "float32",
        float32_ms=round(best["float32"], 3),
        int8_ms=round(best["int8"], 3),
    )


def _step_ms(engine: OnnxEngine) -> float:
    """Encode a window, verify a draft and decode three tokens."""
    mel = np.zeros((engine.dims.n_mels, 2 * _N_CTX), np.float32)
    start = time.perf_counter()
    decoder = engine.decoder(engine.encode(mel, _N_CTX), _N_TOKENS + 3)
    for first, k in ((0, _N_TOKENS), *((_N_TOKENS + i, 1) for i in range(3))):
        order = np.arange(first, first + k)
        visible = np.arange(decoder.n_slots) <= order[:, None]
        decoder.step(np.zeros(k, np.int64), order, order, visible, np.arange(k))
    return (time.perf_counter() - start) * 1000
