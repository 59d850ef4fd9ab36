"""Prepares a model once: builds its graphs and lays out its weights, to be mapped from then on.

A prepared model is a folder in the cache, under a key of all that it depends on: the model's files,
the code of this package, ONNX Runtime, the processor and the precision. Besides the engine's files
it has the rest of the model, so that the model's own files need not be read, and the encoder's
states of silence, which are made from speech that ships with streamd unless the model's files have
them. If the cache cannot be written, is full, or other users may write to it, the model is prepared
in memory.
"""

import hashlib
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import soundfile

from streamd.engines import Precision
from streamd.engines.onnx import (
    FILES,
    OPTIONAL,
    OnnxEngine,
    build,
    make_silence_states,
    open_folder,
    save,
)
from streamd.engines.precision import Choice, choose_precision, machine
from streamd.errors import EngineError, ModelError
from streamd.models import ModelDimensions
from streamd.models.model import Model, parameter_shapes
from streamd.models.silence import SilenceStates
from streamd.models.store import find, load_model, opened_model
from streamd.models.store.cache import places
from streamd.models.store.layouts import files, outline
from streamd.models.text_tokens import TextTokens, unpacked
from streamd.system.disk import (
    asset,
    cache_folder,
    discard,
    expanded,
    is_ours,
    prune,
    put_folder,
    size_of,
)
from streamd.system.heap import trim
from streamd.types import FRAME, N_AUDIO_CTX, SAMPLE_RATE, Mel, Samples
from streamd.whisper.mel import log_mel

log = logging.getLogger(__name__)

_LEAST_LIMIT, _SHARE_OF_DISK = 8 << 30, 0.25
"""All prepared models together may take so many bytes, or the share of what is free, if that is
more. turbo takes 1.9 GB in int8, large-v3 12.7 in float32: in turn, they have to fit."""
_BYTES_A_PARAMETER = 2.4
"""Of what is prepared in int8: 2.3 of turbo, 2.4 of small. ONNX Runtime 1.32 stores each matrix as
it is and as its kernels need it. The first cannot go: at each start it packs that, and only then
takes what it finds packed (tried with holes in the file)."""
_ABOUT, _SIZES, _STATES = "model.msgpack", "sizes.json", "silence.npy"


_WINDOW_S = (1.0, 2.0, 3.5, 5.0, 8.0)
"""The lengths of the windows that the states of silence are averaged over."""

Progress = Callable[[float], object]
"""Called with the share of a preparation that is done."""
_SILENCE_SHARE = 0.5
"""What the states of silence take of the time of a preparation, about as with turbo."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model, which may be without weights, on its engine; `how` tells if it was prepared."""

    model: Model
    engine: OnnxEngine
    precision: Precision
    how: Literal["prepared", "prepared now", "not prepared"]


def open_engine(
    name: str,
    *,
    threads: int,
    precision: Choice = "auto",
    urgent_threads: int = 0,
    recordings: bool = False,
) -> Opened:
    """Open a model by name or folder, and prepare it if necessary.

    If `urgent_threads` are more than `threads`, there is an engine for urgent windows, too, unless
    the model cannot be prepared: its weights would be in memory twice. For `recordings`, the parts
    of a prepared model are opened when they are first used. Raises `ModelError` if there
    is no such model here, or its files are damaged. Raises `EngineError` if ONNX Runtime refuses
    the model.
    """
    if (cached := cache_key(name)) is None:
        return open_in_memory(load_model(name), threads=threads, precision=precision)
    folder, state, dims = cached
    chosen = choose_precision(dims, precision, threads=threads).precision
    place = _place(folder, state, chosen)
    open_prepared = partial(_read, place, threads, urgent_threads, recordings=recordings)
    if found := open_prepared():
        return Opened(*found, chosen, "prepared")
    trim()  # what was measured to choose the precision is not needed any more
    if _prepare(name, cached, place, chosen, threads) and (found := open_prepared()):
        return Opened(*found, chosen, "prepared now")
    return open_in_memory(load_model(name), threads=threads, precision=chosen)


def is_prepared(name: str, precision: Choice = "auto") -> bool:
    """Return whether a model was prepared in this precision, or in one of them."""
    if (cached := cache_key(name)) is None:
        return False
    folder, state, _ = cached
    wanted = get_args(Precision) if precision == "auto" else (precision,)
    places = (_place(folder, state, each) for each in wanted)
    return any(place.is_dir() and is_ours(place) for place in places)


def prepare(name: str, *, threads: int, precision: Choice, progress: Progress) -> None:
    """Prepare a model for `open_engine` with the same arguments, which then only has to map it.

    Raises `ModelError` as that does, `EngineError` if ONNX Runtime refuses the model or nothing can
    be kept.
    """
    if (cached := cache_key(name)) is None:
        raise EngineError("there is no folder for prepared models")
    folder, state, dims = cached
    chosen = choose_precision(dims, precision, threads=threads).precision
    place = _place(folder, state, chosen)
    if not place.is_dir() and not _prepare(name, cached, place, chosen, threads, progress):
        raise EngineError(f"it cannot be kept in {folder}")


def cache_key(name: str) -> tuple[Path, str, ModelDimensions] | None:
    """Return the cache folder, a text that tells if a model's files change, and its dimensions.

    The text consists of the files' status, which suffices because ``ctime`` cannot be set back, and
    of names, from which a loader may derive alignment heads. It is None without a cache folder, or
    if the model is not here or damaged, which `load_model` reports.
    """
    folder, path = cache_folder(), find(name, places())
    with suppress(OSError, ModelError):
        if folder and path:
            parts = ["" if expanded(name) == path else name, str(path.resolve())]
            for file in sorted(files(path)):
                s = file.stat()
                state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
                parts.append(f"{file.name} {state}")
            return folder, "\n".join(parts), outline(path).dims
    return None


def prepared_silence(name: str) -> SilenceStates | None:
    """Return the states of silence of a model that was prepared in any precision, if it was."""
    if (cached := cache_key(name)) is None:
        return None
    folder, state, _ = cached
    for each in get_args(Precision):
        place = _place(folder, state, each)
        with suppress(OSError, ValueError):
            if is_ours(place):
                return SilenceStates(np.load(place / _STATES, mmap_mode="r"))
    return None


def _place(folder: Path, state: str, precision: Precision) -> Path:
    key = "\n".join((state, precision, machine(), _code()))
    return folder / "prepared" / hashlib.sha256(key.encode()).hexdigest()[:40]


def _prepare(
    name: str,
    cached: object,
    place: Path,
    precision: Precision,
    threads: int,
    progress: Progress = lambda share: None,
) -> bool:
    """Write a model, whose files were `cached`; return whether it is there.

    Each weight is read when it is written, so that not all are in memory at once.
    """

    def fill(folder: Path) -> None:  # where nothing can be written, nothing is loaded
        with opened_model(name) as model:
            log.info("model %s: preparing it for this machine, once", model.name)
            _write(folder, model, precision, threads, progress)
        if cache_key(name) != cached:
            raise OSError("the model's files changed while they were read")

    try:
        put_folder(place, fill)
        prune(place.parent, keep=place, max_bytes=_limit(place.parent))
    except (OSError, EngineError) as error:
        log.warning("%s: cannot keep the prepared model (%s)", place.parent, error)
        return False
    return True


def _limit(folder: Path) -> int:
    """Return how many bytes all prepared models may take."""
    available = shutil.disk_usage(folder).free + size_of(folder)
    return max(_LEAST_LIMIT, int(_SHARE_OF_DISK * available))


def prepared_bytes(dims: ModelDimensions) -> int:
    """Estimate how much of the disk a model takes when it is prepared in int8."""
    return int(_BYTES_A_PARAMETER * sum(map(math.prod, parameter_shapes(dims).values())))


def open_in_memory(model: Model, *, threads: int, precision: Choice = "auto") -> Opened:
    """Build the graphs and weights of a loaded model, which is slow, and keep nothing.

    Raises `EngineError` if ONNX Runtime refuses the model.
    """
    chosen = choose_precision(model.dims, precision, threads=threads).precision
    model = with_silence(model, threads=threads, precision=chosen)
    engine = build(model, threads=threads, precision=chosen)
    return Opened(model, engine, chosen, "not prepared")


def with_silence(
    model: Model, *, threads: int, precision: Precision, progress: Progress = lambda share: None
) -> Model:
    """Return the model with states of silence, which take a few windows of 30 s to make.

    `progress` is told the share that is done. A model with a shorter context than Whisper's
    stays without. Raises `EngineError` if ONNX Runtime refuses the model.
    """
    if model.silence is not None or model.dims.n_audio_ctx < N_AUDIO_CTX:
        return model
    windows = _windows(bundled_speech(), model.dims.n_mels)
    layers, states = model.dims.n_audio_layer + 1, []
    for found in make_silence_states(model, windows, threads=threads, precision=precision):
        states.append(found)
        progress(len(states) / layers)
    return replace(model, silence=SilenceStates(np.stack(states)))


def bundled_speech() -> Samples:
    """Return the recording that ships with streamd: a minute of several speakers."""
    speech, _ = soundfile.read(asset("speech") / "recording.flac", dtype="float32")
    return np.asarray(speech, np.float32)


def _windows(speech: Samples, n_mels: int) -> list[tuple[int, Mel]]:
    """Return what `make_silence_states` takes: pieces of speech, as frames and log-mel of 30 s."""
    n_full, windows = N_AUDIO_CTX * FRAME, []
    for i, seconds in enumerate(_WINDOW_S):
        n = int(seconds * SAMPLE_RATE)
        start = (len(speech) - n) * i // len(_WINDOW_S)
        piece = np.pad(speech[start : start + n], (0, n_full - n))
        windows.append((-(-n // FRAME), log_mel(piece, n_mels)))
    return windows


def _write(
    folder: Path, model: Model, precision: Precision, threads: int, progress: Progress
) -> None:
    model = with_silence(
        model,
        threads=threads,
        precision=precision,
        progress=lambda share: progress(share * _SILENCE_SHARE),
    )
    progress(_SILENCE_SHARE)
    trim()  # the graph of the states, before there is another one
    save(folder, model, precision)
    if model.silence is not None:
        np.save(folder / _STATES, model.silence.states)
    about = replace(model, weights={}, silence=None)
    (folder / _ABOUT).write_bytes(msgspec.msgpack.encode(about, enc_hook=TextTokens.packed))
    (folder / _SIZES).write_bytes(msgspec.json.encode(_sizes(folder)))


def _read(
    place: Path, threads: int, urgent_threads: int, *, recordings: bool
) -> tuple[Model, OnnxEngine] | None:
    """Open a prepared model, or remove it if it is damaged or other users may have changed it."""
    try:
        if is_ours(place) and _sizes(place) == msgspec.json.decode((place / _SIZES).read_bytes()):
            model = msgspec.msgpack.decode(
                (place / _ABOUT).read_bytes(),
                type=Model,
                dec_hook=lambda _, packed: unpacked(packed),
            )
            engine = open_folder(
                place,
                model.dims,
                threads=threads,
                urgent_threads=urgent_threads,
                recordings=recordings,
            )
            if (states := place / _STATES).exists():
                model = replace(model, silence=SilenceStates(np.load(states, mmap_mode="r")))
            with suppress(OSError):
                os.utime(place)  # `prune` removes the least recently used ones
            return model, engine
    except (OSError, EngineError, msgspec.DecodeError) as error:
        log.debug("%s: %s", place, error)
    if os.path.lexists(place):
        discard(place)
    return None


def _sizes(folder: Path) -> dict[str, int]:
    names = [*FILES, _ABOUT, *(name for name in OPTIONAL if (folder / name).exists())]
    return {name: (folder / name).stat().st_size for name in names}


@cache
def _code() -> str:
    """Return a digest of all code on which the content of a prepared model depends."""
    package = Path(__file__).parents[1]
    every = [
        file for name in ("engines", "models", "whisper") for file in (package / name).rglob("*")
    ]
    return code_digest(sorted(file for file in every if file.suffix in (".py", ".toml")))


def code_digest(files: Iterable[Path]) -> str:
    """Return a digest of the code in these files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
