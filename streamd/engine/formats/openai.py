"""openai-whisper's checkpoints, and fine-tunes saved like them: a ``.pt`` file of torch's.

That is a zip file with a pickle, which says what there is, and a file of numbers per storage. It
has dimensions and parameters but no vocabulary; OpenAI's ship with streamd.
"""

import struct
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamd.engine import ModelDimensions
from streamd.engine.formats.pickled import NotPlainError, Tensor, unpickle
from streamd.engine.model import MIN_AUDIO_CTX, Model, is_whisper, only_language, usual_heads
from streamd.engine.vocabulary import openai_vocabulary
from streamd.engine.weights import Stored, gather, shown
from streamd.errors import ModelError

MAGIC = b"PK\x03\x04"
_MAX_DESCRIPTION = 2_000_000
"""Bytes of the pickle; that of large-v3, the model with the most tensors, has 0.2 MB."""
_TYPES: dict[str, tuple[str, DTypeLike]] = {
    "torch HalfStorage": ("F16", "<f2"),
    "torch BFloat16Storage": ("BF16", ml_dtypes.bfloat16),
    "torch FloatStorage": ("F32", "<f4"),
}
_FAILURES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
"""What `zipfile` raises on damaged and on encrypted files."""


def load(path: Path, name: str) -> Model:
    """Load the file; nothing in it is executed.

    Raises
    ------
    ModelError
        It is damaged, holds anything but parameters, or is of another architecture.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            folder = _folder(archive)
            dims, tensors = _contents(path, archive, f"{folder}/data.pkl")
            byte_order = f"{folder}/byteorder"
            if byte_order in archive.namelist() and _entry(archive, byte_order) != b"little":
                raise ModelError(f"{path}: written on a big-endian machine; save it on another")
            vocabulary = openai_vocabulary(path, dims.n_vocab)
            stored = {
                parameter: _stored(path, archive, folder, tensor)
                for parameter, tensor in tensors.items()
            }
            weights = gather(path, dims, stored)
    except _FAILURES as error:
        raise ModelError(f"{path}: damaged ({error}); get the model's file again") from error
    return Model(
        name=name,
        dims=dims,
        weights=weights,
        vocabulary=vocabulary,
        alignment_heads=usual_heads(path, dims),
        language=only_language(dims),
        min_audio_ctx=min(MIN_AUDIO_CTX, dims.n_audio_ctx),
    )


def _folder(archive: zipfile.ZipFile) -> str:
    """Where in the archive everything lies: torch calls it after the file it was saved as."""
    for entry in archive.infolist():
        if entry.filename.endswith("/data.pkl"):
            return entry.filename.removesuffix("/data.pkl")
    raise zipfile.BadZipFile("not a checkpoint: it has no data.pkl")


def _contents(
    path: Path, archive: zipfile.ZipFile, name: str
) -> tuple[ModelDimensions, dict[str, Tensor]]:
    if archive.getinfo(name).file_size > _MAX_DESCRIPTION:
        raise ModelError(f"{path}: its description is larger than any model's")
    try:
        checkpoint = unpickle(_entry(archive, name))
        if type(checkpoint) is not dict:
            raise NotPlainError("is no dict")
        dims = msgspec.convert(checkpoint.get("dims"), ModelDimensions)
    except (NotPlainError, msgspec.ValidationError) as error:
        raise ModelError(
            f"{path}: {error}; only checkpoints as openai-whisper has them are read"
        ) from error
    tensors: object = checkpoint.get("model_state_dict")
    plain = isinstance(tensors, dict) and all(type(each) is Tensor for each in tensors.values())
    if not (plain and is_whisper(dims)):
        raise ModelError(f"{path}: describes no Whisper model; get the model's file again")
    return dims, cast(dict[str, Tensor], tensors)


def _stored(path: Path, archive: zipfile.ZipFile, folder: str, tensor: Tensor) -> Stored:
    kind = tensor.storage.kind
    dtype, item = _TYPES.get(kind, (kind, ""))
    return Stored(
        path=path,
        shape=tensor.shape,
        dtype=dtype,
        read=partial(_values, archive, f"{folder}/data/{tensor.storage.key}", tensor, item),
    )


def _values(archive: zipfile.ZipFile, name: str, tensor: Tensor, item: DTypeLike) -> NDArray[Any]:
    data, n_items = _entry(archive, name), tensor.storage.n_items
    if len(data) < n_items * np.dtype(item).itemsize:
        raise zipfile.BadZipFile(f"{shown(name)} is too short")
    numbers = np.frombuffer(data, item, n_items)
    return np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :],
        tensor.shape,
        [step * numbers.itemsize for step in tensor.strides],
        writeable=False,
    )


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """An entry's bytes. They are as many as in the file, since torch does not compress."""
    try:
        entry = archive.getinfo(name)
    except KeyError as error:
        raise zipfile.BadZipFile(f"{shown(name)} is missing") from error
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise zipfile.BadZipFile(f"{shown(name)} is compressed")
    with archive.open(entry) as file:
        data = file.read()
    if len(data) != entry.file_size:
        raise zipfile.BadZipFile(f"{shown(name)} is cut off")
    return data
