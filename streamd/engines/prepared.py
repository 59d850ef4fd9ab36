"""Prepares a model once: builds its graphs and lays out its weights, to be mapped from then on.

A prepared model is a folder in the cache, under a key of all that it depends on: the model's files,
the code of this package, ONNX Runtime, the processor and the precision. Besides the engine's files
it has the rest of the model, so that the model's own files need not be read, and the encoder's
states of silence, which are made from speech that ships with streamd unless the model's files have
them. If the cache cannot be written, is full, or other users may write to it, the model is prepared
in memory.

Unless the user names a precision, the faster one is found by measuring: int8 is two to three times
as fast if the processor has instructions for it, and may be slower if not. One layer of each kind,
with random weights of the model's width, shows it in a fraction of a second, by the time of a
window of a live stream; the result is kept in the cache folder.
"""

import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import onnxruntime
import soundfile

from streamd.engines import Precision
from streamd.engines.onnx import FILES, OnnxEngine, build, make_bank, open_folder, save
from streamd.errors import EngineError, ModelError
from streamd.models import ModelDimensions
from streamd.models.model import Model, parameter_shapes
from streamd.models.silence import Bank, bank_shape
from streamd.models.store import find, load_model
from streamd.models.store.cache import places
from streamd.models.store.layouts import layout_of
from streamd.system.disk import (
    asset,
    cache_folder,
    discard,
    expanded,
    is_ours,
    prune,
    put_file,
    put_folder,
)
from streamd.system.processor import instruction_sets, processor_name
from streamd.types import FRAME, N_AUDIO_CTX, SAMPLE_RATE, Mel, Samples
from streamd.whisper.engine import Engine, FeaturesT, run_in_order
from streamd.whisper.mel import log_mel
from streamd.whisper.recognizer import SETTLED

log = logging.getLogger(__name__)

_MAX_BYTES = 8 << 30
"""Limit for all prepared models together; large-v3 takes 1.7 GB in int8."""
_ABOUT, _SIZES, _STATES = "model.msgpack", "sizes.json", "silence.npy"

Choice = Literal["auto", "float32", "int8"]


@dataclass(frozen=True, slots=True)
class WindowShape:
    """What a window of a live stream takes, after one that began at the same frame.

    It has `n_frames`, of which the encoder computes the last `n_new`. The decoder has `n_given`
    tokens from the window before; it runs `n_first` tokens, the last of them a draft, then `passes`
    of so many tokens each.
    """

    n_frames: int
    n_new: int
    n_given: int
    n_first: int
    passes: tuple[int, ...]


LIVE_WINDOW = WindowShape(n_frames=540, n_new=102, n_given=20, n_first=12, passes=(2, 2))
"""About the median of the bundled recording, with `tiny.en` and with `base`."""

_GAIN = 0.9
"""Int8 must take less than this share of float32's time to be worth its rounding errors."""
_LEAST_STATE = 384
"""The width of `tiny`; narrower models are fast enough in float32."""
_N_TIMES = 5
_N_WINDOWS = 20
_WINDOW_S = (1.0, 2.0, 3.5, 5.0, 8.0)
"""How many windows the states of silence are averaged over, and their lengths."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model, which may be without weights, on its engine; `how` tells if it was prepared."""

    model: Model
    engine: OnnxEngine
    precision: Precision
    how: Literal["prepared", "prepared now", "not prepared"]


def open_engine(name: str, *, threads: int, precision: Choice = "auto") -> Opened:
    """Open a model by name, folder or file, and prepare it if necessary.

    Raises `ModelError` if there is no such model here, or its files are damaged. Raises
    `EngineError` if ONNX Runtime refuses the model.
    """
    if (cached := cache_key(name)) is None:
        return open_in_memory(load_model(name), threads=threads, precision=precision)
    folder, state, dims = cached
    chosen = choose_precision(dims, precision, threads=threads).precision
    key = "\n".join((state, chosen, machine(), _code()))
    place = folder / "prepared" / hashlib.sha256(key.encode()).hexdigest()[:40]
    if found := _read(place, threads):
        return Opened(*found, chosen, "prepared")
    model = load_model(name)
    if cache_key(name) == cached:
        return _prepare(model, place, threads=threads, precision=chosen)
    # the files changed while they were loaded
    return open_in_memory(model, threads=threads, precision=chosen)


def cache_key(name: str) -> tuple[Path, str, ModelDimensions] | None:
    """Return the cache folder, a text that tells if a model's files change, and its dimensions.

    The text consists of the files' status, which suffices because ``ctime`` cannot be set back, and
    of names, from which a loader may derive alignment heads. It is None without a cache folder, or
    if the model is not here or damaged, which `load_model` reports.
    """
    folder, path = cache_folder(), find(name, places())
    with suppress(OSError, ModelError):
        if folder and path:
            layout = layout_of(path)
            parts = ["" if expanded(name) == path else name, str(path.resolve())]
            for file in sorted(layout.files(path)):
                s = file.stat()
                state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
                parts.append(f"{file.name} {state}")
            return folder, "\n".join(parts), layout.outline(path).dims
    return None


def _prepare(model: Model, place: Path, *, threads: int, precision: Precision) -> Opened:
    log.info("model %s: preparing it for this machine, once", model.name)
    try:
        put_folder(place, lambda folder: _write(folder, model, precision, threads))
        prune(place.parent, keep=place, max_bytes=_MAX_BYTES)
    except (OSError, EngineError) as error:
        log.warning("%s: cannot keep the prepared model (%s)", place.parent, error)
    else:
        if found := _read(place, threads):
            return Opened(*found, precision, "prepared now")
    return open_in_memory(model, threads=threads, precision=precision)


def open_in_memory(model: Model, *, threads: int, precision: Choice = "auto") -> Opened:
    """Build the graphs and weights of a loaded model, which is slow, and keep nothing.

    Raises `EngineError` if ONNX Runtime refuses the model.
    """
    chosen = choose_precision(model.dims, precision, threads=threads).precision
    model = with_bank(model, threads=threads, precision=chosen)
    engine = build(
        model.dims,
        model.weights,
        alignment_heads=model.alignment_heads,
        bank=model.bank,
        threads=threads,
        precision=chosen,
    )
    return Opened(model, engine, chosen, "not prepared")


def with_bank(model: Model, *, threads: int, precision: Precision) -> Model:
    """Return the model with states of silence, which take some 20 windows of 30 s to make.

    A model with a shorter context than Whisper's stays without. Raises `EngineError` if ONNX
    Runtime refuses the model.
    """
    if model.bank is not None or model.dims.n_audio_ctx < N_AUDIO_CTX:
        return model
    windows = _windows(bundled_speech(), model.dims.n_mels)
    bank = make_bank(model.dims, model.weights, windows, threads=threads, precision=precision)
    return replace(model, bank=bank)


def bundled_speech() -> Samples:
    """Return the recording that ships with streamd: a minute of several speakers."""
    speech, _ = soundfile.read(asset("speech") / "recording.flac", dtype="float32")
    return np.asarray(speech, np.float32)


def _windows(speech: Samples, n_mels: int) -> Iterator[tuple[int, Mel]]:
    """Yield pieces of speech as `make_bank` wants them: their frames, and the log-mel of 30 s."""
    n_full = N_AUDIO_CTX * FRAME
    for i in range(_N_WINDOWS):
        n = int(_WINDOW_S[i % len(_WINDOW_S)] * SAMPLE_RATE)
        start = (len(speech) - n) * i // _N_WINDOWS
        yield -(-n // FRAME), log_mel(np.pad(speech[start : start + n], (0, n_full - n)), n_mels)


def _write(folder: Path, model: Model, precision: Precision, threads: int) -> None:
    model = with_bank(model, threads=threads, precision=precision)
    save(
        folder,
        model.dims,
        model.weights,
        alignment_heads=model.alignment_heads,
        bank=model.bank,
        precision=precision,
    )
    if model.bank is not None:
        np.save(folder / _STATES, model.bank.states)
    about = replace(model, weights={}, bank=None)
    (folder / _ABOUT).write_bytes(msgspec.msgpack.encode(about))
    (folder / _SIZES).write_bytes(msgspec.json.encode(_sizes(folder)))


def _read(place: Path, threads: int) -> tuple[Model, OnnxEngine] | None:
    """Open a prepared model, or remove it if it is damaged or other users may have changed it."""
    try:
        if is_ours(place) and _sizes(place) == msgspec.json.decode((place / _SIZES).read_bytes()):
            model = msgspec.msgpack.decode((place / _ABOUT).read_bytes(), type=Model)
            engine = open_folder(place, model.dims, threads=threads)
            if (states := place / _STATES).exists():
                model = replace(model, bank=Bank(np.load(states, mmap_mode="r")))
            with suppress(OSError):
                os.utime(place)  # `prune` removes the least recently used ones
            return model, engine
    except (OSError, EngineError, msgspec.DecodeError) as error:
        log.debug("%s: %s", place, error)
    if os.path.lexists(place):
        discard(place)
    return None


def _sizes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in (*FILES, _ABOUT)}


@cache
def _code() -> str:
    """Return a digest of all code on which the content of a prepared model depends."""
    package = Path(__file__).parents[1]
    files = [
        file for name in ("engines", "models", "whisper") for file in (package / name).rglob("*")
    ]
    return code_digest(sorted(file for file in files if file.suffix in (".py", ".toml")))


def code_digest(files: Iterable[Path]) -> str:
    """Return a digest of the code in these files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


# -- the precision --------------------------------------------------------------------------------


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
        about = f"{machine()} {threads} {shape} {LIVE_WINDOW}"
        key = hashlib.sha256(about.encode()).hexdigest()[:40]
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
    bank = Bank(np.zeros(bank_shape(slice_of), np.float16))
    make = partial(build, slice_of, weights, alignment_heads=[(0, 0)], bank=bank, threads=threads)
    engines = make(precision="float32"), make(precision="int8")
    timers = [window_timer(engine, LIVE_WINDOW) for engine in engines]
    # By turns, so that other load affects both.
    rounds = [[timed_ms() for timed_ms in timers] for _ in range(_N_TIMES)]
    float32_ms, int8_ms = map(min, zip(*rounds, strict=True))
    return ChosenPrecision(
        precision="int8" if int8_ms < _GAIN * float32_ms else "float32",
        float32_ms=round(float32_ms, 3),
        int8_ms=round(int8_ms, 3),
    )


def window_timer(engine: Engine[FeaturesT], shape: WindowShape) -> Callable[[], float]:
    """Return what times a window of this shape, in ms; the one before it is transcribed now."""
    n_slots = shape.n_given + shape.n_first + sum(shape.passes)
    n_frames = min(shape.n_frames, engine.dims.n_audio_ctx)
    n_known = max(0, n_frames - shape.n_new)
    mel = np.zeros((engine.dims.n_mels, 2 * n_frames), np.float32)
    known = engine.encode(mel[:, : 2 * (n_known + SETTLED)])
    before = engine.decoder(known, n_slots)
    run_in_order(before, [0] * shape.n_given, 0)

    def window_ms() -> float:
        begun_s = time.perf_counter()
        decoder = engine.decoder(engine.encode(mel, known=known, n_known=n_known), n_slots)
        first = shape.n_given if decoder.adopt(before, shape.n_given) else 0
        for n_tokens in (shape.n_given + shape.n_first - first, *shape.passes):
            run_in_order(decoder, [0] * n_tokens, first)
            first += n_tokens
        return (time.perf_counter() - begun_s) * 1000

    return window_ms
