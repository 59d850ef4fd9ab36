"""A model that was built for Core ML, as it lies on disk."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.layout import functions
from streamd.engine.coreml.package import (
    EMBEDDING,
    META,
    POSITIONS,
    VERSION,
    Form,
    Function,
    Kind,
    Meta,
)
from streamd.errors import ModelError


@dataclass(frozen=True)
class Built:
    """A built model on disk; nothing of it is read before it is asked for, but `meta`."""

    folder: Path
    meta: Meta

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Everything that its packages can do."""
        return functions(self.meta)

    @cached_property
    def embedding(self) -> NDArray[np.float16]:
        """The token embedding, (n_vocab, n_state), mapped."""
        return self._mapped(EMBEDDING)

    @cached_property
    def positions(self) -> NDArray[np.float16]:
        """The decoder's positional embedding, (n_text_ctx, n_state), mapped."""
        return self._mapped(POSITIONS)

    def _mapped(self, name: str) -> NDArray[np.float16]:
        table: NDArray[np.float16] = np.load(self.folder / name, mmap_mode="r")
        return table

    def context(self, n_ctx: int) -> int:
        """The smallest context that holds so many positions.

        Raises
        ------
        ValueError
            None does.
        """
        for context in self.meta.contexts:
            if n_ctx <= context:
                return context
        raise ValueError(f"{n_ctx} encoder positions, built for {self.meta.contexts[-1]}")

    def encoder(self, form: Form, n_ctx: int) -> tuple[Function, ...]:
        """The parts of the encoder for a context, in order."""
        return tuple(
            f for f in self.functions if f.kind == "encode" and form in f.forms and f.n_ctx == n_ctx
        )

    def find(
        self, kind: Kind, form: Form, *, n_ctx: int = 0, k: int = 0, n_slots: int = 0
    ) -> Function:
        """The function for a purpose; `n_slots` 0 means the longest cache.

        Raises
        ------
        LookupError
            It was not built.
        """
        if kind in ("step", "align", "load"):
            n_slots = n_slots or self.meta.slots(form)[0]
        for f in self.functions:
            if (f.kind, f.n_ctx, f.k, f.n_slots) == (kind, n_ctx, k, n_slots) and form in f.forms:
                return f
        raise LookupError(f"{self.folder} has no {kind} of {form}, {n_ctx=}, {k=}, {n_slots=}")

    def path(self, function: Function) -> Path:
        """The package that a function is in."""
        return self.folder / function.package


def open_built(folder: Path) -> Built:
    """Read what a folder says of itself, and whether its files are all there.

    Raises
    ------
    ModelError
        It is no built model, one of another version, or damaged.
    """
    again = "build it again: streamd models build NAME --engine coreml"
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
    except OSError as error:
        raise ModelError(f"{folder}: no Core ML model ({error.strerror or error})") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{folder / META}: damaged ({error}); {again}") from error
    if meta.version != VERSION:
        raise ModelError(f"{folder}: layout {meta.version}, not {VERSION}; {again}")
    for name, size in meta.sizes.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise ModelError(f"{file}: missing or damaged; {again}")
    return Built(folder, meta)
