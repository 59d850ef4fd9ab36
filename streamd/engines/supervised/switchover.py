"""Moves captions from the CPU to a faster engine while they run, and back when that fails.

Loading takes seconds on a GPU, and minutes on the Neural Engine the first time, and only then is it
known whether it computes what it should. So captions begin on the CPU, the faster engine is loaded
beside it and judged, and then windows are switched to it. The CPU's engine stays, since its weights
are mapped files: it takes over the windows of an engine that fails, at once, with all that was
decoded of them, and captions are late for as long as one window takes there.
"""

import atexit
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.errors import EngineError, ModelError
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Engine

log = logging.getLogger(__name__)

_Indices = NDArray[np.int64]


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


Judge = Callable[[FastEngine], str]
"""Returns why an engine should not take over, or nothing. May raise `EngineError`."""


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


# -- windows --------------------------------------------------------------------------------------


class _Engines:
    """The CPU's engine and the fast one, if it serves, and what is counted of both."""

    def __init__(self, cpu: Engine[Any]) -> None:
        self.cpu = cpu
        self.changed = Condition()
        self.fast: FastEngine | None = None
        self.name = ""
        self.n_windows, self.used_s, self.is_stopped = 0, time.monotonic(), False

    @property
    def current(self) -> Engine[Any]:
        return self.fast or self.cpu

    def use(self) -> Engine[Any]:
        """Return the engine for a new window."""
        with self.changed:
            self.n_windows, self.used_s = self.n_windows + 1, time.monotonic()
            self.changed.notify_all()
            return self.current

    def lose(self, engine: Engine[Any], error: EngineError) -> None:
        """Use the CPU from now on; raise the error if that has failed itself."""
        if engine is self.cpu:
            raise error
        with self.changed:
            if engine is self.fast:
                self.fast = None
                log.warning("%s failed: %s; captions go on on the CPU", self.name, error)
                self.changed.notify_all()

    def serve(self, engine: FastEngine | None, name: str) -> None:
        with self.changed:
            self.fast, self.name, self.used_s = engine, name, time.monotonic()
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


@dataclass(eq=False)
class SwitchingFeatures:
    """A window, and its features on the engine that has it now."""

    mel: Mel
    audio_ctx: int
    engine: Engine[Any]
    features: Any


class SwitchingEngine:
    """Runs windows on the current engine; an `Engine` (streamd/whisper/engine.py)."""

    def __init__(self, cpu: Engine[Any]) -> None:
        self.dims, self._engines, self.settled = cpu.dims, _Engines(cpu), Event()
        """`settled` is set when a candidate serves, or all were rejected."""
        weakref.finalize(self, self._engines.stop).atexit = False
        # Handlers run in reverse order. The one that kills all workers was registered when their
        # module was imported, so this one runs first, and their end is not taken for a failure.
        stop = weakref.WeakMethod(self._engines.stop)
        atexit.register(lambda: (found := stop()) and found())

    @property
    def current(self) -> Engine[Any]:
        """The engine of the next window."""
        return self._engines.current

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
        """Encode a window on the current engine, or on the CPU if that fails."""
        engine = self._engines.use()
        own = previous.features if previous is not None and previous.engine is engine else None
        try:
            features = engine.encode(
                mel, audio_ctx=audio_ctx, previous=own, n_reused=0 if own is None else n_reused
            )
        except EngineError as error:
            self._engines.lose(engine, error)
            engine = self._engines.cpu
            features = engine.encode(mel, audio_ctx=audio_ctx)
        return SwitchingFeatures(mel, audio_ctx, engine, features)

    def decoder(self, features: SwitchingFeatures, n_slots: int) -> "SwitchingDecoder":
        """Return a decoder on the engine that encoded the window, or on the CPU if that fails."""
        return SwitchingDecoder(self._engines, features, n_slots)

    def start(
        self,
        stages: Sequence[Sequence[Candidate]],
        judge: Judge,
        patience: Patience = Patience(),
    ) -> Thread:
        """Load of each stage the first candidate that is right, in a thread of its own, and use it.

        The engine of a stage serves until that of a later one does. Returns the thread, which ends
        when this engine is dropped or `stop` is called; until then it loads the last of them again
        when it was lost.
        """
        keeper = _Keeper(self._engines, self.settled, judge, patience)
        thread = Thread(target=keeper.run, args=(stages,), name="fast-engine", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """End the fast engine, and load none again; windows run on the CPU."""
        self._engines.stop()


class SwitchingDecoder:
    """A `Decoder` (streamd/whisper/engine.py) that goes on on the CPU when its engine is lost.

    What each slot holds is remembered: its token, its position and what it saw.
    """

    def __init__(self, engines: _Engines, window: SwitchingFeatures, n_slots: int) -> None:
        self.n_vocab, self.n_text_ctx = engines.cpu.dims.n_vocab, engines.cpu.dims.n_text_ctx
        self.n_slots = n_slots
        self._engines, self._window = engines, window
        self._tokens = np.zeros(n_slots, np.int64)
        self._positions = np.zeros(n_slots, np.int64)
        self._seen = np.zeros((n_slots, n_slots), np.bool_)
        self._engine, self._decoder = window.engine, self._made()

    def step(
        self,
        tokens: _Indices,
        positions: _Indices,
        slots: _Indices,
        visible: NDArray[np.bool_],
        want: _Indices,
        among: _Indices | None = None,
    ) -> Answer:
        """Run k tokens in one pass. Raises `EngineError` if the CPU's engine fails."""
        asked = tokens, positions, slots, visible, want, among
        try:
            answer = self._decoder.step(*asked)
        except EngineError as error:
            self._engines.lose(self._engine, error)
            self._restore(np.asarray(visible.any(axis=0), np.bool_), slots)
            answer = self._decoder.step(*asked)
        self._tokens[slots], self._positions[slots] = tokens, positions
        self._seen[slots] = visible
        return answer

    def adopt(self, before: Decoder, n: int) -> bool:
        """Take the first `n` slots of another window's decoder on the same engine."""
        if not isinstance(before, SwitchingDecoder) or before._engine is not self._engine:
            return False
        try:
            adopted = self._decoder.adopt(before._decoder, n)
        except EngineError as error:
            self._engines.lose(self._engine, error)
            return False
        if adopted:
            self._tokens[:n], self._positions[:n] = before._tokens[:n], before._positions[:n]
            self._seen[:n, :n] = before._seen[:n, :n]
        return adopted

    def _made(self) -> Decoder:
        """Make a decoder on the window's engine, or on the CPU if that was lost."""
        window = self._window
        try:
            return window.engine.decoder(window.features, self.n_slots)
        except EngineError as error:
            self._engines.lose(window.engine, error)
            return self._on_cpu()

    def _on_cpu(self) -> Decoder:
        window, self._engine = self._window, self._engines.cpu
        if window.engine is not self._engine:
            window.features = self._engine.encode(window.mel, audio_ctx=window.audio_ctx)
            window.engine = self._engine
        return self._engine.decoder(window.features, self.n_slots)

    def _restore(self, wanted: NDArray[np.bool_], new: _Indices) -> None:
        """Have the CPU compute what the lost decoder held of the `wanted` slots."""
        self._decoder = self._on_cpu()
        wanted[new] = False
        while (more := wanted | self._seen[wanted].any(axis=0)).sum() > wanted.sum():
            wanted = more
        (slots,) = np.nonzero(wanted)
        # A slot saw only earlier positions.
        slots = slots[np.argsort(self._positions[slots], kind="stable")]
        if len(slots):
            none = np.zeros(0, np.int64)
            self._decoder.step(
                self._tokens[slots], self._positions[slots], slots, self._seen[slots], none
            )


# -- the thread that loads ------------------------------------------------------------------------


class _Keeper:
    """Loads the fast engine, releases it when nobody uses it, and loads it again."""

    def __init__(self, engines: _Engines, settled: Event, judge: Judge, patience: Patience) -> None:
        self._engines, self._settled = engines, settled
        self._judge, self._patience = judge, patience
        self._losses: list[int] = []

    def run(self, stages: Sequence[Sequence[Candidate]]) -> None:
        """Serve until the engine is stopped; the thread's function."""
        serving: tuple[Candidate, FastEngine] | None = None
        try:
            for stage in stages:
                found = next(filter(None, map(self._first, stage)), None)
                if found is not None:
                    candidate, engine = found
                    self._engines.serve(engine, candidate.name)
                    if serving is not None:
                        serving[1].close()
                    serving = found
            if serving is not None:
                self._settled.set()
                self._keep(*serving)
            elif not self._engines.is_stopped:
                log.info("captions stay on the CPU")
        finally:
            self._settled.set()

    def _first(self, candidate: Candidate) -> tuple[Candidate, FastEngine] | None:
        """Load and judge a candidate; None if it cannot be used, which the log says."""
        if self._engines.is_stopped:
            return None
        begun_s, engine = time.monotonic(), None
        try:
            engine = candidate.load()
            why = self._judge(engine)
        except (EngineError, ModelError) as error:
            why = str(error)
        if self._engines.is_stopped or why:
            if engine is not None:
                engine.close()
            if not self._engines.is_stopped:
                log.warning("not on %s: %s", candidate.name, why)
            return None
        log.info("captions on %s, after %.1f s", candidate.name, time.monotonic() - begun_s)
        assert engine is not None
        return candidate, engine

    def _keep(self, candidate: Candidate, serving: FastEngine) -> None:
        """Load the engine that serves again whenever it was lost or released."""
        n_refused = 0
        engine: FastEngine | None = serving
        while not self._engines.is_stopped:
            if engine is not None:
                self._serve(engine)
            if self._engines.is_stopped:
                return
            try:
                engine, n_refused = candidate.load(), 0
                self._engines.serve(engine, candidate.name)
            except (EngineError, ModelError) as error:
                level = logging.DEBUG if n_refused else logging.WARNING
                log.log(level, "%s cannot be loaded again: %s", candidate.name, error)
                engine, n_refused = None, n_refused + 1
                self._pause()

    def _serve(self, engine: FastEngine) -> None:
        """Return when the engine should be loaded again, or streamd ends; end the engine."""
        engines = self._engines
        is_idle = self._until_lost_or_idle(engine)
        engine.close()
        if is_idle:
            with engines.changed:
                n_windows = engines.n_windows
                engines.changed.wait_for(
                    lambda: engines.n_windows > n_windows or engines.is_stopped
                )
            return
        since = engines.n_windows - self._patience.windows
        self._losses = [*(at for at in self._losses if at > since), engines.n_windows]
        if len(self._losses) >= self._patience.losses:
            self._losses = []
            self._pause()

    def _until_lost_or_idle(self, engine: FastEngine) -> bool:
        """Return whether nobody used the engine for long; the CPU serves from now on."""
        engines = self._engines
        with engines.changed:
            while engines.fast is engine and not engines.is_stopped:
                left_s = engines.used_s + self._patience.idle_s - time.monotonic()
                if left_s <= 0:
                    engines.fast = None
                    engines.changed.notify_all()
                    return True
                engines.changed.wait(left_s)
            engines.fast = None
            return False

    def _pause(self) -> None:
        with self._engines.changed:
            self._engines.changed.wait_for(lambda: self._engines.is_stopped, self._patience.pause_s)
