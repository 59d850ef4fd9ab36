"""Parameters in safetensors files, one or several.

A matrix may be stored as int8 with a scale for each of its rows: beside ``X``, of type I8 and
shape (n_out, n_in), lies ``X_scale`` of shape (n_out, 1), as compressed-tensors names it. A row of
``X_offset``, shape (1, n_in), is added to each product, if it is there.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes  # noqa: F401 - with it, safetensors gives numpy arrays of bfloat16
import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from streamd.engine.formats.untrusted import existing, read_json
from streamd.engine.weights import INT8_ROWS, Stored, shown
from streamd.errors import ModelError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_SHARDS = 1000
_SCALE, _OFFSET = "_scale", "_offset"
_SCALE_TYPES = ("F16", "BF16", "F32")


class _ShardIndex(msgspec.Struct):
    """Which file has which parameter."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


def open_folder(folder: Path) -> dict[str, Stored]:
    """What ``model.safetensors`` holds, or else the files that its index names.

    Raises `ModelError` if files are missing, damaged, or the index does not fit them.
    """
    index = folder / INDEX
    if (folder / SINGLE).exists() or not index.exists():
        return _with_scales(open_file(folder / SINGLE))
    places = read_json(index, _ShardIndex).weight_map
    parts = {name: open_file(folder / name) for name in shards(index)}
    for tensor, name in places.items():
        if tensor not in parts[name]:
            raise ModelError(f"{folder / name}: lacks {shown(tensor)}, which {INDEX} has there")
    return _with_scales({tensor: parts[name][tensor] for tensor, name in places.items()})


def files(folder: Path) -> list[Path]:
    """The files that `open_folder` reads. Raises `ModelError`: the index is damaged."""
    if (folder / SINGLE).exists() or not (folder / INDEX).exists():
        return [folder / SINGLE]
    return [folder / INDEX, *(folder / name for name in shards(folder / INDEX))]


def shards(index: Path, *, ending: str = ".safetensors") -> list[str]:
    """The names of the files that an index distributes parameters to, all in its own folder.

    Raises `ModelError` if the index is missing, damaged, or names files anywhere else.
    """
    names = sorted(set(read_json(index, _ShardIndex).weight_map.values()))
    for name in names:
        plain = Path(name).name == name and "\\" not in name and name.isprintable()
        if not plain or not name.endswith(ending) or len(names) > _MAX_SHARDS:
            raise ModelError(f"{index}: {shown(name)!r} is no part of a model; get its files again")
    return names


def open_file(path: Path) -> dict[str, Stored]:
    """What the file holds; its header is checked, its data not read.

    Raises `ModelError` if the file is missing or damaged.
    """
    try:
        file: Any = safe_open(existing(path), framework="np")  # has no annotations
        return {
            name: Stored(
                path=path,
                shape=tuple(part.get_shape()),
                dtype=part.get_dtype(),
                read=partial(_read, path, partial(file.get_tensor, name)),
            )
            for name in file.keys()  # noqa: SIM118 - not a mapping
            for part in (file.get_slice(name),)
        }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error}); get the model's files again") from error


def _with_scales(stored: dict[str, Stored]) -> dict[str, Stored]:
    """Join each int8 matrix with its scales and its offset, which are no parameters themselves."""
    joined = dict(stored)
    for name, matrix in stored.items():
        scale, offset = stored.get(name + _SCALE), stored.get(name + _OFFSET)
        if matrix.dtype != "I8" or scale is None:
            continue
        _check_part(scale, name + _SCALE, (*matrix.shape[:1], 1), f"a scale for each row of {name}")
        parts = [matrix.read, scale.read]
        if offset is not None:
            shape = (1, *matrix.shape[1:])
            _check_part(offset, name + _OFFSET, shape, f"an offset for each column of {name}")
            parts.append(offset.read)
            del joined[name + _OFFSET]
        read = partial(_scaled, *parts)
        joined[name] = Stored(path=matrix.path, shape=matrix.shape, dtype=INT8_ROWS, read=read)
        del joined[name + _SCALE]
    return joined


def _check_part(part: Stored, name: str, shape: tuple[int, ...], what: str) -> None:
    if part.shape != shape or part.dtype not in _SCALE_TYPES:
        raise ModelError(
            f"{part.path}: {shown(name)} does not hold {shown(what)}; get the model's files again"
        )


def _scaled(
    read: Callable[[], NDArray[Any]],
    read_scale: Callable[[], NDArray[Any]],
    read_offset: Callable[[], NDArray[Any]] | None = None,
) -> NDArray[np.float32]:
    """Return the float32 matrix; `engine.onnx.builder.quantised` gives its integers again."""
    matrix = read().astype(np.float32) * read_scale().astype(np.float32)
    return matrix if read_offset is None else matrix + read_offset().astype(np.float32)


def _read(path: Path, get_tensor: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    try:
        return get_tensor()
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error}); get the model's files again") from error
