"""Makes engines: out of a model's weights, or out of files that were made of them before.

Such a folder has the two graphs and one file with the weights of both, which ONNX Runtime maps. To
open it takes neither the model's own files nor the library that writes graphs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions, Weights
from streamd.engine.onnx import OnnxEngine, Precision
from streamd.engine.onnx.sessions import new_session

GRAPHS = ("encoder.onnx", "decoder.onnx")
TENSORS = "tensors"
"""The file with the weights of both graphs."""
_PAGE = 4096
"""ONNX Runtime maps whole pages."""


def build(
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    threads: int = 2,
    precision: Precision = "float32",
) -> OnnxEngine:
    """Make an engine in memory; `weights` must not change any more.

    `alignment_heads`: (decoder layer, head) pairs, at least one; `step` returns their scores,
    sorted by layer and head. `threads`: 2 suit one stream; a server does better with 1 and several
    inference threads.

    Raises
    ------
    EngineError
        ONNX Runtime refuses the graphs.
    """
    from streamd.engine.onnx.graphs import graphs  # here because few starts need to write graphs

    sessions = []
    arrays: list[NDArray[Any]] = []
    for graph in graphs(dims, weights, alignment_heads=alignment_heads, precision=precision):
        sessions.append(new_session(graph.model, threads, tensors=graph.tensors))
        arrays += graph.tensors.values()
    encoder, decoder = sessions
    return OnnxEngine(dims, encoder, decoder, arrays=arrays)


def save(
    folder: Path,
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    precision: Precision,
) -> None:
    """Write down what `open_folder` needs to make the same engine as `build` does.

    Raises
    ------
    OSError
        It cannot be written; what was written so far is still there.
    """
    from streamd.engine.onnx.builder import with_places  # here for the reason above
    from streamd.engine.onnx.graphs import graphs

    made = graphs(dims, weights, alignment_heads=alignment_heads, precision=precision)
    with (folder / TENSORS).open("wb") as file:
        for name, graph in zip(GRAPHS, made, strict=True):
            places = {key: _append(file, array) for key, array in graph.tensors.items()}
            (folder / name).write_bytes(with_places(graph, TENSORS, places))


def open_folder(folder: Path, dims: ModelDimensions, *, threads: int) -> OnnxEngine:
    """Make the engine that was saved in the folder.

    Raises
    ------
    EngineError
        ONNX Runtime refuses it: the files are damaged, or another version wrote them.
    """
    encoder, decoder = (new_session(folder / name, threads) for name in GRAPHS)
    return OnnxEngine(dims, encoder, decoder)


def _append(file: BinaryIO, array: NDArray[Any]) -> tuple[int, int]:
    """Write an array on a new page; its offset and length."""
    offset = -(-file.tell() // _PAGE) * _PAGE
    file.seek(offset)
    file.write(np.ascontiguousarray(array).data)
    return offset, array.nbytes
