"""Builds a model for Core ML, and keeps built models in the cache folder.

Building needs coremltools and numpy, no Mac. It takes minutes, so it reports its progress. Where a
built model lies in the cache follows from the content of the model's files and from the code that
builds, so what is found there is what building now would give. Builds of other code are deleted.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from streamd.disk import CACHE_VARIABLE, cache_folder, discard, prune, put_folder
from streamd.engine import Weights
from streamd.engine.check import clips, forward, mel_of
from streamd.engine.coreml.built import BuiltModel, open_built
from streamd.engine.coreml.package import (
    EMBEDDING,
    GOLDEN,
    META,
    POSITIONS,
    Bits,
    Meta,
    coremltools,
    functions,
)
from streamd.engine.coreml.palettes import weights_held
from streamd.engine.model import Model
from streamd.engine.prepared import code_digest, files_state
from streamd.engine.reference import ReferenceEngine
from streamd.engine.store import find, load_model
from streamd.engine.store.cache import places
from streamd.errors import ModelError
from streamd.options import BuildOptions

OnProgress = Callable[[int, int, str], object]
"""Called with the number of steps done, the number of all steps, and what comes next."""

_N_GOLDEN = 12
_HIDDEN = 10
"""The golden context is this many positions shorter than the shortest built one, so that masks have
something to hide."""
_FOLDER = "coreml"
_BITS: dict[str, Bits] = {"16": 16, "8": 8, "6": 6}
_MODULES = ("built", "layers", "networks", "package", "package_builder", "palettes")
"""Modules that decide what is built."""


def built_model(name: str) -> BuiltModel | None:
    """Return what was built of a model, if anything. Raises `ModelError` if it is damaged."""
    folder = _cached(name)
    return open_built(folder) if folder and (folder / META).exists() else None


def build_model(
    name: str, options: BuildOptions, on_progress: OnProgress, *, to: Path | None = None
) -> BuiltModel:
    """Build the model, in the cache or in a new folder `to`; an interrupted build leaves nothing.

    An earlier build of it stays in use until the new one is complete.

    Raises `ModelError` if there is no such model, or it cannot be built or written.
    """
    target = to or _cached(name)
    model = load_model(name)
    if target is None:
        raise ModelError(
            f"there is no cache folder; name one with {CACHE_VARIABLE}, or use --build-to"
        )

    def fill(folder: Path) -> None:
        write(folder, model, options, on_progress)
        if not to:
            discard(target)

    try:
        if to and to.exists():
            raise ModelError(f"{to} exists already; name a new folder")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        put_folder(target, fill)
        if not to:
            prune(target.parent, keep=target, max_bytes=0)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written ({error.strerror or error})") from error
    return open_built(target)


def _cached(name: str) -> Path | None:
    """Return where the built model is, or would be; None without a model or a cache folder."""
    folder, path = cache_folder(), find(name, places())
    if folder is None or path is None:
        return None
    try:
        state = files_state(name, path)
    except (OSError, ModelError):  # the loader reports best what is wrong
        return None
    return folder / _FOLDER / hashlib.sha256(state.encode()).hexdigest()[:40] / _code()


@cache
def _code() -> str:
    return code_digest(Path(__file__).parent / f"{module}.py" for module in _MODULES)[:16]


def write(
    folder: Path,
    model: Model,
    options: BuildOptions,
    on_progress: OnProgress = lambda done, n, what: None,
) -> None:
    """Write all packages and tables into an empty folder; ``meta.json`` comes last.

    Raises `ModelError` if coremltools is missing, float16 cannot hold a weight, or the model has no
    such context; `OSError` if the folder cannot be written.
    """
    tools = coremltools()
    from streamd.engine.coreml.networks import save_package  # imports coremltools

    meta = Meta(
        name=model.name,
        weights=weights_digest(model.weights),
        coremltools=tools.__version__,
        dims=model.dims,
        alignment_heads=tuple(sorted(model.alignment_heads)),
        contexts=_contexts(model, options),
        bits=_BITS[options.weight_bits],
    )
    packages = [(name, list(of)) for name, of in groupby(functions(meta), lambda f: f.package)]
    n_steps = len(packages) + 1
    for done, (name, of) in enumerate(packages):
        on_progress(done, n_steps, name)
        save_package(folder / name, of, meta, model.weights)
    on_progress(len(packages), n_steps, GOLDEN)
    weights = model.weights
    np.save(folder / EMBEDDING, weights["decoder.token_embedding.weight"].astype(np.float16))
    np.save(folder / POSITIONS, weights["decoder.positional_embedding"].astype(np.float16))
    _save_golden(folder, model, meta)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    meta = msgspec.structs.replace(meta, sizes=sizes)
    (folder / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta)))
    on_progress(n_steps, n_steps, "")


def _contexts(model: Model, options: BuildOptions) -> tuple[int, ...]:
    full = model.dims.n_audio_ctx
    if not all(0 < n_ctx <= full for n_ctx in options.audio_contexts):
        raise ModelError(f"{model.name} has contexts from 1 to {full} positions")
    # The others are for those who cut the context with --audio-ctx.
    return tuple(sorted({*options.audio_contexts, full}))


def weights_digest(weights: Weights) -> str:
    """Return a SHA-256 of all parameters, whatever file they came from."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name]
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _save_golden(folder: Path, model: Model, meta: Meta) -> None:
    """Save what the reference computes from the start of a clip and a few tokens.

    The reference has the weights of the packages, so that an engine is judged without the error of
    rounding or compressing them.
    """
    dims, weights = model.dims, weights_held(meta, model.weights)
    n_ctx = max(1, meta.contexts[0] - _HIDDEN)
    mel = mel_of(model, clips()[0].samples, n_ctx)
    n_text = len(model.vocabulary)
    text = np.linspace(0, n_text - 1, min(_N_GOLDEN, dims.n_text_ctx) - 1, dtype=np.int64)
    tokens = [n_text + 1, *text.tolist()]  # the first is start-of-transcript
    reference = ReferenceEngine(dims, weights, alignment_heads=meta.alignment_heads)
    logits, alignment = forward(reference, mel, tokens)
    np.savez(
        folder / GOLDEN,
        mel=mel,
        tokens=np.array(tokens, np.int64),
        logits=logits,
        alignment=alignment,
    )
