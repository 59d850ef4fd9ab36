"""A prepared model in a folder: written, checked, read.

Beside the engine's files it holds all else that is known of the model, so that its own files need
not be opened. What does not look as it was written is damaged.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from streamd.engine.model import Model
from streamd.engine.onnx import FILES, OnnxEngine, Precision, open_folder, save

_ABOUT = "model.msgpack"
_CHECKED = "checked.json"
_SAMPLE = 4096
_SAMPLES = 256
"""Pieces of the weights that are compared: what crashes and bad copies leave (holes, zeros, ends
missing) is never small, and reading all would take as long as loading."""


class _Checked(msgspec.Struct, frozen=True):
    """The size of each file, and one digest of what is compared of them."""

    sizes: dict[str, int]
    digest: str


def write(folder: Path, model: Model, precision: Precision) -> None:
    """Fill an empty folder.

    Raises
    ------
    EngineError
        ONNX Runtime refuses the model, or cannot write there.
    OSError
        It cannot be written.
    """
    heads = model.alignment_heads
    save(folder, model.dims, model.weights, alignment_heads=heads, precision=precision)
    (folder / _ABOUT).write_bytes(msgspec.msgpack.encode(replace(model, weights={})))
    (folder / _CHECKED).write_bytes(msgspec.json.encode(_check(folder)))


def read(folder: Path, *, threads: int) -> tuple[Model, OnnxEngine] | None:
    """The model (without its weights) and its engine; None if the folder is damaged or missing.

    Raises
    ------
    EngineError
        ONNX Runtime refuses the graphs.
    """
    try:
        written = msgspec.json.decode((folder / _CHECKED).read_bytes(), type=_Checked)
        if _check(folder) != written:
            return None
        model = msgspec.msgpack.decode((folder / _ABOUT).read_bytes(), type=Model)
    except (OSError, msgspec.DecodeError):
        return None
    return model, open_folder(folder, model.dims, threads=threads)


def _check(folder: Path) -> _Checked:
    names = (*FILES, _ABOUT)
    sizes = {name: (folder / name).stat().st_size for name in names}
    digest = hashlib.sha256()
    for name in names:
        for piece in _pieces(folder / name, sizes[name]):
            digest.update(piece)
    return _Checked(sizes, digest.hexdigest())


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """A small file whole, of a large one pieces that are evenly spread, the last one included."""
    step = max(_SAMPLE, size // _SAMPLES)
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            yield file.read(_SAMPLE)
        file.seek(max(0, size - _SAMPLE))
        yield file.read(_SAMPLE)
