"""A built model on disk: its functions and its files."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.package import (
    EMBEDDING,
    MASKED,
    META,
    POSITIONS,
    SILENCE,
    VERSION,
    Function,
    Meta,
    functions,
    padded,
)
from streamd.engine.padding import Bank, Extent, bias, extend
from streamd.errors import ModelError
from streamd.types import Mel

BUILD_AGAIN = "build it again: streamd models build NAME --engine coreml"


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

    @cached_property
    def bank(self) -> Bank | None:
        """The states of silence that the packages hold."""
        return Bank(np.load(self.folder / SILENCE, mmap_mode="r")) if self.meta.bank else None

    def context(self, n: int) -> int:
        """Return the smallest context of at least `n` positions. Raises `ValueError`."""
        return min(context for context in self.meta.contexts if n <= context)

    def extend(self, mel: Mel, audio_ctx: int) -> tuple[Mel, Extent]:
        """Return what is computed of a window, as `padding.extend` does, on one of the contexts."""
        dims = self.meta.dims
        longer, extent = extend(mel, dims, bank=self.meta.bank, audio_ctx=audio_ctx)
        if not audio_ctx and self.context(extent.n) == dims.n_audio_ctx:
            return extend(mel, dims, bank=False)  # the full context has no bank
        return longer, extent

    def key_mask(self, extent: Extent) -> NDArray[np.float32]:
        """Return what is added to the scores of all positions that attention sees, (keys,)."""
        context = self.context(extent.n)
        added = np.full(self.meta.keys(context), MASKED, np.float32)
        added[: extent.n] = 0
        if len(added) > padded(context):
            biases = bias(self.meta.dims.n_audio_ctx)[extent.first :]
            first = padded(context) + extent.first
            added[first : first + len(biases)] = biases
        return added


def open_built(folder: Path) -> BuiltModel:
    """Read a built model's description and check that its files are complete.

    Raises `ModelError` if it is no built model, one of another version, or damaged.
    """
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
    except OSError as error:
        raise ModelError(f"{folder}: no Core ML model ({error.strerror or error})") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{folder / META}: damaged ({error}); {BUILD_AGAIN}") from error
    if meta.version != VERSION:
        raise ModelError(f"{folder}: layout {meta.version}, not {VERSION}; {BUILD_AGAIN}")
    for name, facts in meta.files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != facts.size:
            raise ModelError(f"{file}: missing or damaged; {BUILD_AGAIN}")
    return BuiltModel(folder, meta)


def check_files(built: BuiltModel) -> None:
    """Compare all files with their SHA-256, which takes a second per gigabyte or two.

    Raises `ModelError` that names the first damaged one.
    """
    for name, facts in built.meta.files.items():
        if sha256(built.folder / name) != facts.sha256:
            raise ModelError(f"{built.folder / name}: damaged; {BUILD_AGAIN}")


def sha256(path: Path) -> str:
    """Return a file's SHA-256. Raises `ModelError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
