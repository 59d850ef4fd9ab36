"""openai-whisper's checkpoints, and other files that ``torch.save`` writes.

Such a file is a zip archive with numbers and a pickle that describes tensors. Each run of numbers,
a storage, is an entry of its own; tensors are views of them. Python's `pickle` would call any
function that the file names. So the pickle is read by an interpreter of its own that knows only the
steps that ``torch.save`` writes for a model's parameters. A name in the file becomes a `Named`,
which cannot be called; only the results of three functions of torch are imitated. Sources: Python's
`pickletools`, torch ``serialization.py`` and ``_utils.py``.

A checkpoint has dimensions and parameters but no vocabulary; OpenAI's ship with streamd.
"""

import io
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamd.engine import ModelDimensions
from streamd.engine.formats import open_zip, read_start, shown, zip_entry
from streamd.engine.model import Contents, Outline, Stored, check_dimensions, only_language
from streamd.errors import ModelError

OLD_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The start of what torch wrote before 1.6: several pickles in a row."""
_MAX_DESCRIPTION = 2_000_000
"""Limit for the bytes of the pickle; large-v3's, with the most tensors, has 0.2 MB."""
_MAX_AXES = 4
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}


@dataclass(frozen=True, slots=True)
class Named:
    """A module's attribute, such as ``torch HalfStorage``, that is never looked up."""

    name: str


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
    machine, stream = _Unpickler(), io.BytesIO(data)
    try:
        while letter := stream.read(1):
            if letter == pickle.STOP:
                return machine.pop()
            opcode = _OPCODES[letter.decode("latin-1")]
            if opcode.name != "GLOBAL" and opcode.name not in _STEPS:
                raise NotPlainError(f"has a step {opcode.name} that no model needs")
            if opcode.name == "GLOBAL":  # `pickletools` would warn of escapes that are none
                lines = (stream.readline().decode("ascii").removesuffix("\n") for _ in range(2))
                machine.push(Named(" ".join(lines)))
            else:
                argument = opcode.arg.reader(stream) if opcode.arg else None
                _STEPS[opcode.name](machine, argument)
    except NotPlainError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        # raised by `pickletools`, and by the steps for a stack or memo with the wrong content
        raise NotPlainError(f"not a sound pickle: {shown(str(error))}") from error
    raise NotPlainError("not a sound pickle: it has no end")


@dataclass(slots=True)
class _Unpickler:
    """Pickle's stack, the outer stacks below its marks, and its memo."""

    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:  # noqa: ANN401 - whatever the file says
        return self.stack.pop()

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def push_tuple(self, n_items: int) -> None:
        items = [self.pop() for _ in range(n_items)]
        self.push(tuple(reversed(items)))

    def set_items(self, items: list[Any]) -> None:
        target, keys, values = self.stack[-1], items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values):
            raise NotPlainError("not a sound pickle: no dict where there should be one")
        if any(type(key) is not str for key in keys):  # nested ones can take forever to hash
            raise NotPlainError("has keys that are no text")
        target.update(zip(keys, values, strict=True))

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise NotPlainError("not a sound pickle: no list where there should be one")
        target.extend(items)

    def ignore_attributes(self) -> None:
        self.pop()  # a state_dict's are the versions of torch's modules
        if type(self.stack[-1]) is not dict:
            raise NotPlainError("sets attributes of what is no dict")

    def rebuild(self) -> None:
        """Push what the call of a known function would return, without calling it."""
        arguments, called = self.pop(), self.pop()
        if called == Named("collections OrderedDict") and arguments == ():
            self.push({})
        elif called == Named("torch._utils _rebuild_tensor_v2"):
            self.push(_tensor(*arguments[:4]))
        elif called == Named("torch._utils _rebuild_parameter") and isinstance(
            arguments[0], TensorView
        ):
            self.push(arguments[0])
        else:
            name = called.name if type(called) is Named else type(called).__name__
            raise NotPlainError(f"wants to call {shown(name)}, which is no part of a model")

    def refer(self) -> None:
        """Push the storage that a persistent id names, by torch's convention."""
        tag, kind, key, _, n_items = self.pop()
        sound = type(kind) is Named and type(key) is str and _is_count(n_items)
        if tag != "storage" or not sound:
            raise NotPlainError("refers to something that is no storage")
        self.push(Storage(kind.name, key, n_items))


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


_STEPS: dict[str, Callable[[_Unpickler, Any], object]] = {
    "PROTO": lambda _, __: None,
    "MARK": lambda m, _: m.mark(),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
        lambda m, value: m.push(value),
    ),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "TUPLE1": lambda m, _: m.push_tuple(1),
    "TUPLE2": lambda m, _: m.push_tuple(2),
    "TUPLE3": lambda m, _: m.push_tuple(3),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_to_mark())),
    "APPEND": lambda m, _: m.append([m.pop()]),
    "APPENDS": lambda m, _: m.append(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.set_items([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "BINPUT": lambda m, at: m.memo.update({at: m.stack[-1]}),
    "LONG_BINPUT": lambda m, at: m.memo.update({at: m.stack[-1]}),
    "BINGET": lambda m, at: m.push(m.memo[at]),
    "LONG_BINGET": lambda m, at: m.push(m.memo[at]),
    "BINPERSID": lambda m, _: m.refer(),
    "REDUCE": lambda m, _: m.rebuild(),
    "BUILD": lambda m, _: m.ignore_attributes(),
}
"""All steps but GLOBAL that ``torch.save`` writes with its protocol, 2."""


_TYPES: dict[str, tuple[str, DTypeLike]] = {
    "torch HalfStorage": ("F16", "<f2"),
    "torch BFloat16Storage": ("BF16", ml_dtypes.bfloat16),
    "torch FloatStorage": ("F32", "<f4"),
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
            dtype, item = _TYPES.get(tensor.storage.kind, (tensor.storage.kind, ""))
            entry = f"{self.folder}/data/{tensor.storage.key}"
            read = partial(_values, self.archive, entry, tensor, item)
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


def _values(
    archive: zipfile.ZipFile, name: str, tensor: TensorView, item: DTypeLike
) -> NDArray[Any]:
    data, n_items = zip_entry(archive, name), tensor.storage.n_items
    if len(data) < n_items * np.dtype(item).itemsize:
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
