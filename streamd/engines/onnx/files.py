"""Builds engines in memory, writes their files, and opens them.

Such files are the graphs as ONNX Runtime optimised them, and the weights in its kernels' order, to
be mapped. They suit one version of ONNX Runtime on one kind of processor.
"""

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from streamd.engines import Precision
from streamd.engines.onnx.batch import OnnxTogether
from streamd.engines.onnx.onnx_engine import Buffers, EngineSessions, OnnxEngine, RowsOf, TokenRows
from streamd.engines.onnx.sessions import (
    FAILURES,
    WEIGHTS,
    engine_error,
    new_session,
    open_session,
    run_options,
    save_optimised,
)
from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.models.model import Model
from streamd.models.silence import Average
from streamd.system.disk import discard, sha256
from streamd.system.heap import trim
from streamd.types import Mel

if TYPE_CHECKING:
    from streamd.engines.onnx.builder import Graph

_GRAPHS, _SILENCE, _EMBEDDING = ("encoder.onnx", "decoder.onnx"), "silence.npz", "embedding.npy"
_MANY = "decoder_many.onnx"
_CROSS = "cross.onnx"
_OTHERS = (_MANY, _CROSS, _SILENCE, _EMBEDDING)
FILES = (*(name + suffix for name in _GRAPHS for suffix in ("", WEIGHTS)), *_OTHERS)
"""The files that `save` writes."""
_OUTPUT = "output.npy"
OPTIONAL = (_OUTPUT, _CROSS + WEIGHTS)
"""More files: of models whose output layer is not the embeddings, and of all but tiny ones."""
log = logging.getLogger(__name__)


def _in_memory(matrix: NDArray[Any]) -> RowsOf:
    return lambda tokens: matrix[tokens].astype(np.float32)


class _InFile:
    """Rows of a matrix that `np.save` wrote, read on demand.

    If the file were mapped, the system would bring its neighbours into memory with each row, and
    soon most of it: 40 MB for tiny.en. Raises `ValueError` if there is no such matrix.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        np.lib.format.read_magic(self._file)
        (_, self._width), _, self._dtype = np.lib.format.read_array_header_1_0(self._file)
        self._begin = self._file.tell()

    def __call__(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        n_bytes, file = self._width * self._dtype.itemsize, self._file.fileno()
        rows = [os.pread(file, n_bytes, self._begin + n_bytes * at) for at in tokens.tolist()]
        found = np.frombuffer(b"".join(rows), self._dtype).reshape(len(rows), self._width)
        return found.astype(np.float32)


def build(model: Model, *, threads: int = 2, precision: Precision = "float32") -> OnnxEngine:
    """Make an engine in memory; the weights must not change any more.

    Without states of silence every window is encoded at the full context. Decoders give the scores
    of the alignment heads, at least one, sorted by layer and head. Two `threads` suit one stream; a
    server does better with 1 and several inference threads. Raises `EngineError` if ONNX Runtime
    refuses the graphs.
    """
    # here because few starts need to write graphs
    from streamd.engines.onnx import graphs

    arrays: list[NDArray[Any]] = []

    def open_graph(make: "Callable[[], Graph]") -> InferenceSession:
        made = make()
        arrays.extend(made.tensors.values())
        return new_session(made.model, threads, tensors=made.tensors)

    made = graphs.graphs(model, precision)
    encoder, decoder = map(open_graph, (made.encoder, made.decoder))
    embeddings = graphs.embedding(model.weights, precision)
    outputs = graphs.output(model.weights, precision)
    rows = TokenRows(_in_memory(embeddings), _in_memory(embeddings if outputs is None else outputs))
    # one batched decoder for all batches
    batch = partial(OnnxTogether, many=cache(partial(open_graph, made.many)))
    opened = (lambda: encoder, lambda: decoder, partial(open_graph, made.cross))
    return OnnxEngine(
        model.dims,
        EngineSessions(*opened, batch=batch, arrays=arrays),
        rows=rows,
        buffers=Buffers(graphs.silence_rows(model, precision), model.dims.n_audio_ctx),
    )


def save(folder: Path, model: Model, precision: Precision) -> None:
    """Write the files from which `open_folder` makes the same engine as `build` does.

    Raises `EngineError` if ONNX Runtime refuses the graphs, or cannot write there.
    """
    # for the reason above
    from streamd.engines.onnx import graphs

    made = graphs.graphs(model, precision)
    for name, make in zip(_GRAPHS, (made.encoder, made.decoder), strict=True):
        _save(make, folder / name)
    # Its weights are those of the other decoder, in the same order: they share a file, whose pages
    # are in memory once.
    shared = folder / (_GRAPHS[1] + WEIGHTS)
    before = sha256(shared)
    _save(made.many, folder / _MANY, weights=shared.name)
    _save(made.cross, folder / _CROSS)
    if sha256(shared) != before:
        raise EngineError("the graphs of the decoder do not agree on their weights")
    np.save(folder / _EMBEDDING, graphs.embedding(model.weights, precision))
    if (outputs := graphs.output(model.weights, precision)) is not None:
        np.save(folder / _OUTPUT, outputs)
    with (folder / _SILENCE).open("wb") as file:
        # The stubs of numpy take a name that they do not know for `allow_pickle`, a bool.
        np.savez(file, **graphs.silence_rows(model, precision))  # type: ignore[arg-type]


def _save(make: "Callable[[], Graph]", place: Path, *, weights: str = "") -> None:
    """Write a graph as ONNX Runtime optimises it.

    It reads the tensors from a file, which it maps. If it got them in memory, it would copy each,
    besides packing it: 0.6 GB more for the encoder of large-v3-turbo.
    """
    with TemporaryDirectory(dir=place.parent) as raw:
        source = make().write(Path(raw))
        trim()  # the tensors
        save_optimised(source, place, weights=weights or place.name + WEIGHTS)


def make_silence_states(
    model: Model, windows: Sequence[tuple[int, Mel]], *, threads: int, precision: Precision
) -> Iterator[NDArray[np.float16]]:
    """Encode windows of speech at the full context; yield the average states of each layer.

    Each window is its number of positions with sound, and its log-mel (n_mels, 2 * n_audio_ctx).
    All go through a layer before the next one is loaded, so memory is needed for one at a time.
    `SilenceStates` consist of what is yielded. Raises `EngineError` if ONNX Runtime refuses a
    graph.
    """
    from streamd.engines.onnx.graphs import layer_graphs  # here for the reason above

    average = Average([n for n, _ in windows], model.dims)
    carried = [{"mel": mel[None]} for _, mel in windows]
    for graph in layer_graphs(model, precision):
        session = new_session(graph.model, threads, tensors=graph.tensors)
        names = [each.name for each in session.get_outputs()]
        options = run_options(shrinks="next" not in names)
        try:
            found = [
                dict(zip(names, session.run(names, each, options), strict=True)) for each in carried
            ]
        except FAILURES as error:
            raise engine_error(error) from error
        if "state" in names:
            yield average([each["state"] for each in found])
        carried = [{"x": each["next"]} for each in found if "next" in each]


def open_folder(
    folder: Path,
    dims: ModelDimensions,
    *,
    threads: int,
    urgent_threads: int = 0,
    recordings: bool = False,
) -> OnnxEngine:
    """Open a saved engine, and an urgent one if that has more threads; they share the files.

    For `recordings`, which do not need all of it, each session is opened when it is first used: it
    has the weights in memory once more. Raises `EngineError` if files are damaged, or another
    version of ONNX Runtime wrote them; with `recordings`, the first use of a session may raise it,
    and has removed the folder, so that the next start prepares the model anew.
    """
    several = [threads, urgent_threads] if urgent_threads > threads else [threads]
    try:
        embedding = output = _InFile(folder / _EMBEDDING)
        if (place := folder / _OUTPUT).exists():
            output = _InFile(place)
        rows = TokenRows(embedding, output)
        with np.load(folder / _SILENCE) as silence:
            buffers = Buffers(dict(silence), dims.n_audio_ctx)
    except (OSError, ValueError, BadZipFile) as error:
        log.error("the prepared model in %s is damaged", folder)  # noqa: TRY400 - no bug
        raise EngineError(f"the prepared model is damaged: {error}") from error

    def opened(n: int) -> OnnxEngine:
        encoder, decoder, cross, many = (
            partial(_open_file, folder / name, n) for name in (*_GRAPHS, _CROSS, _MANY)
        )
        batch = partial(OnnxTogether, many=cache(many))
        sessions = EngineSessions(encoder, decoder, cross, batch=batch)
        return OnnxEngine(dims, sessions, rows=rows, buffers=buffers)

    engine, *urgent = map(opened, several)
    engine.urgent = urgent[0] if urgent else None
    if not recordings:
        for each in (engine, *urgent):
            each.open()
    return engine


def _open_file(file: Path, threads: int) -> InferenceSession:
    try:
        return open_session(file, threads, by_priority=file.name == _GRAPHS[1])
    except EngineError as error:
        discard(file.parent)
        raise EngineError(
            f"the prepared model in {file.parent} was damaged and is removed ({error}): start again"
        ) from error
