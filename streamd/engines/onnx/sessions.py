"""Sessions of ONNX Runtime: how they are opened and run, and the memory that they share."""

import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import (
    ExecutionOrder,
    GraphOptimizationLevel,
    InferenceSession,
    IOBinding,
    OrtAllocatorType,
    OrtArenaCfg,
    OrtMemoryInfo,
    OrtMemType,
    OrtValue,
    RunOptions,
    SessionOptions,
    create_and_register_allocator,
)
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from streamd.errors import EngineError, EngineMemoryError
from streamd.system.disk import in_utf8

WEIGHTS = ".weights"
_ARENA_BYTES = 16 * 1024**2
"""Size of the arena for temporary results of all sessions; what was ever in use stays resident.

What exceeds it is given back when a window is encoded, unless several windows of a recording are
computed at a time. What runs next needs it again: to get its pages from the system each time takes
up to a quarter of the CPU time.
"""

FAILURES = (
    ort.EPFail,
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.InvalidProtobuf,
    ort.NoSuchFile,
    ort.NotImplemented,
    ort.RuntimeException,
    RuntimeError,  # what a run with bound memory raises for all of these
)
"""ONNX Runtime's exceptions have no common base of their own."""

_SPIN_US = "20"
"""How long (µs) an idle thread spins before it sleeps: about as long as waking it takes.

This makes a step of `base` a fifth faster on an idle machine (benchmarks/RESULTS.md, "What
helped").
"""


Open = Callable[[], InferenceSession]
"""Opens a session, or returns the one that is open."""


_kept_for = weakref.WeakSet[Any]()
"""Those for whom the arena of `_share_arena` stays as large as it is after a window."""


def keep_arena(user: object, shrink: Callable[[], object]) -> None:
    """Let the arena be as large as it is while `user` lives; then `shrink` runs a session."""
    _kept_for.add(user)
    weakref.finalize(user, shrink).atexit = False


def run(
    session: InferenceSession,
    io: IOBinding,
    inputs: Mapping[str, NDArray[Any]],
    results: Mapping[str, NDArray[np.float32]],
    *,
    shrinks: bool = False,
) -> None:
    """Run a session on its bound memory and these arrays.

    With `shrinks`, the arena shrinks after it unless `keep_arena` forbids it. Raises `EngineError`.
    """
    for name, array in inputs.items():
        io.bind_cpu_input(name, array)
    for name, result in results.items():
        io.bind_output(name, "cpu", 0, np.float32, result.shape, result.ctypes.data)
    try:
        session.run_with_iobinding(io, run_options(shrinks=shrinks and not _kept_for))
    except FAILURES as error:
        raise engine_error(error) from error


@cache
def _share_arena() -> None:
    """Make all sessions share one arena for temporary memory instead of the heap.

    On the heap it fragments until all of it is resident: 25 MB more with tiny.en.
    """
    place = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
    # What exceeds it is one block for all that a window of a large model needs, of which only what
    # is in use is resident: of several blocks, the rests add up.
    settings = {
        "arena_extend_strategy": 0,
        "initial_chunk_size_bytes": _ARENA_BYTES,
        "initial_growth_chunk_size_bytes": 4 * _ARENA_BYTES,
    }
    create_and_register_allocator(place, OrtArenaCfg(settings))


@cache
def run_options(*, shrinks: bool) -> RunOptions:
    """Return options of a run; with `shrinks`, the arena shrinks to its initial size after it."""
    options = RunOptions()
    if shrinks:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    # The default. ONNX Runtime 1.32 asks for it before each run, and catches the C++ exception that
    # tells that it is missing: 0.1 ms of a pass of 4 ms.
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


def new_session(
    model: bytes,
    threads: int,
    *,
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> InferenceSession:
    """Load a model whose weights are in `tensors`.

    The caller keeps the arrays while the session lives. Raises `EngineError` if ONNX Runtime
    refuses the model.
    """
    options = _options(threads)
    values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in (tensors or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    return _load(model, options)


def save_optimised(source: Path, place: Path, *, weights: str) -> None:
    """Write a graph from a file as ONNX Runtime optimises it, and its weights beside it.

    Raises `EngineError` if ONNX Runtime refuses the graph, or cannot write there.
    """
    options = _options(1)
    saved = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{saved}_file_name", weights)
    # so that two decoders' files have the same weights, although one needs a vector less
    options.add_session_config_entry(f"{saved}_min_size_in_bytes", "8192")
    # in the kernels' order, so that they can be used where they are mapped
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    with in_utf8(source) as read, in_utf8(place) as written:
        options.optimized_model_filepath = written
        _load(read, options)


def open_session(file: Path, threads: int, *, by_priority: bool) -> InferenceSession:
    """Load a model that was saved. Raises `EngineError` if ONNX Runtime refuses it."""
    options = _options(threads)
    # it was optimised before it was saved
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    if by_priority:
        # By default, a decoder that was saved widens the sound's keys and values for all layers
        # before it uses them: 36 MB more for base at the full context.
        options.execution_order = ExecutionOrder.PRIORITY_BASED
    with in_utf8(file) as name:
        return _load(name, options)


def _load(model: bytes | str, options: SessionOptions) -> InferenceSession:
    try:
        return InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except FAILURES as error:
        raise engine_error(error) from error


def _options(threads: int) -> SessionOptions:
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, not printed
    # It would keep a plan of the memory for each combination of shapes, and nearly every pass has
    # its own: 3 MB in a minute of speech, and as much again of holes in the heap between them.
    options.enable_mem_pattern = False
    _share_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # threads that spin between two runs take the cores from the other session and from other
    # programs: twice as slow on two cores
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    return options


def engine_error(error: Exception) -> EngineError:
    """Return the error to raise for one of `FAILURES`."""
    reason = str(error).strip().splitlines()[0]
    if "Failed to allocate memory" in reason:  # its arena says so, with no type or code of its own
        return EngineMemoryError("ONNX Runtime found too little memory: free some")
    return EngineError(f"ONNX Runtime failed: {reason}; try another version of onnxruntime")


def n_heads(session: InferenceSession) -> int:
    """Return the number of alignment heads of a decoder's graph."""
    shapes = {each.name: each.shape for each in session.get_outputs()}
    n_heads: int = shapes["alignment"][1]
    return n_heads
