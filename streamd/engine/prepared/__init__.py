"""A model is prepared once: its graphs are built, its weights laid out, then both are only mapped.

What was prepared lies in the cache folder, under a key of all that it depends on: the content of
the model's files (wherever they lie), the code of this package, ONNX Runtime, the processor and the
precision. A folder that cannot be written, belongs to others, or is full costs the time, nothing
else.
"""

import hashlib
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from streamd.disk import cache_folder, discard, is_ours, prune, put_folder
from streamd.engine.model import Model
from streamd.engine.onnx import OnnxEngine, Precision, build
from streamd.engine.prepared import entry
from streamd.engine.prepared.identity import Identity, called
from streamd.engine.prepared.precision import Choice, choose_precision, machine
from streamd.engine.store import find, load_model
from streamd.engine.store.cache import places
from streamd.errors import EngineError, ModelError

log = logging.getLogger(__name__)

_MAX_BYTES = 8 << 30
"""Of all prepared models together; large-v3 takes 1.7 GB in int8."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model on its engine; `how` says whether it was prepared before.

    The `model` has no weights: the engine has them.
    """

    model: Model
    engine: OnnxEngine
    precision: Precision
    how: Literal["prepared", "prepared now", "not prepared"]


def open_engine(name: str, *, threads: int, precision: Choice = "auto") -> Opened:
    """Open a model by name, folder or file, as `load_model` finds it, and prepare it if need be.

    Raises
    ------
    ModelError
        There is no such model here, or its files are damaged.
    EngineError
        ONNX Runtime refuses the model.
    """
    folder, path = cache_folder(), find(name, places())
    if folder is None or path is None:
        return _in_memory(load_model(name), threads, precision)
    try:
        identity = Identity(path, folder)
    except (OSError, ModelError):  # the loader says best what is wrong
        return _in_memory(load_model(name), threads, precision)
    if dims := identity.known.dims:
        chosen = choose_precision(dims, precision, threads=threads).precision
        place = _place(folder, identity.known.digest, called=called(name, path), precision=chosen)
        if found := _read(place, threads):
            identity.remember(dims)
            return Opened(*found, chosen, "prepared")
    model = load_model(name)
    chosen = choose_precision(model.dims, precision, threads=threads).precision
    if not identity.remember(model.dims):
        return _in_memory(model, threads, chosen)  # somebody is changing the files
    place = _place(folder, identity.known.digest, called=called(name, path), precision=chosen)
    return _prepare(model, place, threads=threads, precision=chosen)


def _prepare(model: Model, place: Path, *, threads: int, precision: Precision) -> Opened:
    log.info("model %s: preparing it for this machine, once", model.name)
    try:
        put_folder(place, lambda folder: entry.write(folder, model, precision))
        prune(place.parent, keep=place, max_bytes=_MAX_BYTES)
    except (OSError, EngineError) as error:
        log.warning("%s: cannot keep the prepared model (%s)", place.parent, error)
        return _in_memory(model, threads, precision)
    found = _read(place, threads)
    if found is None:
        return _in_memory(model, threads, precision)
    return Opened(*found, precision, "prepared now")


def _in_memory(model: Model, threads: int, precision: Choice) -> Opened:
    chosen = choose_precision(model.dims, precision, threads=threads).precision
    heads = model.alignment_heads
    engine = build(
        model.dims, model.weights, alignment_heads=heads, threads=threads, precision=chosen
    )
    return Opened(model, engine, chosen, "not prepared")


def _read(place: Path, threads: int) -> tuple[Model, OnnxEngine] | None:
    """What was prepared, if it is whole and of our own making; else there is nothing left of it."""
    try:
        found = entry.read(place, threads=threads) if is_ours(place) else None
    except EngineError:
        found = None  # damaged where it was not looked at
    except OSError:
        return None
    if found is None:
        discard(place)
        return None
    with suppress(OSError):
        os.utime(place)  # in use: the last to be pruned
    return found


def _place(folder: Path, digest: str, *, called: str, precision: Precision) -> Path:
    parts = (digest, called, precision, machine(), _code())
    return folder / "prepared" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


@cache
def _code() -> str:
    """A digest of all code that decides what a prepared model looks like."""
    engine, digest = Path(__file__).parent.parent, hashlib.sha256()
    for pattern in ("*/*.py", "model.py", "catalog.py", "vocabulary.py", "weights.py"):
        for file in sorted(engine.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()
