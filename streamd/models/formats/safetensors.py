"""Parameters in safetensors files, one or several.

A matrix ``X``, (n_out, n_in), may be stored as I8 with a scale for each row in ``X_scale``,
(n_out, 1), as compressed-tensors names it, and a row ``X_offset``, (1, n_in), to be added to each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.models.formats.reading import bad_file, existing, read_json, shown
from streamd.models.model import INT8_ROWS, Stored

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_SHARDS = 1000
SCALE, _OFFSET = "_scale", "_offset"
_SCALE_TYPES = ("F16", "BF16", "F32")


class _ShardIndex(msgspec.Struct):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


def open_folder(folder: Path) -> dict[str, Stored]:
    """Return what ``model.safetensors`` holds, or else the files that its index names.

    Raises `ModelError` if files are missing or damaged.
    """
    stored: dict[str, Stored] = {}
    for path in files(folder):
        if path.name != INDEX:
            stored |= open_file(path)
    return with_scales(stored)


def files(folder: Path, single: str = SINGLE) -> list[Path]:
    """Return the file of this name, or else its index and the files that have the parameters.

    Raises `ModelError` if the index is damaged, or names files outside its folder.
    """
    index = folder / f"{single}.index.json"
    if (folder / single).exists() or not index.exists():
        return [folder / single]
    names = sorted(set(read_json(index, _ShardIndex).weight_map.values()))
    for name in names:
        plain = Path(name).name == name and "\\" not in name and name.isprintable()
        if not plain or Path(name).suffix != Path(single).suffix or len(names) > _MAX_SHARDS:
            raise bad_file(index, f"{shown(name)!r} is no part of a model")
    return [index, *(folder / name for name in names)]


def open_file(path: Path) -> dict[str, Stored]:
    """Return what the file holds without reading its values.

    Raises `ModelError` if the file is missing, or its header is damaged.
    """
    # Here and below because a prepared model needs neither. With ml_dtypes, safetensors gives numpy
    # arrays of bfloat16.
    import ml_dtypes  # noqa: F401 - as said
    from safetensors import safe_open

    with _failures(path):
        file: Any = safe_open(existing(path), framework="np")  # has no annotations
        return {
            name: Stored(
                path=path,
                shape=tuple(part.get_shape()),
                dtype=part.get_dtype(),
                read=partial(_read, path, name),
            )
            for name in file.keys()  # noqa: SIM118 - not a mapping
            for part in (file.get_slice(name),)
        }


def _read(path: Path, name: str) -> NDArray[Any]:
    from safetensors import safe_open

    # Opened anew: what was read of a mapped file stays resident until it is closed.
    with _failures(path), safe_open(path, framework="np") as file:
        values: NDArray[Any] = file.get_tensor(name)
        return values


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise bad_file(path, f"damaged ({error})") from error


def with_scales(stored: dict[str, Stored]) -> dict[str, Stored]:
    """Join each int8 matrix with its scales and its offset, which are no parameters themselves."""
    joined = dict(stored)
    for name, matrix in stored.items():
        if matrix.dtype != "I8" or name + SCALE not in stored:
            continue
        parts = [matrix.read]
        for suffix, shape, what in (
            (SCALE, (*matrix.shape[:1], 1), "a scale for each row"),
            (_OFFSET, (1, *matrix.shape[1:]), "an offset for each column"),
        ):
            if part := joined.pop(name + suffix, None):
                if part.shape != shape or part.dtype not in _SCALE_TYPES:
                    why = f"{shown(name + suffix)} does not hold {what} of {shown(name)}"
                    raise bad_file(part.path, why)
                parts.append(part.read)
        joined[name] = replace(matrix, dtype=INT8_ROWS, read=partial(_scaled, *parts))
    return joined


def _scaled(
    read: Callable[[], NDArray[Any]],
    read_scale: Callable[[], NDArray[Any]],
    read_offset: Callable[[], NDArray[Any]] | None = None,
) -> NDArray[np.float32]:
    """Return the float32 matrix; `streamd.engines.onnx.builder` finds its integers again."""
    matrix = read().astype(np.float32) * read_scale().astype(np.float32)
    return matrix if read_offset is None else matrix + read_offset().astype(np.float32)
