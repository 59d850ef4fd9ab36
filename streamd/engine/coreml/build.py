"""Builds a model for Core ML: all packages and tables of `package`, in a folder.

It needs coremltools and numpy, no Mac and no other library. It takes minutes, so it tells how far
it is.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from streamd.engine import Weights
from streamd.engine.check import clips, forward, mel_of
from streamd.engine.coreml.held import weights_held
from streamd.engine.coreml.layout import functions
from streamd.engine.coreml.package import (
    EMBEDDING,
    GOLDEN,
    META,
    POSITIONS,
    Bits,
    Form,
    Meta,
    default_contexts,
)
from streamd.engine.coreml.tools import coremltools
from streamd.engine.model import Model
from streamd.engine.reference import ReferenceEngine
from streamd.errors import ModelError

log = logging.getLogger(__name__)

Told = Callable[[int, int, str], object]
"""Hears how many steps are done, of how many, and what comes next."""

_N_GOLDEN = 12
_HIDDEN = 10
"""Positions by which the golden context is shorter than the shortest that is built, so that masks
have something to hide."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build; `contexts` in encoder positions, none: those that suit the model.

    With `legacy`, for macOS 13 and 14 instead of 15 and later: a package for each function.
    """

    contexts: tuple[int, ...] = ()
    bits: Bits = 16
    legacy: bool = False


def write(folder: Path, model: Model, plan: Plan, told: Told = lambda done, n, what: None) -> None:
    """Fill an empty folder; ``meta.json`` comes last.

    Raises
    ------
    ModelError
        coremltools is missing, a weight is beyond float16, or the model has no such context.
    OSError
        It cannot be written.
    """
    tools = coremltools()
    from streamd.engine.coreml.program import save_package  # needs coremltools

    meta = Meta(
        name=model.name,
        weights=weights_digest(model.weights),
        coremltools=tools.__version__,
        dims=model.dims,
        alignment_heads=tuple(sorted(model.alignment_heads)),
        contexts=_contexts(model, plan),
        forms=_FORMS[plan.legacy],
        bits=plan.bits,
    )
    packages = [(name, list(of)) for name, of in groupby(functions(meta), lambda f: f.package)]
    n_steps = len(packages) + 1
    for done, (name, of) in enumerate(packages):
        told(done, n_steps, name)
        save_package(folder / name, of, meta, model.weights)
    told(len(packages), n_steps, GOLDEN)
    _save_tables(folder, model)
    _save_golden(folder, model, meta)
    meta = msgspec.structs.replace(meta, sizes=_sizes(folder))
    (folder / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta)))
    told(n_steps, n_steps, "")


_FORMS: dict[bool, tuple[Form, ...]] = {False: ("state", "mix"), True: ("io",)}


def _contexts(model: Model, plan: Plan) -> tuple[int, ...]:
    full = model.dims.n_audio_ctx
    if not plan.contexts:
        return default_contexts(model.dims, model.min_audio_ctx)
    if not all(0 < n_ctx <= full for n_ctx in plan.contexts):
        raise ModelError(f"{model.name} has contexts from 1 to {full} positions")
    # Windows that fail are read again at full context, so that one must be there.
    return tuple(sorted({*plan.contexts, full}))


def weights_digest(weights: Weights) -> str:
    """A SHA-256 of all parameters, whatever file they came from."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name]
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _save_tables(folder: Path, model: Model) -> None:
    for name, parameter in (
        (EMBEDDING, "decoder.token_embedding.weight"),
        (POSITIONS, "decoder.positional_embedding"),
    ):
        np.save(folder / name, model.weights[parameter].astype(np.float16))


def _save_golden(folder: Path, model: Model, meta: Meta) -> None:
    """What the reference makes of the beginning of a clip and a few tokens.

    It has the weights of the packages: an engine is judged by it, not their compression.
    """
    dims, weights = model.dims, weights_held(meta, model.weights)
    n_ctx = max(1, meta.contexts[0] - _HIDDEN)
    mel = mel_of(model, clips()[0].samples, n_ctx)
    n_text = len(model.vocabulary)
    text = np.linspace(0, n_text - 1, min(_N_GOLDEN, dims.n_text_ctx) - 1, dtype=np.int64)
    tokens = [n_text + 1, *text.tolist()]  # behind start-of-transcript
    reference = ReferenceEngine(dims, weights, alignment_heads=meta.alignment_heads)
    logits, alignment = forward(reference, mel, tokens)
    np.savez(
        folder / GOLDEN,
        mel=mel,
        tokens=np.array(tokens, np.int64),
        logits=logits,
        alignment=alignment,
    )


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)}
