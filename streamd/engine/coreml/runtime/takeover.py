"""Moves captions to Core ML while they run: to the GPU first, then to the Neural Engine.

Compiling for the Neural Engine takes minutes, and only then is it known whether it is right, and
faster. So each placement is loaded beside the engine that serves, compared with the golden
vectors, and then with the time of the current engine. Only then are windows switched to it. The
outcome is kept for the next start. It holds for one built model, one build of macOS and one chip:
another system may compile differently, or reject what the last one accepted.
"""

import hashlib
import logging
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from streamd.disk import discard, put_file
from streamd.engine import Engine
from streamd.engine.coreml.built import BuiltModel
from streamd.engine.coreml.golden import against_golden, golden_vectors
from streamd.engine.coreml.package import META
from streamd.engine.coreml.runtime.engine import CoreMLEngine
from streamd.engine.coreml.runtime.library import ON_GPU, ON_NEURAL_ENGINE, Placement
from streamd.engine.coreml.runtime.worker import Job, WorkerLimits
from streamd.engine.prepared import fastest_ms, window_ms
from streamd.engine.switching import SwitchingEngine
from streamd.errors import EngineError
from streamd.processor import processor_name

log = logging.getLogger(__name__)

Wanted = Literal["auto", "ane", "gpu"]
"""The fastest placement, or the first correct one on this unit, however slow."""

TRIAL_LIMITS = WorkerLimits(start_s=3600.0, answer_s=120.0, deaths=1)
"""Compiling may take long; a placement that loses a worker during its trial is rejected."""
_NEURAL_ENGINE_DEATHS = 2
"""Workers on the Neural Engine that may be lost before the GPU replaces it."""
_COMPILED, OUTCOME = "compiled-", "outcome.json"
_MEASURE = partial(window_ms, n_drafted=16, n_more=8)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial: the time of a window in ms, or the error; placement None is the CPU."""

    placement: Placement | None
    window_ms: float | None = None
    wrong: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The best placement, None if it is the CPU, and the trials that showed it."""

    best: Placement | None
    trials: tuple[Trial, ...]


def compiled_folder(built: BuiltModel) -> Path:
    """Return the folder for the compiled packages and the outcome on this machine.

    It is beside the built model; building the model again deletes it.
    """
    parts = ((built.folder / META).read_bytes().hex(), *machine())
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return built.folder.with_name(f"{_COMPILED}{built.folder.name}-{key}")


def make_compiled_folder(built: BuiltModel) -> Path:
    """Return it, created; delete those of earlier macOS versions. Raises `OSError`."""
    folder = compiled_folder(built)
    if not folder.is_dir():
        for old in folder.parent.glob(f"{_COMPILED}{built.folder.name}-*"):
            discard(old)
        folder.mkdir(mode=0o700)
    return folder


def load_outcome(folder: Path) -> Outcome | None:
    """Read the outcome that is kept in a folder of compiled packages, if there is one."""
    try:
        return msgspec.json.decode((folder / OUTCOME).read_bytes(), type=Outcome)
    except (OSError, msgspec.DecodeError):
        return None


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """Keep an outcome; if the folder cannot be written, the next start repeats the trials."""
    with suppress(OSError):
        put_file(folder / OUTCOME, msgspec.json.format(msgspec.json.encode(outcome)))


@cache
def machine() -> tuple[str, str]:
    """Return the chip and the build of the system."""
    if sys.platform != "darwin":
        return processor_name(), platform.version()
    command = ("/usr/bin/sw_vers", "-buildVersion")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return processor_name(), done.stdout.strip()


class Takeover:
    """Switches an engine to the best placement of a built model."""

    def __init__(
        self,
        switching: SwitchingEngine,
        job: Job,
        wanted: Wanted,
        *,
        limits: WorkerLimits,
        measure: Callable[[Engine[Any]], float] = _MEASURE,
    ) -> None:
        """Try the `job` on other placements, too; an engine that serves has these `limits`.

        `measure` returns the time of a window on an engine; it is called several times.
        """
        self._switching, self._job, self._wanted = switching, job, wanted
        self._limits, self._measure = limits, measure
        self._trials: list[Trial] = []
        self._best: Placement | None = None
        self._stopped = False

    def stop(self) -> None:
        """Note that the program ends, and its workers with it, which is no outcome of a trial."""
        self._stopped = True

    def run(self) -> None:
        """Try the placements, or load the one that was best before; call it in a thread of its own.

        Failures are logged, and the current engine goes on. Raises `ModelError` if the built model
        is damaged.
        """
        compiled = self._job.compiled
        known = load_outcome(compiled) if self._wanted == "auto" else None
        if known is not None:
            self._repeat(known)
            return
        for placement in (ON_GPU, *(ON_NEURAL_ENGINE if self._wanted != "gpu" else ())):
            if not self._stopped:
                self._try(placement)
        if self._wanted == "auto" and not self._stopped:
            save_outcome(compiled, Outcome(best=self._best, trials=tuple(self._trials)))

    def _repeat(self, known: Outcome) -> None:
        """Load what was best before; the GPU serves until it is loaded."""
        if known.best is None:
            return
        for placement in dict.fromkeys((ON_GPU, known.best)):
            engine = self._load(placement)
            if engine is None:
                if not self._stopped:
                    # The next start repeats the trials.
                    (self._job.compiled / OUTCOME).unlink(missing_ok=True)
                return
            self._activate(engine)
            log.info("Core ML: %s", placement)

    def _activate(self, engine: CoreMLEngine) -> None:
        """Switch to an engine; the Neural Engine is abandoned sooner, for the GPU."""
        if engine.placement == ON_GPU:
            engine.configure(self._limits)
        else:
            engine.configure(replace(self._limits, deaths=_NEURAL_ENGINE_DEATHS), ON_GPU)
        self._switching.switch_to(engine)

    def _try(self, placement: Placement) -> None:
        engine = self._load(placement)
        if engine is None:
            return
        try:
            own_ms, other_ms = fastest_ms((engine, self._switching.current), self._measure)
        except EngineError as error:
            self._reject(placement, engine, str(error.__cause__ or error))
            return
        if all(trial.placement for trial in self._trials):  # no trial of the CPU yet: this was it
            self._trials.append(Trial(placement=None, window_ms=other_ms))
        self._trials.append(Trial(placement=placement, window_ms=own_ms))
        if own_ms < other_ms or self._required(placement):
            self._best = placement
            self._activate(engine)
            log.info("Core ML: %s: %.0f ms a window instead of %.0f", placement, own_ms, other_ms)
        else:
            engine.close()
            log.info("Core ML: not %s: %.0f ms a window, not %.0f", placement, own_ms, other_ms)

    def _required(self, placement: Placement) -> bool:
        """Whether the user asked for this placement: the first correct one on the wanted unit."""
        if self._wanted == "auto":
            return False
        return self._best is None or (self._best.encoder != placement.encoder == self._wanted)

    def _load(self, placement: Placement) -> CoreMLEngine | None:
        """Load an engine and compare it with the golden vectors; None if it fails."""
        on_ane = placement.encoder == "ane"
        job = replace(self._job, placement=placement, background=on_ane)
        engine = CoreMLEngine(job, TRIAL_LIMITS)
        if on_ane:
            log.info("Core ML: compiling for the Neural Engine while captions continue")
        try:
            off = against_golden(engine, golden_vectors(job.built))
        except EngineError as error:
            self._reject(placement, engine, str(error.__cause__ or error))
            return None
        if not off.acceptable:
            what = f"logits {off.logits:.2g} off, alignment {off.alignment:.2g}, at {off.where}"
            self._reject(placement, engine, what)
            return None
        return engine

    def _reject(self, placement: Placement, engine: CoreMLEngine, why: str) -> None:
        engine.close()
        if not self._stopped:
            log.warning("Core ML: not %s: %s", placement, why)
            self._trials.append(Trial(placement=placement, wrong=why))
