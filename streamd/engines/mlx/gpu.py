"""MLX on a GPU in a worker process. This module does not import MLX: only the worker does."""

import platform
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

import numpy as np

from streamd.engines.mlx.arithmetic import AUTO, Arithmetic
from streamd.engines.supervised.remote import RemoteEngine
from streamd.engines.supervised.worker import Job, Report, Worker
from streamd.errors import EngineError, how_to_install
from streamd.models.silence import SilenceStates
from streamd.models.store import load_model
from streamd.system.processor import memory_bytes
from streamd.whisper.engine import run_in_order

_START_S = 120.0
"""Limit for reading the weights, and for the first window: CUDA compiles kernels for 12 s."""
_ANSWER_S = 20.0
"""Limit for a window or a pass: a wait for a GPU may last for ever."""
_LARGEST_SHARE = 0.5
"""The part of the machine's memory that the worker may take."""


def unavailable() -> str:
    """Say in a line why there is no GPU for MLX here, and what to do; empty if there may be."""
    if sys.platform == "darwin" and platform.machine() != "arm64":
        return "MLX needs a Mac with Apple silicon"
    if find_spec("mlx") is None:
        extra = "mlx" if sys.platform == "darwin" else "cuda"
        return f"MLX is not installed: {how_to_install(extra)}"
    return ""


@dataclass(frozen=True, slots=True)
class MlxCandidate:
    """A model on MLX, as a `Candidate` (streamd/engines/supervised/switchover.py).

    `model` is its name, folder or file; `silence` are its states of silence, which were made on the
    CPU. Tests run it `on_cpu`.
    """

    model: str
    silence: SilenceStates | None
    arithmetic: Arithmetic = AUTO
    on_cpu: bool = False
    answer_s: float = _ANSWER_S
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"the GPU ({self.arithmetic})")

    def load(self) -> RemoteEngine:
        """Load the model and run a window, which compiles what a window needs."""
        given = self.model, self.silence, self.arithmetic, self.on_cpu
        worker = Worker(Job(partial(serve, *given), self.name))
        worker.answer_s = _START_S
        worker.most_bytes = _LARGEST_SHARE * memory_bytes()
        worker.wait(_START_S)
        engine = RemoteEngine(worker)
        features = engine.encode(np.zeros((engine.dims.n_mels, 200), np.float32))
        run_in_order(engine.decoder(features, 4), [0] * 4, 0)
        worker.answer_s = self.answer_s
        return engine


def serve(
    name: str,
    silence: SilenceStates | None,
    arithmetic: Arithmetic,
    on_cpu: bool,
    report: Report,
) -> object:
    """Load an `MlxEngine` there. Raises `EngineError` without a GPU, unless it may be `on_cpu`."""
    import mlx.core as mx

    from streamd.engines.mlx.mlx_engine import MlxEngine

    if mx.default_device().type == mx.cpu and not on_cpu:
        raise EngineError("MLX finds no GPU here")
    report("reading the weights")
    return MlxEngine(replace(load_model(name), silence=silence), arithmetic)
