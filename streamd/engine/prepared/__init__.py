"""Prepares a model once: builds its graphs and lays out its weights, to be mapped from then on.

A prepared model is a folder in the cache, under a key of all that it depends on: the model's files,
the code of this package, ONNX Runtime, the processor and the precision. Besides the engine's files
it has the rest of the model, so that the model's own files need not be read. If the cache cannot be
written, is full, or other users may write to it, the model is prepared in memory.
"""

import hashlib
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from streamd.disk import cache_folder, discard, expanded, is_ours, prune, put_folder
from streamd.engine.model import Model
from streamd.engine.onnx import FILES, OnnxEngine, Precision, build, open_folder, save
from streamd.engine.prepared.precision import Choice, choose_precision, machine
from streamd.engine.store import find, load_model
from streamd.engine.store.cache import places
from streamd.engine.store.layouts import layout_of
from streamd.errors import EngineError, ModelError

log = logging.getLogger(__name__)

_MAX_BYTES = 8 << 30
"""Limit for all prepared models together; large-v3 takes 1.7 GB in int8."""
_ABOUT, _SIZES = "model.msgpack", "sizes.json"


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
    folder, path = cache_folder(), find(name, places())
    if folder is None or path is None:
        return _in_memory(load_model(name), threads, precision)
    try:
        state = files_state(name, path)
        dims = layout_of(path).outline(path).dims
    except (OSError, ModelError):  # `load_model` says better what is wrong
        return _in_memory(load_model(name), threads, precision)
    chosen = choose_precision(dims, precision, threads=threads).precision
    key = "\n".join((state, chosen, machine(), _code()))
    place = folder / "prepared" / hashlib.sha256(key.encode()).hexdigest()[:40]
    if found := _read(place, threads):
        return Opened(*found, chosen, "prepared")
    model = load_model(name)
    with suppress(OSError, ModelError):
        if files_state(name, path) == state:
            return _prepare(model, place, threads=threads, precision=chosen)
    return _in_memory(model, threads, chosen)  # the files changed while they were loaded


def files_state(name: str, path: Path) -> str:
    """Return a text that differs if the model's files at `path` may have changed.

    It consists of the files' status, which suffices because ``ctime`` cannot be set back, and of
    names, from which a loader may derive alignment heads. Raises `OSError` or `ModelError` if the
    files cannot be read, or are no model.
    """
    parts = ["" if expanded(name) == path else name, str(path.resolve())]
    for file in sorted(layout_of(path).files(path)):
        s = file.stat()
        state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        parts.append(f"{file.name} {state}")
    return "\n".join(parts)


def _prepare(model: Model, place: Path, *, threads: int, precision: Precision) -> Opened:
    log.info("model %s: preparing it for this machine, once", model.name)
    try:
        put_folder(place, lambda folder: _write(folder, model, precision))
        prune(place.parent, keep=place, max_bytes=_MAX_BYTES)
    except (OSError, EngineError) as error:
        log.warning("%s: cannot keep the prepared model (%s)", place.parent, error)
    else:
        if found := _read(place, threads):
            return Opened(*found, precision, "prepared now")
    return _in_memory(model, threads, precision)


def _in_memory(model: Model, threads: int, precision: Choice) -> Opened:
    chosen = choose_precision(model.dims, precision, threads=threads).precision
    dims, weights, heads = model.dims, model.weights, model.alignment_heads
    engine = build(dims, weights, alignment_heads=heads, threads=threads, precision=chosen)
    return Opened(model, engine, chosen, "not prepared")


def _write(folder: Path, model: Model, precision: Precision) -> None:
    heads = model.alignment_heads
    save(folder, model.dims, model.weights, alignment_heads=heads, precision=precision)
    (folder / _ABOUT).write_bytes(msgspec.msgpack.encode(replace(model, weights={})))
    (folder / _SIZES).write_bytes(msgspec.json.encode(_sizes(folder)))


def _read(place: Path, threads: int) -> tuple[Model, OnnxEngine] | None:
    """Open a prepared model, or remove it if it is damaged or other users may have changed it."""
    try:
        if is_ours(place) and _sizes(place) == msgspec.json.decode((place / _SIZES).read_bytes()):
            model = msgspec.msgpack.decode((place / _ABOUT).read_bytes(), type=Model)
            engine = open_folder(place, model.dims, threads=threads)
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
    engine, digest = Path(__file__).parent.parent, hashlib.sha256()
    for pattern in ("*/*.py", "model.py", "catalog.py", "vocabulary.py", "weights.py"):
        for file in sorted(engine.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()
