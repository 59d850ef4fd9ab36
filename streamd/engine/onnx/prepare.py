"""Makes engines: out of a model's weights, or out of files that were made of them before.

The files are the graphs as ONNX Runtime optimised them, and the weights in the order in which its
kernels read them, to be mapped. They are of use for that version on that kind of processor. To open
them takes neither the model's own files nor the library that writes graphs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from streamd.engine import ModelDimensions, Weights
from streamd.engine.onnx import OnnxEngine, Precision
from streamd.engine.onnx.sessions import WEIGHTS, new_session

_GRAPHS = ("encoder.onnx", "decoder.onnx")
FILES = tuple(name + suffix for name in _GRAPHS for suffix in ("", WEIGHTS))
"""What `save` writes."""


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
    EngineError
        ONNX Runtime refuses the graphs, or cannot write there.
    """
    from streamd.engine.onnx.graphs import graphs  # here for the reason above

    made = graphs(dims, weights, alignment_heads=alignment_heads, precision=precision)
    for name, graph in zip(_GRAPHS, made, strict=True):
        new_session(graph.model, threads=1, tensors=graph.tensors, save=folder / name)


def open_folder(folder: Path, dims: ModelDimensions, *, threads: int) -> OnnxEngine:
    """Make the engine that was saved in the folder.

    Raises
    ------
    EngineError
        ONNX Runtime refuses it: the files are damaged, or another version wrote them.
    """
    encoder, decoder = (new_session(folder / name, threads) for name in _GRAPHS)
    return OnnxEngine(dims, encoder, decoder)
