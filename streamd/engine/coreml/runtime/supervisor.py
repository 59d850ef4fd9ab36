"""Keeps a worker running: starts it, waits for its answers, replaces it.

A worker that dies, or does not answer in time, costs a repetition. If that happens too often, its
placement is abandoned for the next one; when there is none left, the engine has failed.
"""

import logging
from dataclasses import dataclass, replace

from streamd.engine.coreml.runtime.library import Placement
from streamd.engine.coreml.runtime.worker import Job, Worker, WorkerLostError
from streamd.errors import EngineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """When a worker counts as hung, and a placement as unusable.

    `start_s`, `answer_s`: how long a worker may take to load, and for a window or a pass. A
    placement is abandoned after `deaths` workers lost within `windows` windows.
    """

    start_s: float = 30.0
    answer_s: float = 20.0
    deaths: int = 3
    windows: int = 50


class Supervisor:
    """Owns one worker at a time, on the first placement that works."""

    def __init__(self, job: Job, limits: WorkerLimits) -> None:
        """The worker is started when it is first needed."""
        self._job, self._limits = job, limits
        self._fallbacks: list[Placement] = []
        self._worker: Worker | None = None
        self._n_windows = 0
        self._deaths: list[int] = []

    @property
    def placement(self) -> Placement:
        """Where the model runs now."""
        return self._job.placement

    def configure(self, limits: WorkerLimits, *fallbacks: Placement) -> None:
        """Set new limits, and the placements to try when the current one is abandoned."""
        self._limits, self._fallbacks = limits, list(fallbacks)

    def new_window(self) -> None:
        """Count a window, and forget workers that were lost too many windows ago."""
        self._n_windows += 1
        since = self._n_windows - self._limits.windows
        self._deaths = [window for window in self._deaths if window > since]

    def worker(self) -> Worker:
        """Return the worker, loaded. Raises `EngineError` if too many were lost, as `lost` does."""
        while self._worker is None:
            worker = Worker(self._job)
            try:
                worker.wait(
                    lambda state: log.info("Core ML, %s: %s", self.placement, state),
                    start_s=self._limits.start_s,
                )
            except WorkerLostError as error:
                self.lost(error)
            else:
                self._worker = worker
        self._worker.answer_s = self._limits.answer_s
        return self._worker

    def lost(self, error: WorkerLostError) -> None:
        """Record a lost worker, which `worker` replaces. Raises `EngineError` if too many were."""
        self._worker = None
        self._deaths.append(self._n_windows)
        if len(self._deaths) < self._limits.deaths:
            log.warning("Core ML, %s: the worker %s; starting another", self.placement, error)
            return
        if not self._fallbacks:
            raise EngineError(
                f"Core ML failed, {self.placement}: the worker {error}; use --compute cpu"
            ) from error
        abandoned, self._deaths = self.placement, []
        self._job = replace(self._job, placement=self._fallbacks.pop(0), background=False)
        log.warning("Core ML, %s: the worker %s; changing to %s", abandoned, error, self.placement)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
