"""Builds a model's encoder for Core ML, and keeps what was built in the cache folder.

Building needs coremltools and numpy, no Mac. It takes minutes, so it reports its progress. Weights
are read one at a time, since a large model is in memory for captions already. Where a built model
lies in the cache follows from the content of the model's files and from the code that
builds, so what is found there is what building now would give. Builds of other code are deleted.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from streamd.engines.coreml.golden import write_golden
from streamd.engines.coreml.package import (
    META,
    POSITIONS,
    Bits,
    BuiltModel,
    Meta,
    coremltools,
    open_built,
)
from streamd.engines.coreml.rounding import HeldWeights
from streamd.engines.prepared import cache_key, code_digest, prepared_silence, with_silence
from streamd.engines.reference import ReferenceEngine
from streamd.errors import ModelError
from streamd.models.model import Model
from streamd.models.store import opened_model
from streamd.system.disk import CACHE_VARIABLE, discard, prune, put_folder, sha256
from streamd.types import N_AUDIO_CTX

OnProgress = Callable[[int, int, str], object]
"""Called with the number of steps done, the number of all steps, and what comes next."""

_FOLDER = "coreml"
_LARGE = 250_000_000
"""An encoder of more weights gets palettes by default: those from medium on."""


def built_model(name: str) -> BuiltModel | None:
    """Return what was built of a model, if anything. Raises `ModelError` if it is damaged."""
    folder = _cached(name)
    return open_built(folder) if folder and (folder / META).exists() else None


def build_model(name: str, on_progress: OnProgress) -> BuiltModel:
    """Build the model in the cache, as `write` does; an interrupted build leaves nothing.

    An earlier build of it stays in use until the new one is complete.

    Raises `ModelError` if there is no such model, or it cannot be built or written.
    """
    target = _cached(name)
    with opened_model(name):
        pass  # complains of what is not here before anything is written
    if target is None:
        raise ModelError(f"there is no cache folder; name one with {CACHE_VARIABLE}")

    def fill(folder: Path) -> None:
        with opened_model(name) as model:
            model = replace(model, silence=model.silence or prepared_silence(name))
            write(folder, model, on_progress)
        discard(target)

    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        put_folder(target, fill)
        prune(target.parent, keep=target, max_bytes=0)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written ({error.strerror or error})") from error
    return open_built(target)


def _cached(name: str) -> Path | None:
    """Return where the built model is, or would be; None without a model or a cache folder."""
    if (cached := cache_key(name)) is None:
        return None
    folder, state, _ = cached
    # The modules of this folder decide what is built; those of `runtime` do not.
    code = code_digest(sorted(Path(__file__).parent.glob("*.py")))[:16]
    return folder / _FOLDER / hashlib.sha256(state.encode()).hexdigest()[:40] / code


def write(
    folder: Path,
    model: Model,
    on_progress: OnProgress = lambda done, n, what: None,
    *,
    bits: Bits | None = None,
) -> None:
    """Write all packages and tables into an empty folder; ``meta.json`` comes last.

    `bits` per weight are 16 or 8, if not given 8 for large models. Raises `ModelError` if
    coremltools is missing or float16 cannot hold a weight; `OSError` if the folder cannot be
    written.
    """
    tools = coremltools()
    from streamd.engines.coreml.networks import Layers, save_package  # imports coremltools

    dims = model.dims
    is_large = 12 * dims.n_audio_layer * dims.n_audio_state**2 > _LARGE
    meta = Meta(
        name=model.name,
        coremltools=tools.__version__,
        dims=dims,
        norms={},
        silence=model.silence is not None or dims.n_audio_ctx >= N_AUDIO_CTX,  # `with_silence`
        bits=bits or (8 if is_large else 16),
    )
    every = BuiltModel(folder, meta).functions
    packages = [(name, list(of)) for name, of in groupby(every, lambda each: each.package)]
    n_steps = len(packages) + 1
    on_progress(0, n_steps, "states of silence and golden vectors")
    silence = with_silence(model, threads=2, precision="int8").silence
    weights = HeldWeights(dims, model.weights, meta.bits)
    held = replace(model, weights=weights, silence=silence)
    norms = write_golden(folder, meta, ReferenceEngine(held))
    np.save(folder / POSITIONS, weights["encoder.positional_embedding"].astype(np.float16))
    meta = msgspec.structs.replace(meta, norms=norms)
    for done, (name, of) in enumerate(packages, 1):
        on_progress(done, n_steps, name)
        save_package(folder / name, of, Layers(meta, weights, silence))
        weights.drop(meta.layers[done - 1])
    files = {
        str(path.relative_to(folder)): (path.stat().st_size, sha256(path).hex())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    meta = msgspec.structs.replace(meta, files=files)
    (folder / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta)))
