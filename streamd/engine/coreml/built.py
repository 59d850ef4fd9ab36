"""A built model on disk: its functions, its files, its golden vectors."""

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
    GOLDEN,
    META,
    POSITIONS,
    VERSION,
    Form,
    Function,
    FunctionKind,
    Meta,
    functions,
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
