"""ONNX Runtime's sessions as streamd wants them: quiet, asleep between runs, errors as ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnxruntime import (
    GraphOptimizationLevel,
    InferenceSession,
    OrtValue,
    SessionOptions,
    __version__,
)
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from streamd.errors import EngineError

WEIGHTS = ".weights"
_SAVED = "session.optimized_model_external_initializers"

RUNTIME_FAILURES = (
    ort.EPFail,
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.NoSuchFile,
    ort.NotImplemented,
    ort.RuntimeException,
    RuntimeError,  # what a run with bound memory raises for all of these
)
"""ONNX Runtime's exceptions have no common base of their own."""

_SPIN_US = "20"
"""For how long a thread looks for its next piece of work before it sleeps.

That is as long as waking it up takes: a step of `base` is faster by a fifth than without, and takes
no longer on a busy machine (benchmarks/RESULTS.md).
"""
_SPINNING = "1" if tuple(map(int, __version__.split(".")[:2])) >= (1, 31) else "0"
"""Older versions know no limit and would spin for milliseconds."""


def new_session(
    model: bytes | Path,
    threads: int,
    *,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    save: Path | None = None,
) -> InferenceSession:
    """Load a model: a file that was saved, or bytes with the weights in `tensors`.

    `save` is a file to be written, with another of its name and `WEIGHTS`, that loads faster.

    The arrays must not change while the session lives; the caller keeps them. Raises `EngineError`
    if ONNX Runtime refuses the model.
    """
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, not printed
    # what one window at full context took would stay with an arena for ever; it is no faster
    options.enable_cpu_mem_arena = False
    # a pool that spins between two runs takes the cores from the other session, and from
    # whatever else the machine does: twice as slow on two cores
    options.add_session_config_entry("session.intra_op.allow_spinning", _SPINNING)
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in (tensors or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    if save:
        options.optimized_model_filepath = str(save)
        options.add_session_config_entry(f"{_SAVED}_file_name", save.name + WEIGHTS)
        options.add_session_config_entry(f"{_SAVED}_min_size_in_bytes", "1024")
        # as the kernels want them, so that they are used where they are mapped
        options.add_session_config_entry(
            "session.save_external_prepacked_constant_initializers", "1"
        )
    if isinstance(model, Path):
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL  # it is done
    source = model if isinstance(model, bytes) else str(model)
    try:
        return InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except RUNTIME_FAILURES as error:
        raise engine_error(error) from error


def engine_error(error: Exception) -> EngineError:
    """What ONNX Runtime says, in one line."""
    reason = str(error).strip().splitlines()[0]
    return EngineError(f"ONNX Runtime failed: {reason}; try another version of onnxruntime")
