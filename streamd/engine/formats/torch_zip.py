"""What ``torch.save`` writes: a zip file with a pickle, which says what there is, and the numbers.

Each run of numbers, a storage, is an entry of its own; tensors are views of them. Source: torch
``serialization.py``.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamd.engine.formats.archive import entry, opened
from streamd.engine.formats.pickled import NotPlainError, Tensor, unpickle
from streamd.engine.weights import Stored, shown
from streamd.errors import ModelError

OLD_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""Begins what torch wrote before 1.6: pickles one behind the other."""
_MAX_DESCRIPTION = 2_000_000
"""Bytes of the pickle; that of large-v3, the model with the most tensors, has 0.2 MB."""
_TYPES: dict[str, tuple[str, DTypeLike]] = {
    "torch HalfStorage": ("F16", "<f2"),
    "torch BFloat16Storage": ("BF16", ml_dtypes.bfloat16),
    "torch FloatStorage": ("F32", "<f4"),
}


@dataclass(frozen=True, slots=True)
class TorchZip:
    """An open file; `content` is what was pickled, its tensors still on disk."""

    path: Path
    archive: zipfile.ZipFile
    folder: str
    content: object

    def stored(self, tensors: object) -> dict[str, Stored] | None:
        """The parameters in a part of the content, or None if it holds anything else."""
        if not isinstance(tensors, dict) or any(type(t) is not Tensor for t in tensors.values()):
            return None
        return {name: self._stored(tensor) for name, tensor in tensors.items()}

    def _stored(self, tensor: Tensor) -> Stored:
        kind = tensor.storage.kind
        dtype, item = _TYPES.get(kind, (kind, ""))
        name = f"{self.folder}/data/{tensor.storage.key}"
        read = partial(_values, self.archive, name, tensor, item)
        return Stored(path=self.path, shape=tensor.shape, dtype=dtype, read=read)


@contextmanager
def open_torch(path: Path) -> Iterator[TorchZip]:
    """Open the file until the block is left; nothing in it is executed.

    Raises
    ------
    ModelError
        It is damaged, or holds more than parameters and plain values.
    """
    _refuse_old(path)
    with opened(path) as archive:
        folder = _folder(path, archive)
        byte_order = f"{folder}/byteorder"
        if byte_order in archive.namelist() and entry(archive, byte_order) != b"little":
            raise ModelError(f"{path}: written on a big-endian machine; save it on another")
        description = f"{folder}/data.pkl"
        if archive.getinfo(description).file_size > _MAX_DESCRIPTION:
            raise ModelError(f"{path}: its description is larger than any model's")
        try:
            content = unpickle(entry(archive, description))
        except NotPlainError as error:
            raise ModelError(f"{path}: {error}; only files with plain weights are read") from error
        yield TorchZip(path, archive, folder, content)


def _refuse_old(path: Path) -> None:
    try:
        with path.open("rb") as file:
            old = file.read(len(OLD_MAGIC)) == OLD_MAGIC
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if old:
        raise ModelError(f"{path}: saved in the way of torch before 1.6; load and save it again")


def _folder(path: Path, archive: zipfile.ZipFile) -> str:
    """Where in the archive everything lies: torch calls it after the file it was saved as."""
    names = archive.namelist()
    folder = next((n.removesuffix("/data.pkl") for n in names if n.endswith("/data.pkl")), None)
    if folder is None:
        raise ModelError(f"{path}: a zip file, but no checkpoint: it has no data.pkl")
    if f"{folder}/constants.pkl" in names:
        raise ModelError(f"{path}: a TorchScript program, no checkpoint; save its state_dict")
    return folder


def _values(archive: zipfile.ZipFile, name: str, tensor: Tensor, item: DTypeLike) -> NDArray[Any]:
    data, n_items = entry(archive, name), tensor.storage.n_items
    if len(data) < n_items * np.dtype(item).itemsize:
        raise zipfile.BadZipFile(f"{shown(name)} is too short")
    numbers = np.frombuffer(data, item, n_items)
    return np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :],
        tensor.shape,
        [step * numbers.itemsize for step in tensor.strides],
        writeable=False,
    )
