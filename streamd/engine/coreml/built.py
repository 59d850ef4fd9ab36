"""A built model on disk: its functions, which follow from `Meta`, its files, its golden vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.engine import Engine
from streamd.engine.check import Numerics, forward, numerics
from streamd.engine.coreml.package import (
    EMBEDDING,
    FORMS,
    GOLDEN,
    MAX_TOKENS,
    META,
    POSITIONS,
    STEPS,
    VERSION,
    Form,
    Function,
    FunctionKind,
    Meta,
    TensorSpec,
    logit_chunks,
    padded,
)
from streamd.errors import ModelError
from streamd.types import Mel

GOLDEN_TOLERANCE = 0.02
"""The largest distance from the golden logits and alignment. Half precision costs 1e-3, and the
Neural Engine also accumulates in half precision."""
_BUILD_AGAIN = "build it again: streamd models build NAME --engine coreml"


@dataclass(frozen=True)
class BuiltModel:
    """A built model on disk; nothing but `meta` is read before it is needed."""

    folder: Path
    meta: Meta

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Everything that its packages can do."""
        return functions(self.meta)

    @cached_property
    def embedding(self) -> NDArray[np.float16]:
        """The token embedding, (n_vocab, n_state), mapped."""
        return np.asarray(np.load(self.folder / EMBEDDING, mmap_mode="r"))

    @cached_property
    def positions(self) -> NDArray[np.float16]:
        """The decoder's positional embedding, (n_text_ctx, n_state), mapped."""
        return np.asarray(np.load(self.folder / POSITIONS, mmap_mode="r"))

    def context(self, n_ctx: int) -> int:
        """Return the smallest context of at least `n_ctx` positions. Raises `ValueError`."""
        return min(context for context in self.meta.contexts if n_ctx <= context)

    def find(
        self, kind: FunctionKind, form: Form, *, n_ctx: int = 0, k: int = 0
    ) -> tuple[Function, ...]:
        """Return the functions for a purpose: encoder parts in order, the longest cache first."""
        return tuple(
            f
            for f in self.functions
            if (f.kind, f.n_ctx, f.k) == (kind, n_ctx, k) and form in f.forms
        )

    def path(self, function: Function) -> Path:
        """Return the path of the package that contains a function."""
        return self.folder / function.package


def open_built(folder: Path) -> BuiltModel:
    """Read a built model's description and check that its files are complete.

    Raises `ModelError` if it is no built model, one of another version, or damaged.
    """
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
    except OSError as error:
        raise ModelError(f"{folder}: no Core ML model ({error.strerror or error})") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{folder / META}: damaged ({error}); {_BUILD_AGAIN}") from error
    if meta.version != VERSION:
        raise ModelError(f"{folder}: layout {meta.version}, not {VERSION}; {_BUILD_AGAIN}")
    for name, size in meta.sizes.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise ModelError(f"{file}: missing or damaged; {_BUILD_AGAIN}")
    return BuiltModel(folder, meta)


@dataclass(frozen=True, slots=True)
class Golden:
    """Golden vectors: a short decode as the float32 reference computed it.

    They let any machine judge an engine without the checkpoint. `mel` is (n_mels, 2 * n_ctx),
    `tokens` (n,), `logits` (n, n_vocab), `alignment` (n, n_heads, n_ctx). Each token attends to
    itself and those before it, at positions 0 to n - 1.
    """

    mel: Mel
    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    alignment: NDArray[np.float32]


def golden_vectors(built: BuiltModel) -> Golden:
    """Read the golden vectors of a built model. Raises `ModelError` if they are damaged."""
    try:
        with np.load(built.folder / GOLDEN) as file:
            return Golden(file["mel"], file["tokens"], file["logits"], file["alignment"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{built.folder / GOLDEN}: damaged ({error}); {_BUILD_AGAIN}") from error


def against_golden(engine: Engine[Any], golden: Golden) -> Numerics:
    """Run the golden vectors through an engine and measure the distance; NaN if it returns any."""
    found = forward(engine, golden.mel, golden.tokens.tolist())
    return numerics((golden.logits, golden.alignment), found)


def is_close(found: Numerics) -> bool:
    """Whether an engine agrees with the golden vectors as far as half precision allows."""
    # Both comparisons are false for NaN.
    return found.logits <= GOLDEN_TOLERANCE and found.alignment <= GOLDEN_TOLERANCE


def functions(meta: Meta) -> tuple[Function, ...]:
    """Return all functions of a built model, package by package."""
    decoders = (function for form in FORMS for function in _decoder(meta, form))
    return (*_encoder(meta), *(_cross(meta, n_ctx) for n_ctx in meta.contexts), *decoders)


def _encoder(meta: Meta) -> Iterator[Function]:
    dims, n_parts = meta.dims, len(meta.layers)
    for part in range(n_parts):
        stem = "encoder" if n_parts == 1 else f"encoder_{part + 1}of{n_parts}"
        for n_ctx in meta.contexts:
            width = padded(n_ctx)
            first = TensorSpec("mel", (1, dims.n_mels, 1, 2 * width))
            later = TensorSpec("hidden", (1, dims.n_audio_state, 1, width))
            yield Function(
                package=f"{stem}.mlpackage",
                name=f"ctx{n_ctx}",
                kind="encode",
                forms=FORMS,
                inputs=(later if part else first, TensorSpec("mask", (1, width, 1, 1))),
                outputs=(_encoded(meta, n_ctx),),
                n_ctx=n_ctx,
                part=part,
            )


def _encoded(meta: Meta, n_ctx: int) -> TensorSpec:
    return TensorSpec("encoded", (1, meta.dims.n_audio_state, 1, padded(n_ctx)))


def _caches(meta: Meta, which: str, n: int) -> tuple[TensorSpec, ...]:
    shape = (meta.dims.n_text_layer, meta.dims.n_text_head, meta.d_head, n)
    return tuple(TensorSpec(f"{which}_{part}", shape) for part in "kv")


def _cross(meta: Meta, n_ctx: int) -> Function:
    return Function(
        package="cross.mlpackage",
        name=f"ctx{n_ctx}",
        kind="cross",
        forms=("mix",),
        inputs=(_encoded(meta, n_ctx),),
        outputs=_caches(meta, "cross", padded(n_ctx)),
        n_ctx=n_ctx,
    )


def _decoder(meta: Meta, form: Form) -> Iterator[Function]:
    if form == "state":
        yield from (_load(meta, n_ctx) for n_ctx in meta.contexts)
    for n_slots in meta.slots(form):
        yield from (_pass(meta, form, "step", k=k, n_slots=n_slots) for k in STEPS)
        yield _pass(meta, form, "align", k=MAX_TOKENS, n_slots=n_slots)


def _load(meta: Meta, n_ctx: int) -> Function:
    n_slots = meta.slots("state")[0]
    return Function(
        package="decoder_state.mlpackage",
        name=f"load{n_ctx}",
        kind="load",
        forms=("state",),
        inputs=(_encoded(meta, n_ctx),),
        outputs=(TensorSpec("loaded", (1, 1, 1, 32)),),
        states=(*_caches(meta, "self", n_slots), *_caches(meta, "cross", meta.n_keys)),
        n_ctx=n_ctx,
        n_slots=n_slots,
    )


def _pass(meta: Meta, form: Form, kind: FunctionKind, *, k: int, n_slots: int) -> Function:
    """Describe a "step" or "align" of k tokens on a cache of n_slots."""
    dims = meta.dims
    in_state = form == "state"
    suffix = "" if n_slots == meta.slots(form)[0] else f"_t{n_slots}"
    own, cross = _caches(meta, "self", n_slots), _caches(meta, "cross", meta.n_keys)
    inputs = [TensorSpec("x", (1, dims.n_text_state, 1, k))]
    if in_state:
        inputs.append(TensorSpec("put", (1, 1, k, n_slots)))
    n_seen = n_slots if in_state else n_slots + padded(k)
    inputs.append(TensorSpec("mask", (1, 1, k, n_seen)))
    inputs.append(TensorSpec("cross_mask", (1, 1, 1, meta.n_keys)))
    n_chunks, n_each = logit_chunks(dims.n_vocab) if kind == "step" else (0, 0)
    outputs = [TensorSpec(f"logits{i}", (1, k, 1, n_each)) for i in range(n_chunks)]
    outputs.append(TensorSpec("alignment", (1, len(meta.alignment_heads), k, meta.n_keys)))
    if not in_state:
        inputs += own
        outputs += _caches(meta, "new", k)
    return Function(
        package=f"decoder_{form}.mlpackage",
        name=f"{kind}{k}{suffix}",
        kind=kind,
        forms=(form,),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        states=(*own, *cross) if in_state else cross,
        k=k,
        n_slots=n_slots,
    )
