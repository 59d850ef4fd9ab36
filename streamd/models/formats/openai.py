"""openai-whisper's checkpoints, and other files that ``torch.save`` writes.

Such a file is a zip archive with numbers and a pickle that describes tensors. Each run of numbers,
a storage, is an entry of its own; tensors are views of them. Python's `pickle` would call any
function that the file names. So the pickle is read by a subclass that knows only the steps that
``torch.save`` writes for a model's parameters. A name in the file becomes a `Named`, which imitates
the results of three functions and refuses all others. Sources: Python's ``pickle.py``, torch
``serialization.py`` and ``_utils.py``.

A checkpoint has dimensions and parameters but no vocabulary; OpenAI's ship with streamd.
"""

import io
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats.reading import item_type, open_zip, read_start, shown, zip_entry
from streamd.models.model import Contents, Outline, Stored, check_dimensions, only_language

OLD_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The start of what torch wrote before 1.6: several pickles in a row."""
_MAX_DESCRIPTION = 2_000_000
"""Limit for the bytes of the pickle; large-v3's, with the most tensors, has 0.2 MB."""
_MAX_AXES = 4
_InPython: Any = pickle._Unpickler  # typeshed does not know its attributes
_STEPS = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE, pickle.BINPERSID),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT, pickle.BINUNICODE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
)
"""What ``torch.save`` writes with its protocol, 2, but for what `_PlainUnpickler` does itself."""
_UNSOUND = (ValueError, IndexError, KeyError, TypeError, AttributeError, pickle.UnpicklingError)
"""What an unpickler raises for a stack or memo with the wrong content."""


@dataclass(frozen=True, slots=True)
class Named:
    """A module's attribute, such as ``torch HalfStorage``, that is never looked up."""

    name: str

    def __call__(self, *arguments: Any) -> object:  # noqa: ANN401 - whatever the file says
        """Return what the call of a known function would return."""
        match self.name:
            case "collections OrderedDict" if not arguments:
                return {}
            case "torch._utils _rebuild_tensor_v2":
                return _tensor(*arguments[:4])
            case "torch._utils _rebuild_parameter" if isinstance(arguments[0], TensorView):
                return arguments[0]
        raise NotPlainError(f"wants to call {shown(self.name)}, which is no part of a model")


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of numbers in the entry `key`; `kind` is torch's name of their type."""

    kind: str
    key: str
    n_items: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A view of a storage; offset and strides count items."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class NotPlainError(ValueError):
    """The pickle is damaged, or holds more than tensors and plain containers."""


def unpickle(data: bytes) -> object:
    """Return what the pickle holds: numbers, text, tuples, lists, dicts and tensors.

    Nothing in it is executed. Raises `NotPlainError` if it holds anything else, or ends early.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except NotPlainError:
        raise
    except EOFError as error:
        raise NotPlainError("not a sound pickle: it has no end") from error
    except _UNSOUND as error:
        raise NotPlainError(f"not a sound pickle: {shown(str(error))}") from error


def _refuse(unpickler: object) -> None:
    raise NotPlainError("has a step that no model needs")


class _PlainUnpickler(_InPython):  # type: ignore[misc] # it is Any
    """Python's unpickler in Python, which has a method for each step, without most of the steps.

    The one in C makes a table as long as the largest number under which the file remembers a value,
    so that a few bytes could fill the memory.
    """

    def find_class(self, module: str, name: str) -> Named:
        return Named(f"{module} {name}")

    def persistent_load(self, pid: Any) -> Storage:  # noqa: ANN401 - whatever the file says
        """Return the storage that a persistent id names, by torch's convention."""
        tag, kind, key, _, n_items = pid
        sound = type(kind) is Named and type(key) is str and _is_count(n_items)
        if tag != "storage" or not sound:
            raise NotPlainError("refers to something that is no storage")
        return Storage(kind.name, key, n_items)

    def _set_item(self) -> None:
        self._set([self.stack.pop(), self.stack.pop()][::-1])

    def _set_items(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        target, keys, values = self.stack[-1], items[::2], items[1::2]
        if type(target) is not dict:
            raise NotPlainError("not a sound pickle: no dict where there should be one")
        if any(type(key) is not str for key in keys):  # nested ones can take forever to hash
            raise NotPlainError("has keys that are no text")
        target.update(zip(keys, values, strict=True))

    def _ignore_attributes(self) -> None:
        self.stack.pop()  # a state_dict's are the versions of torch's modules
        if type(self.stack[-1]) is not dict:
            raise NotPlainError("sets attributes of what is no dict")

    dispatch: ClassVar = {
        **dict.fromkeys(range(256), _refuse),
        **{step[0]: _InPython.dispatch[step[0]] for step in _STEPS},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.BUILD[0]: _ignore_attributes,
    }


def _tensor(storage: object, offset: object, shape: object, strides: object) -> TensorView:
    """Return the tensor if all its items lie inside its storage."""
    sound = (
        type(storage) is Storage
        and _is_count(offset)
        and all(type(sizes) is tuple and all(map(_is_count, sizes)) for sizes in (shape, strides))
    )
    if not sound:
        raise NotPlainError("has a tensor without a storage, shape or strides")
    tensor = TensorView(storage, offset, shape, strides)  # type: ignore[arg-type] # checked above
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > _MAX_AXES:
        raise NotPlainError("has a tensor whose shape and strides differ")
    steps = ((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    if 0 in tensor.shape or tensor.offset + sum(steps) >= tensor.storage.n_items:
        raise NotPlainError("has a tensor that reaches beyond its storage")
    return tensor


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


_TYPES = {
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch FloatStorage": "F32",
}


@dataclass(frozen=True, slots=True)
class TorchZip:
    """An open file; `content` is what was pickled, with the tensors still on disk."""

    path: Path
    archive: zipfile.ZipFile
    folder: str
    content: object

    def stored(self, tensors: object) -> dict[str, Stored] | None:
        """Return the parameters in a part of the content, or None if it has anything else."""
        if not isinstance(tensors, dict):
            return None
        stored = {}
        for name, tensor in tensors.items():
            if type(tensor) is not TensorView:
                return None
            dtype = _TYPES.get(tensor.storage.kind, tensor.storage.kind)
            entry = f"{self.folder}/data/{tensor.storage.key}"
            read = partial(_values, self.archive, entry, tensor, dtype)
            stored[name] = Stored(self.path, tensor.shape, dtype, read)
        return stored


@contextmanager
def open_torch(path: Path) -> Iterator[TorchZip]:
    """Open the file until the block is left.

    Raises `ModelError` if it is damaged, or holds more than parameters and plain values.
    """
    if read_start(path, len(OLD_MAGIC)) == OLD_MAGIC:
        raise ModelError(f"{path}: saved in the way of torch before 1.6; load and save it again")
    with open_zip(path) as archive:
        folder = _folder(path, archive)
        byte_order = f"{folder}/byteorder"
        if byte_order in archive.namelist() and zip_entry(archive, byte_order) != b"little":
            raise ModelError(f"{path}: written on a big-endian machine; save it on another")
        description = f"{folder}/data.pkl"
        if archive.getinfo(description).file_size > _MAX_DESCRIPTION:
            raise ModelError(f"{path}: its description is larger than any model's")
        try:
            content = unpickle(zip_entry(archive, description))
        except NotPlainError as error:
            raise ModelError(f"{path}: {error}; only files with plain weights are read") from error
        yield TorchZip(path, archive, folder, content)


def _folder(path: Path, archive: zipfile.ZipFile) -> str:
    """Return the archive's only folder, which torch names after the file that it saved."""
    names = archive.namelist()
    folder = next((n.removesuffix("/data.pkl") for n in names if n.endswith("/data.pkl")), None)
    if folder is None:
        raise ModelError(f"{path}: a zip file, but no checkpoint: it has no data.pkl")
    if f"{folder}/constants.pkl" in names:
        raise ModelError(f"{path}: a TorchScript program, no checkpoint; save its state_dict")
    return folder


def _values(archive: zipfile.ZipFile, name: str, tensor: TensorView, dtype: str) -> NDArray[Any]:
    data, n_items, item = zip_entry(archive, name), tensor.storage.n_items, item_type(dtype)
    if len(data) < n_items * item.itemsize:
        raise zipfile.BadZipFile(f"{shown(name)} is too short")
    numbers = np.frombuffer(data, item, n_items)
    return np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :],
        tensor.shape,
        [step * numbers.itemsize for step in tensor.strides],
        writeable=False,
    )


_WEIGHTS = "model_state_dict"


def outline(path: Path) -> Outline:
    """Read the dimensions; a file with more than parameters is no Whisper model."""
    with open_torch(path) as file:
        content = _dict(file)
        try:
            dims = msgspec.convert(content.get("dims"), ModelDimensions)
        except msgspec.ValidationError as error:
            raise ModelError(
                f"{path}: {error}; only checkpoints as openai-whisper has them are read"
            ) from error
        check_dimensions(path, dims, usual=file.stored(content.get(_WEIGHTS)) is not None)
        return Outline(dims, only_language(dims))


@contextmanager
def contents(path: Path) -> Iterator[Contents]:
    """Open the file."""
    with open_torch(path) as file:
        yield Contents(file.stored(_dict(file).get(_WEIGHTS)) or {})


def files(path: Path) -> list[Path]:
    """Return the only file."""
    return [path]


def _dict(file: TorchZip) -> dict[str, Any]:
    return file.content if type(file.content) is dict else {}
