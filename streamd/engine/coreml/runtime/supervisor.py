"""Keeps a worker at work: starts it, waits for its answers, puts another in its place.

A worker that dies, or does not answer in time, costs a repetition. One whose kind does so again and
again is given up: the next placement takes over, and when there is none left, the engine has
failed, which is told to everybody.
"""

import logging
from dataclasses import dataclass, replace

from streamd.engine.coreml.package import Meta
from streamd.engine.coreml.runtime.messages import Job
from streamd.engine.coreml.runtime.placement import Placement
from streamd.engine.coreml.runtime.process import Worker, WorkerLostError
from streamd.errors import EngineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """What is borne of workers.

    `start_s`, `answer_s`: how long one may take to load, and for a window or a pass, before it
    counts as hung. So many `deaths` within so many `windows` are one too many.
    """

    start_s: float = 30.0
    answer_s: float = 20.0
    deaths: int = 3
    windows: int = 50


class Supervisor:
    """Has one worker at a time, of the first placement that works."""

    def __init__(self, meta: Meta, job: Job, *, patience: Patience | None = None) -> None:
        """No worker is started yet."""
        self._patience = patience or Patience()
        self._meta, self._job = meta, job
        self._instead: list[Placement] = []
        self._worker: Worker | None = None
        self._n_windows = 0
        self._deaths: list[int] = []

    @property
    def placement(self) -> Placement:
        """Where the model runs now."""
        return self._job.placement

    def rely(self, patience: Patience, *instead: Placement) -> None:
        """From now on bear so much; `instead` are tried when the placement is given up."""
        self._patience, self._instead = patience, list(instead)

    def new_window(self) -> None:
        """Count a window: deaths long ago are forgiven."""
        self._n_windows += 1
        since = self._n_windows - self._patience.windows
        self._deaths = [window for window in self._deaths if window > since]

    def worker(self) -> Worker:
        """The worker, started and loaded if need be.

        Raises
        ------
        EngineError
            One after the other died, whatever the placement.
        """
        while self._worker is None:
            worker = Worker(self._job, self._meta)
            try:
                worker.wait(
                    lambda at: log.info("Core ML, %s: %s", self.placement, at),
                    start_s=self._patience.start_s,
                )
            except WorkerLostError as error:
                self.lost(error)
            else:
                self._worker = worker
        self._worker.answer_s = self._patience.answer_s
        return self._worker

    def lost(self, error: WorkerLostError) -> None:
        """Take note of a death; `worker` gives another one.

        Raises
        ------
        EngineError
            It was one too many.
        """
        self._worker = None
        self._deaths.append(self._n_windows)
        if len(self._deaths) < self._patience.deaths:
            log.warning("Core ML, %s: the worker %s; starting another", self.placement, error)
            return
        if not self._instead:
            raise EngineError(
                f"Core ML failed, {self.placement}: the worker {error}; use --compute cpu"
            ) from error
        given_up, self._deaths = self.placement, []
        self._job = replace(self._job, placement=self._instead.pop(0), quietly=False)
        log.warning("Core ML, %s: the worker %s; now %s", given_up, error, self.placement)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
