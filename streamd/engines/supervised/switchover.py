"""Moves captions from the CPU to a faster engine while they run, and back when that fails.

Loading takes seconds on a GPU, and minutes on the Neural Engine the first time, and only then is it
known whether it computes what it should. So captions begin on the CPU, the faster engine is loaded
beside it and judged, and then it gets the next windows. The CPU's engine stays, since its weights
are mapped files: it computes the windows of an engine that fails, at once, and captions are late
for as long as one window takes there.
"""

import atexit
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import Any, Protocol

from streamd.errors import EngineError, StreamdError
from streamd.whisper.engine import Engine, urgent

log = logging.getLogger(__name__)


class FastEngine(Engine[Any], Protocol):
    """An engine in a process of its own: what it raises as `EngineError` says that it is lost."""

    def close(self) -> None:
        """End the process."""


class Candidate(Protocol):
    """A way to run the model faster than on the CPU."""

    @property
    def name(self) -> str:
        """What the log calls it."""
        ...

    def load(self) -> FastEngine:
        """Load the model, which may take minutes. Raises `EngineError` or `ModelError`."""
        ...


class NotFasterError(EngineError):
    """An engine is right, but not faster than the CPU; nor is another candidate."""


Judge = Callable[[FastEngine], str]
"""Returns why an engine is wrong, or nothing. May raise `EngineError`, or `NotFasterError`."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When a fast engine is given up, loaded again or released.

    One that was lost is loaded again at once, but after `pause_s` if `losses` were lost within so
    many `windows`, or it cannot be loaded. One that nobody uses for `idle_s` is released, and
    loaded again when there is a window.
    """

    losses: int = 3
    windows: int = 50
    pause_s: float = 60.0
    idle_s: float = 300.0


class Switchover:
    """The CPU's engine, and a faster one while that works: an `EngineSwitch` (whisper/engine.py).

    `settled` is set when a candidate serves, or all were rejected.
    """

    def __init__(self, cpu: Engine[Any]) -> None:
        self.cpu, self.dims, self.settled = cpu, cpu.dims, Event()
        self.changed = Condition()
        self.fast: FastEngine | None = None
        self.n_windows, self.used_s, self.is_stopped = 0, time.monotonic(), False
        self._name, self._begun_s = "", 0.0  # of loading
        # Handlers run in reverse order. That of finalizers, which kills workers, is older than this
        # one, so this one runs first, and their end is not taken for a failure.
        atexit.register(self.close)

    @property
    def current(self) -> Engine[Any]:
        """The engine of the next window."""
        return self.fast or self.cpu

    @property
    def urgent(self) -> Engine[Any] | None:
        """The CPU's engine on more threads, if there is one."""
        return urgent(self.cpu)

    @property
    def name(self) -> str:
        """What the log calls the fast engine that serves; empty: the CPU does."""
        return self._name if self.fast else ""

    def use(self) -> Engine[Any]:
        """Return the engine for a new window; one that was released is loaded for the next."""
        with self.changed:
            self.n_windows, self.used_s = self.n_windows + 1, time.monotonic()
            if self.fast is None:  # else nobody waits for a window
                self.changed.notify_all()
            return self.current

    def instead_of(self, engine: Engine[Any], error: EngineError) -> Engine[Any]:
        """Use the CPU from now on, and return its engine; raise the error if that has failed."""
        if engine is self.cpu:
            raise error
        with self.changed:
            if engine is self.fast:
                self.fast = None
                log.warning("%s failed: %s; captions continue on the CPU", self._name, error)
                self.changed.notify_all()
        return self.cpu

    def start(
        self, candidates: Sequence[Candidate], judge: Judge, patience: Patience = Patience()
    ) -> Thread:
        """Load the first candidate that is right, in a thread of its own, and use it.

        Returns the thread, which loads that again when it was lost, until this is closed.
        """
        self._begun_s = time.monotonic()
        keeper = _Keeper(self, judge, patience)
        thread = Thread(target=keeper.run, args=(candidates,), name="fast-engine", daemon=True)
        thread.start()
        return thread

    def serve(self, engine: FastEngine, name: str) -> None:
        """Run the next windows on this engine, unless the program ends."""
        with self.changed:
            if not self.is_stopped:
                self.fast, self._name, self.used_s = engine, name, time.monotonic()
            self.changed.notify_all()

    def wait(self, load_s: float) -> None:
        """Wait until a fast engine serves, at most until `load_s` after it began to load."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.fast or self.settled.is_set(),
                max(0.0, self._begun_s + load_s - time.monotonic()),
            )

    def close(self) -> None:
        """End the fast engine, and load none again; windows run on the CPU."""
        atexit.unregister(self.close)
        with self.changed:
            self.is_stopped, self.fast = True, None
            self.changed.notify_all()


class _Keeper:
    """Loads the first candidate that is right, and has it serve; the thread's part."""

    def __init__(self, engines: Switchover, judge: Judge, patience: Patience) -> None:
        self._engines, self._judge, self._patience = engines, judge, patience
        self._losses: list[int] = []

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Serve until all is over."""
        engines = self._engines
        try:
            found = self._first(candidates)
            if found is not None:
                engines.serve(found[1], found[0].name)
            elif not engines.is_stopped:
                log.info("captions stay on the CPU")
        finally:
            with engines.changed:
                engines.settled.set()
                engines.changed.notify_all()
        if found is not None:
            self._keep(*found)

    def _first(self, candidates: Sequence[Candidate]) -> tuple[Candidate, FastEngine] | None:
        """Return the first candidate that is right, loaded; the log says why others are not."""
        for candidate in candidates:
            if self._engines.is_stopped:
                return None
            begun_s = time.monotonic()
            try:
                if (engine := self._right(candidate)) is not None:
                    seconds = time.monotonic() - begun_s
                    log.info("captions moved to %s after %.1f s", candidate.name, seconds)
                    return candidate, engine
            except NotFasterError as error:
                log.info("not using %s: %s", candidate.name, error)
                return None
        return None

    def _right(self, candidate: Candidate) -> FastEngine | None:
        engine = self._loaded(candidate, "not using %s: %s")
        if engine is None:
            return None
        try:
            why = self._judge(engine)
        except NotFasterError:
            engine.close()
            raise
        except StreamdError as error:
            why = str(error)
        if not why and not self._engines.is_stopped:
            return engine
        engine.close()
        if not self._engines.is_stopped:
            log.warning("not using %s: %s", candidate.name, why)
        return None

    def _loaded(
        self, candidate: Candidate, message: str, level: int = logging.WARNING
    ) -> FastEngine | None:
        """Load a candidate; None if it cannot be, which the log says unless the program ends."""
        try:
            return candidate.load()
        except StreamdError as error:
            if not self._engines.is_stopped:
                log.log(level, message, candidate.name, error)
        except Exception:  # a bug, or what a library raises, costs the fast engine only
            log.exception(message, candidate.name, "it cannot be loaded")
        return None

    def _keep(self, candidate: Candidate, engine: FastEngine | None) -> None:
        """Release the engine when nobody uses it, and load it again, until all is over."""
        level = logging.WARNING
        while not self._engines.is_stopped:
            if engine is not None:
                self._serve(engine)
                engine, level = None, logging.WARNING
                continue
            engine = self._loaded(candidate, "%s cannot be loaded again: %s", level)
            if engine is not None:
                self._engines.serve(engine, candidate.name)
            else:
                level = logging.DEBUG
                self._pause()
        if engine is not None:
            engine.close()

    def _serve(self, engine: FastEngine) -> None:
        """Return when the engine has ended, and should be loaded again unless all is over."""
        engines = self._engines
        is_idle, n_windows = self._until_lost_or_idle(engine)
        engine.close()
        if is_idle:
            with engines.changed:
                engines.changed.wait_for(
                    lambda: engines.n_windows > n_windows or engines.is_stopped
                )
            return
        since = n_windows - self._patience.windows
        self._losses = [*(at for at in self._losses if at > since), n_windows]
        if len(self._losses) >= self._patience.losses:
            self._losses = []
            self._pause()

    def _until_lost_or_idle(self, engine: FastEngine) -> tuple[bool, int]:
        """Return whether nobody used the engine for long, and how many windows there were.

        The CPU serves from now on.
        """
        engines = self._engines
        with engines.changed:
            while engines.fast is engine:
                left_s = engines.used_s + self._patience.idle_s - time.monotonic()
                if left_s <= 0:
                    engines.fast = None
                    engines.changed.notify_all()
                    return True, engines.n_windows
                engines.changed.wait(left_s)
            return False, engines.n_windows

    def _pause(self) -> None:
        with self._engines.changed:
            self._engines.changed.wait_for(lambda: self._engines.is_stopped, self._patience.pause_s)
