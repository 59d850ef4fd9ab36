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
from copy import copy
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.errors import EngineError, StreamdError
from streamd.types import Mel
from streamd.whisper.engine import Answer, BatchEngine, Decoder, Engine, Pass, answer, urgent

log = logging.getLogger(__name__)

_Indices = NDArray[np.int64]

_LAST_WINDOWS_S = 10.0
"""How long windows may still take on an engine that another one has replaced."""


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
    """An engine is right, but not faster than the CPU; nor is another one of its stage."""


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
            if self.fast is None:  # else nobody waits for a window
                self.changed.notify_all()
            return self.current

    def lose(self, engine: Engine[Any], error: EngineError) -> None:
        """Use the CPU from now on; raise the error if that has failed itself."""
        if engine is self.cpu:
            raise error
        with self.changed:
            if engine is self.fast:
                self.fast = None
                log.warning("%s failed: %s; captions continue on the CPU", self.name, error)
                self.changed.notify_all()

    def serve(self, engine: FastEngine, name: str) -> bool:
        """Run the next windows on this engine, unless the program ends."""
        with self.changed:
            if self.is_stopped:
                return False
            self.fast, self.name, self.used_s = engine, name, time.monotonic()
            self.changed.notify_all()
            return True

    def stop(self) -> None:
        with self.changed:
            self.is_stopped, self.fast = True, None
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
        self._begun_s = 0.0  # of loading
        self._cpu = cpu  # what runs windows while the CPU serves: its engine, or the urgent one
        weakref.finalize(self, self._engines.stop).atexit = False
        # Handlers run in reverse order. That of finalizers, which kills workers, is older than this
        # one, so this one runs first, and their end is not taken for a failure.
        stop = weakref.WeakMethod(self._engines.stop)
        atexit.register(lambda: (found := stop()) and found())

    @property
    def current(self) -> Engine[Any]:
        """The engine of the next window."""
        return self._engines.current

    @property
    def name(self) -> str:
        """What the log calls the fast engine that serves; empty: the CPU does."""
        return self._engines.name if self._engines.fast else ""

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
        runs = self._cpu if engine is self._engines.cpu else engine
        try:
            features = runs.encode(
                mel, audio_ctx=audio_ctx, previous=own, n_reused=0 if own is None else n_reused
            )
        except EngineError as error:
            self._engines.lose(engine, error)
            engine = self._engines.cpu
            features = engine.encode(mel, audio_ctx=audio_ctx)
        return SwitchingFeatures(mel, audio_ctx, engine, features)

    def decoder(self, features: SwitchingFeatures, n_slots: int) -> "SwitchingDecoder":
        """Return a decoder on the engine that encoded the window, or on the CPU if that fails."""
        return SwitchingDecoder(self._engines, features, n_slots, self._cpu)

    def start(
        self, stages: Sequence[Sequence[Candidate]], judge: Judge, patience: Patience = Patience()
    ) -> Thread:
        """Load of each stage the first candidate that is right, in a thread of its own, and use it.

        The engine of a stage serves until that of a later one does. Returns the thread, which ends
        when this engine is dropped or closed; until then it loads the last of them again
        when it was lost.
        """
        self._begun_s = time.monotonic()
        keeper = _Keeper(self._engines, self.settled, judge, patience)
        thread = Thread(target=keeper.run, args=(stages,), name="fast-engine", daemon=True)
        thread.start()
        return thread

    def wait(self, load_s: float) -> None:
        """Wait until a fast engine serves, at most until `load_s` after it began to load."""
        engines = self._engines
        with engines.changed:
            engines.changed.wait_for(
                lambda: engines.fast or self.settled.is_set(),
                max(0.0, self._begun_s + load_s - time.monotonic()),
            )

    def for_recording(self) -> Engine[Any]:
        """Return what transcribes a recording that begins now: this engine, or the CPU's.

        Several windows at once are decoded on the CPU without what this one remembers of each. A
        fast engine that was released is loaded again meanwhile, for the next recording.
        """
        return self if self._engines.use() is not self._engines.cpu else self._engines.cpu

    @property
    def n_together(self) -> int:
        """That of the current engine; 1: it decodes one window at a time."""
        batch = _batch(self.current)
        return batch.n_together if batch else 1

    def together(self, is_alone: Callable[[], bool]) -> "SwitchingTogether":
        """Return what runs passes of several windows at once, where the fast engine can."""
        return SwitchingTogether(self._engines, is_alone)

    @property
    def urgent(self) -> "SwitchingEngine | None":
        """The same, with more threads while the CPU serves, if the CPU's engine has them.

        Features of the CPU's engine fit both.
        """
        if (more := urgent(self._engines.cpu)) is None:
            return None
        engine = copy(self)
        engine._cpu = more
        return engine

    def close(self) -> None:
        """End the fast engine, and load none again; windows run on the CPU."""
        self._engines.stop()


class SwitchingDecoder:
    """A `Decoder` (streamd/whisper/engine.py) that continues on the CPU when its engine is lost.

    What each slot holds is remembered: its token, its position and what it saw.
    """

    def __init__(
        self, engines: _Engines, window: SwitchingFeatures, n_slots: int, cpu: Engine[Any]
    ) -> None:
        self.n_vocab, self.n_text_ctx = engines.cpu.dims.n_vocab, engines.cpu.dims.n_text_ctx
        self.n_slots = n_slots
        self._engines, self._window, self._cpu = engines, window, cpu
        self._tokens = np.zeros(n_slots, np.int64)
        self._positions = np.zeros(n_slots, np.int64)
        self._seen = np.zeros((n_slots, n_slots), np.bool_)
        self._engine = window.engine
        self._decoder = self._made()

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
        self.remember(Pass(self, *asked))
        return answer

    def is_on(self, engine: Engine[Any]) -> bool:
        """Whether this engine has the window."""
        return self._engine is engine

    @property
    def inner(self) -> Decoder:
        """The decoder of the engine that has the window; call `remember` after its passes."""
        return self._decoder

    def remember(self, done: Pass) -> None:
        """Remember what a pass wrote."""
        self._tokens[done.slots], self._positions[done.slots] = done.tokens, done.positions
        self._seen[done.slots] = done.visible

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
        engine = self._cpu if window.engine is self._engines.cpu else window.engine
        try:
            return engine.decoder(window.features, self.n_slots)
        except EngineError as error:
            self._engines.lose(window.engine, error)
            return self._on_cpu()

    def _on_cpu(self) -> Decoder:
        window, self._engine = self._window, self._engines.cpu
        if window.engine is not self._engine:
            window.features = self._engine.encode(window.mel, audio_ctx=window.audio_ctx)
            window.engine = self._engine
        return self._cpu.decoder(window.features, self.n_slots)

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


def _batch(engine: Engine[Any]) -> BatchEngine[Any] | None:
    return engine if isinstance(engine, BatchEngine) and engine.n_together else None


class SwitchingTogether:
    """A `Together` (streamd/whisper/engine.py) whose windows go on one by one when it is lost."""

    def __init__(self, engines: _Engines, is_alone: Callable[[], bool]) -> None:
        self._engines, self._is_alone = engines, is_alone

    def __call__(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes of different windows, those on the fast engine in one request."""
        answers: dict[int, Answer] = {}
        decoders = {
            at: each.decoder
            for at, each in enumerate(passes)
            if isinstance(each.decoder, SwitchingDecoder)
        }
        fast = self._engines.fast
        ours = [at for at, decoder in decoders.items() if fast and decoder.is_on(fast)]
        if len(ours) > 1 and fast and (batch := _batch(fast)):
            inner = [passes[at]._replace(decoder=decoders[at].inner) for at in ours]
            try:
                found = batch.together(self._is_alone)(inner)
            except EngineError as error:
                self._engines.lose(fast, error)
            else:
                for at, done in zip(ours, found, strict=True):
                    decoders[at].remember(passes[at])
                    answers[at] = done
        return [answers[at] if at in answers else answer(each) for at, each in enumerate(passes)]

    def encode(self, mel: Mel) -> SwitchingFeatures:
        """Encode a window, as `Together.encode` says."""
        engine = self._engines.use()
        batch = None if engine is self._engines.cpu else _batch(engine)
        try:
            features = batch.together(self._is_alone).encode(mel) if batch else engine.encode(mel)
        except EngineError as error:
            self._engines.lose(engine, error)
            engine = self._engines.cpu
            features = engine.encode(mel)
        return SwitchingFeatures(mel, 0, engine, features)

    def begin(self, mel: Callable[[], Mel]) -> Callable[[], SwitchingFeatures]:
        """Encode a window now; a fast engine may only begin to."""
        return [self.encode(mel())].pop  # which keeps none of it


# -- the thread that loads ------------------------------------------------------------------------


class _Keeper:
    """Loads fast engines, of each stage the first that is right, and has them served."""

    def __init__(self, engines: _Engines, settled: Event, judge: Judge, patience: Patience) -> None:
        self._engines, self._settled = engines, settled
        self._judge, self._patience = judge, patience

    def run(self, stages: Sequence[Sequence[Candidate]]) -> None:
        """Serve until the engine is stopped; the thread's function."""
        service: _Service | None = None
        try:
            for stage in stages:
                found = self._first(stage)
                if found is not None:
                    service = _Service(self._engines, self._patience, *found, replaces=service)
            if service is None and not self._engines.is_stopped:
                log.info("captions stay on the CPU")
        finally:
            with self._engines.changed:
                self._settled.set()
                self._engines.changed.notify_all()
        if service is not None:
            service.join()

    def _first(self, stage: Sequence[Candidate]) -> tuple[Candidate, FastEngine] | None:
        """Return the first candidate that is right, loaded; the log says why others are not."""
        for candidate in stage:
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
        engine = _loaded(candidate, "not using %s: %s", self._engines)
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
    candidate: Candidate, message: str, engines: _Engines, level: int = logging.WARNING
) -> FastEngine | None:
    """Load a candidate; None if it cannot be, which the log says unless the program ends."""
    try:
        return candidate.load()
    except StreamdError as error:
        if not engines.is_stopped:
            log.log(level, message, candidate.name, error)
    except Exception:  # a bug, or what a library raises, costs the fast engine only
        log.exception(message, candidate.name, "it cannot be loaded")
    return None


class _Service(Thread):
    """Has a fast engine serve, releases it when nobody uses it, and loads it again.

    It ends when the program does, or when another service `replaces` it.
    """

    def __init__(
        self,
        engines: _Engines,
        patience: Patience,
        candidate: Candidate,
        engine: FastEngine,
        *,
        replaces: "_Service | None",
    ) -> None:
        """Serve from now on; the engine that is replaced ends when its last window is over."""
        super().__init__(name="fast-engine-service", daemon=True)
        self._engines, self._patience, self._candidate = engines, patience, candidate
        self._losses: list[int] = []
        self._is_replaced = False
        self._engine: FastEngine | None = engine
        with engines.changed:
            if replaces is not None:
                replaces._is_replaced = True
            if not engines.serve(engine, candidate.name):
                self._engine = None
                engine.close()
        self.start()

    @property
    def _is_over(self) -> bool:
        return self._engines.is_stopped or self._is_replaced

    def run(self) -> None:
        """Serve until it is over."""
        engines, n_refused = self._engines, 0
        while not self._is_over:
            if self._engine is not None:
                self._serve(self._engine)
            if self._is_over:
                break
            level = logging.DEBUG if n_refused else logging.WARNING
            self._engine = _loaded(self._candidate, "%s cannot be loaded again: %s", engines, level)
            n_refused += 1
            if self._engine is None:
                self._pause()
                continue
            n_refused = 0
            with engines.changed:
                if not self._is_over:
                    engines.serve(self._engine, self._candidate.name)
        if self._engine is not None:
            if self._is_replaced and not engines.is_stopped:  # its last windows
                with engines.changed:
                    engines.changed.wait_for(lambda: engines.is_stopped, _LAST_WINDOWS_S)
            self._engine.close()

    def _serve(self, engine: FastEngine) -> None:
        """Return when the engine should be loaded again, having ended it, or when all is over."""
        engines = self._engines
        is_idle, n_windows = self._until_lost_or_idle(engine)
        if self._is_over:
            return
        engine.close()
        self._engine = None
        if is_idle:
            with engines.changed:
                engines.changed.wait_for(lambda: engines.n_windows > n_windows or self._is_over)
            return
        since = n_windows - self._patience.windows
        self._losses = [*(at for at in self._losses if at > since), n_windows]
        if len(self._losses) >= self._patience.losses:
            self._losses = []
            self._pause()

    def _until_lost_or_idle(self, engine: FastEngine) -> tuple[bool, int]:
        """Return whether nobody used the engine for long, and how many windows there were.

        Unless another engine does, the CPU serves from now on.
        """
        engines = self._engines
        with engines.changed:
            while engines.fast is engine and not self._is_over:
                left_s = engines.used_s + self._patience.idle_s - time.monotonic()
                if left_s <= 0:
                    engines.fast = None
                    engines.changed.notify_all()
                    return True, engines.n_windows
                engines.changed.wait(left_s)
            return False, engines.n_windows

    def _pause(self) -> None:
        with self._engines.changed:
            self._engines.changed.wait_for(lambda: self._is_over, self._patience.pause_s)
