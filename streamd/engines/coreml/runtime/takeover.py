"""Moves captions to Core ML while they run: to the GPU first, then to the Neural Engine.

Compiling for the Neural Engine takes minutes, and only then is it known whether it is right, and
faster. So each placement is loaded beside the engine that serves, compared with the golden
vectors, and then with the time of the current engine. Only then are windows switched to it: the
short ones at first, all when the rest of its functions is loaded and compared, too. The outcome is
kept for the next start. It holds for one built model, one build of macOS and one chip: another
system may compile differently, or reject what the last one accepted.
"""

import hashlib
import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from streamd.engines.coreml.golden import GoldenWindow, against_golden, golden_vectors
from streamd.engines.coreml.package import META, BuiltModel, Function
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLEngine, WorkerLimits
from streamd.engines.coreml.runtime.programs import (
    ON_GPU,
    ON_NEURAL_ENGINE,
    Placement,
    at_first,
    of_form,
)
from streamd.engines.coreml.runtime.worker import Job, Worker, WorkerLostError
from streamd.engines.prepared import WindowShape, fastest_ms, window_timer
from streamd.errors import EngineError, ModelError
from streamd.system.disk import discard, put_file
from streamd.system.processor import processor_name
from streamd.types import Mel
from streamd.whisper.engine import Decoder, Engine

log = logging.getLogger(__name__)

Wanted = Literal["auto", "ane", "gpu"]
"""The fastest placement, or the first correct one on this unit, however slow."""

TRIAL_LIMITS = WorkerLimits(start_s=3600.0, answer_s=120.0, deaths=1)
"""Compiling may take long; a placement that loses a worker during its trial is rejected."""
_NEURAL_ENGINE_DEATHS = 2
"""Workers on the Neural Engine that may be lost before the GPU replaces it."""
_COMPILED, OUTCOME = "compiled-", "outcome.json"
_SHORT_WINDOW = WindowShape(n_frames=175, n_new=100, n_given=4, n_first=8, passes=(2, 2))
"""The first functions that are loaded suffice for it."""
_TIMER = partial(window_timer, shape=_SHORT_WINDOW)


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


class _RefusedError(Exception):
    """A placement cannot be used, for the reason that the text gives."""


Fits = Callable[[Mel, int], bool]
"""Tells of a window, as `Engine.encode` gets it, whether an engine can run it."""
SwitchingFeatures = tuple[Engine[Any], Any]
"""The engine that encoded a window, which must decode it too, and its features."""


class SwitchingEngine:
    """Runs windows on the current engine; an `Engine` (streamd/engines/__init__.py)."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.dims = engine.dims
        self.current: Engine[Any] = engine
        """The engine that encodes the next window."""
        self._before: tuple[Engine[Any], Fits] | None = None

    def switch_to(self, engine: Engine[Any], *, fits: Fits | None = None) -> None:
        """Run the next windows on `engine`, of the same model; any thread may call this.

        With `fits`, windows that it refuses still run on the old engine, until the next switch.
        Without, that is released when its last window is done.
        """
        before = self.current
        self._before = (before, fits) if fits and before is not engine else None
        self.current = engine

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        known: SwitchingFeatures | None = None,
        n_known: int = 0,
    ) -> SwitchingFeatures:
        """Encode a window on the current engine."""
        engine, before = self.current, self._before
        if before is not None and not before[1](mel, audio_ctx):
            engine = before[0]
        its_own = known[1] if known is not None and known[0] is engine else None
        return engine, engine.encode(mel, audio_ctx=audio_ctx, known=its_own, n_known=n_known)

    def decoder(self, features: SwitchingFeatures, n_slots: int) -> Decoder:
        """Return a decoder of the engine that encoded the window."""
        engine, encoded = features
        return engine.decoder(encoded, n_slots)


class Takeover:
    """Switches an engine to the best placement of a built model."""

    def __init__(
        self,
        switching: SwitchingEngine,
        job: Job,
        wanted: Wanted,
        *,
        limits: WorkerLimits,
        timer: Callable[[Engine[Any]], Callable[[], float]] = _TIMER,
    ) -> None:
        """Try the `job` on other placements, too; an engine that serves has these `limits`.

        `timer` returns what times a window on an engine, which is called several times.
        """
        self._switching, self._job, self._wanted = switching, job, wanted
        self._limits, self._timer = limits, timer
        self._trials: list[Trial] = []
        self._best: Placement | None = None
        self._gpu: Placement | None = None
        self._stopped = self._timed_out = False

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
        for placement in (*ON_GPU, *(ON_NEURAL_ENGINE if self._wanted != "gpu" else ())):
            if not self._stopped and not (placement in ON_GPU and self._gpu):
                self._try(placement)
        # What took too long goes on at the next start, where Core ML finds what it has compiled.
        if self._wanted == "auto" and not self._stopped and not self._timed_out:
            save_outcome(compiled, Outcome(best=self._best, trials=tuple(self._trials)))

    def _repeat(self, known: Outcome) -> None:
        """Load what was best before; the GPU serves until it is loaded."""
        if known.best is None:
            return
        right = [trial.placement for trial in known.trials if not trial.wrong]
        gpu = [placement for placement in ON_GPU if placement in right]
        for placement in dict.fromkeys((*gpu, known.best)):
            self._try(placement, timed=False)
            if self._best != placement:
                if not self._stopped and not self._timed_out:
                    # The next start repeats the trials.
                    (self._job.compiled / OUTCOME).unlink(missing_ok=True)
                return

    def _try(self, placement: Placement, *, timed: bool = True) -> None:
        """Load a placement, and switch to it if it is right and, if it is `timed`, faster.

        What short windows need comes first, and serves them while the rest is loaded.
        """
        built, golden = self._job.built, golden_vectors(self._job.built)
        first = at_first(built, placement.form)
        rest = [f for f in of_form(built, placement.form) if f not in first]
        before = self._switching.current
        job = replace(self._job, placement=placement, functions=first)
        engine = CoreMLEngine(job, TRIAL_LIMITS)
        try:
            self._prepare(job, first)
            _compare(engine, golden[:1])
            own_ms = self._faster(placement, engine) if timed else None
            self._activate(engine, fits=engine.fits)
            self._prepare(job, rest)
            for function in rest:
                engine.load(function)
            _compare(engine, golden)
            if engine.placement != placement:
                raise _RefusedError("too many workers were lost")
        except (EngineError, WorkerLostError, _RefusedError) as error:
            if self._switching.current is engine:
                self._switching.switch_to(before)  # the engine ends with its last window
            else:
                engine.close()
            self._reject(placement, error)
            return
        self._activate(engine)
        self._best = placement
        if own_ms is not None:
            self._trials.append(Trial(placement=placement, window_ms=own_ms))
        log.info("Core ML: %s", placement)

    def _prepare(self, job: Job, functions: Iterable[Function]) -> None:
        """Have Core ML compile functions for the Neural Engine, one at a time, in the background.

        Each takes seconds to minutes, and memory for the compiler and the model. A worker that
        loads them afterwards finds them compiled. Raises `WorkerLostError`.
        """
        if job.placement.encoder != "ane":
            return
        log.info("Core ML: compiling for the Neural Engine while captions continue")
        worker = Worker(replace(job, functions=tuple(functions), serve=False))
        worker.wait(TRIAL_LIMITS.start_s)
        worker.close()

    def _faster(self, placement: Placement, engine: CoreMLEngine) -> float:
        """Return the time of a window in ms. Raises `_RefusedError` if another engine is faster."""
        if placement in ON_GPU:
            self._gpu = placement  # it is right, and so it can replace the Neural Engine
        own_ms, other_ms = fastest_ms((engine, self._switching.current), self._timer)
        if not self._trials or all(trial.wrong for trial in self._trials):  # this was the CPU
            self._trials.append(Trial(placement=None, window_ms=other_ms))
        best, wanted = self._best, self._wanted
        # Asked for is the first correct placement on the wanted unit, however slow.
        asked = best is None or best.encoder != placement.encoder == wanted
        if own_ms >= other_ms and not (wanted != "auto" and asked):
            self._trials.append(Trial(placement=placement, window_ms=own_ms))
            raise _RefusedError(f"{own_ms:.0f} ms a window, not {other_ms:.0f}")
        log.info("Core ML: %s: %.0f ms a window instead of %.0f", placement, own_ms, other_ms)
        return own_ms

    def _activate(self, engine: CoreMLEngine, *, fits: Fits | None = None) -> None:
        """Switch to an engine; the Neural Engine is abandoned sooner, for the GPU."""
        if engine.placement in ON_GPU:
            self._gpu = engine.placement
            engine.configure(self._limits)
        else:
            fallbacks = [self._gpu] if self._gpu else []
            engine.configure(replace(self._limits, deaths=_NEURAL_ENGINE_DEATHS), *fallbacks)
        self._switching.switch_to(engine, fits=fits)

    def _reject(self, placement: Placement, error: Exception) -> None:
        if self._stopped:
            return
        cause = error.__cause__ if isinstance(error, EngineError) else error
        if isinstance(cause, WorkerLostError) and cause.timed_out:
            self._timed_out = True
        why = str(cause or error)
        if any(trial.placement == placement for trial in self._trials):  # right, but not faster
            log.info("Core ML: not %s: %s", placement, why)
            return
        if placement == self._gpu:
            self._gpu = None
        log.warning("Core ML: not %s: %s", placement, why)
        self._trials.append(Trial(placement=placement, wrong=why))


def _compare(engine: CoreMLEngine, windows: Sequence[GoldenWindow]) -> None:
    """Raise `_RefusedError` if an engine is too far from the golden vectors."""
    off = against_golden(engine, windows)
    if not off.acceptable:
        raise _RefusedError(
            f"logits {off.logits:.2g} off, alignment {off.alignment:.2g}, at {off.where}"
        )
