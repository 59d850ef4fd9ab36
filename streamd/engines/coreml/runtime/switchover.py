"""Moves captions to Core ML while they run.

Loading takes seconds on the GPU, and minutes on the Neural Engine the first time, and only then is
it known whether the unit computes what it should. So the model is loaded beside the engine that
serves and compared with the golden vectors, and then windows are switched to it. What was compiled
is kept for one built model, one build of macOS and one chip: another system may compile
differently, or reject what the last one accepted.
"""

import hashlib
import logging
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from streamd.engines.coreml.golden import against_golden, golden_vectors
from streamd.engines.coreml.package import META, BuiltModel
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLEngine, WorkerLimits
from streamd.engines.coreml.runtime.programs import PLACEMENTS, Unit, needed
from streamd.engines.coreml.runtime.worker import Job, Worker, WorkerLostError
from streamd.errors import EngineError, ModelError
from streamd.system.disk import discard, megabytes
from streamd.system.processor import memory_bytes, processor_name
from streamd.types import Mel
from streamd.whisper.engine import Decoder, Engine

log = logging.getLogger(__name__)

LOADING = WorkerLimits(start_s=3600.0, answer_s=120.0, deaths=1)
"""Compiling may take long; a placement that loses a worker before it serves is rejected."""
_LARGEST_SHARE = 0.5
"""Of the machine's memory, for a placement on trial: functions share their weights on disk, but in
memory Core ML may hold them once for each (coremltools #2351)."""
_COMPILED = "compiled-"


def compiled_folder(built: BuiltModel) -> Path:
    """Return the folder for the compiled packages on this machine.

    It is beside the built model; building the model again deletes it.
    """
    parts = ((built.folder / META).read_bytes().hex(), *machine())
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return built.folder.with_name(f"{_COMPILED}{built.folder.name}-{key}")


def make_compiled_folder(built: BuiltModel) -> Path:
    """Return it, created; delete those of earlier macOS versions.

    Raises `ModelError` if it cannot be made.
    """
    folder = compiled_folder(built)
    if not folder.is_dir():
        for old in folder.parent.glob(f"{_COMPILED}{built.folder.name}-*"):
            discard(old)
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ModelError(f"{folder.parent} cannot be written ({error.strerror})") from error
    return folder


@cache
def machine() -> tuple[str, str]:
    """Return the chip and the build of the system."""
    if sys.platform != "darwin":
        return processor_name(), platform.version()
    command = ("/usr/bin/sw_vers", "-buildVersion")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return processor_name(), done.stdout.strip()


SwitchingFeatures = tuple[Engine[Any], Any]
"""The engine that encoded a window, which must decode it too, and its features."""


class SwitchingEngine:
    """Runs windows on the current engine; an `Engine` (streamd/engines/__init__.py)."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.dims = engine.dims
        self.current: Engine[Any] = engine
        """The engine that encodes the next window, of the same model; any thread may set it. The
        old one is released when its last window is done."""

    @property
    def n_cheap(self) -> int:
        """That of the current engine."""
        return self.current.n_cheap

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        previous: SwitchingFeatures | None = None,
        n_reused: int = 0,
    ) -> SwitchingFeatures:
        """Encode a window on the current engine."""
        engine = self.current
        its_own = previous[1] if previous is not None and previous[0] is engine else None
        return engine, engine.encode(mel, audio_ctx=audio_ctx, previous=its_own, n_reused=n_reused)

    def decoder(self, features: SwitchingFeatures, n_slots: int) -> Decoder:
        """Return a decoder of the engine that encoded the window."""
        engine, encoded = features
        return engine.decoder(encoded, n_slots)


class _RefusedError(Exception):
    """A placement cannot be used, for the reason that the text gives."""


def take_over(
    switching: SwitchingEngine,
    job: Job,
    unit: Unit,
    *,
    limits: WorkerLimits,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Load the model on a unit, and switch to it if it is right; call this in its own thread.

    The ways to use the unit are tried in turn. If none is right, which is logged, the current
    engine goes on. An engine that serves has these `limits`. `is_stopped` tells that the program
    ends, and its workers with it, which is no failure. Raises `ModelError` if the built model is
    damaged.
    """
    golden = golden_vectors(job.built)
    trial = replace(LOADING, most_bytes=_LARGEST_SHARE * memory_bytes())
    for placement in PLACEMENTS[unit]:
        placed = replace(job, placement=placement)
        engine = CoreMLEngine(placed, trial)
        try:
            if unit == "ane":
                _prepare(placed)
            off = against_golden(engine, golden)
            if not off.acceptable:
                raise _RefusedError(
                    f"logits {off.logits:.2g} off, alignment {off.alignment:.2g}, at {off.where}"
                )
            used = engine.with_worker(Worker.used_bytes)
        except (EngineError, WorkerLostError, _RefusedError) as error:
            engine.close()
            if is_stopped():
                return
            log.warning("Core ML: not %s: %s", placement, _why(error))
            continue
        engine.limits = limits
        switching.current = engine
        log.info("Core ML: %s, %s", placement, megabytes(used))
        return
    log.info("Core ML: no way to use it works here; captions stay on the CPU")


def _why(error: Exception) -> str:
    # Of an engine, what its worker said.
    return str(error.__cause__ if isinstance(error, EngineError) else error)


def _prepare(job: Job) -> None:
    """Have Core ML compile all functions for the Neural Engine, one at a time, in the background.

    Each takes seconds to minutes, and memory for the compiler and the model. A worker that loads
    them afterwards finds them compiled. Raises `WorkerLostError`.
    """
    log.info("Core ML: compiling for the Neural Engine while captions continue")
    functions = needed(job.built, job.placement)
    worker = Worker(replace(job, functions=functions, serve=False))
    worker.wait(LOADING.start_s)
    worker.close()
