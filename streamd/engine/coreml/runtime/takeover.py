"""Brings a built model up while captions run: on the GPU first, then on the Neural Engine.

Compiling for the Neural Engine takes minutes, and whether it is then right, and faster, nobody can
say beforehand. So each placement is loaded beside the engine that serves, is compared with the
golden vectors, and then with the other one's time; only then does it take over, at the beginning of
a window. What was found out is kept.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from streamd.engine import Engine
from streamd.engine.coreml.built import Built
from streamd.engine.coreml.golden import against_golden, golden_vectors
from streamd.engine.coreml.runtime.engine import CoreMLEngine
from streamd.engine.coreml.runtime.messages import Job
from streamd.engine.coreml.runtime.placement import Placement, candidates, forms_here, gpu
from streamd.engine.coreml.runtime.supervisor import Patience, Supervisor
from streamd.engine.coreml.runtime.verdict import Trial, Verdict, forget, recall, remember
from streamd.engine.relay import Relay
from streamd.errors import EngineError

log = logging.getLogger(__name__)

Wanted = Literal["auto", "ane", "gpu"]
"""The best one, or whatever it is like this one, if it is right."""

FARTHEST = 0.02
"""How far logits and alignment may be from the golden ones: half precision is worth 1e-3, and the
Neural Engine adds up in half precision, too."""
ON_PROBATION = Patience(start_s=3600.0, answer_s=120.0, deaths=1)
"""Compiling takes what it takes; who dies before anybody needs him is not engaged."""
_DEATHS = 2
"""Of workers with the Neural Engine, until the GPU takes their place."""
_N_TIMES = 5
_N_CTX = 384
_N_TOKENS = 8
"""The window of the time trial: about a step of ``--length 5000`` with a draft."""


@dataclass(frozen=True, slots=True)
class Site:
    """A built model, and what it takes to bring it up.

    `place`: the folder for compiled models and the verdict; `library`: see `Job`.
    """

    built: Built
    place: Path
    library: str
    patience: Patience = field(default_factory=Patience)


class Takeover:
    """Lets the relay's engine be relieved by the built model, where that runs best."""

    def __init__(
        self,
        relay: Relay,
        site: Site,
        wanted: Wanted,
        *,
        window_ms: Callable[[Engine[Any]], float] | None = None,
    ) -> None:
        """`window_ms`: how long an engine takes for a window; it is called several times."""
        self._relay, self._site, self._wanted = relay, site, wanted
        self._window_ms = window_ms or _window_ms
        self._forms = forms_here(site.built.meta.forms)
        self._trials: list[Trial] = []
        self._best: Placement | None = None
        self._is_over = False

    def stop(self) -> None:
        """The program ends, and its workers with it: nothing is found out by that."""
        self._is_over = True

    def run(self) -> None:
        """Do it; slow, for a thread of its own. What goes wrong is logged, who serves goes on.

        Raises
        ------
        ModelError
            The built model is damaged.
        """
        if not self._forms:
            log.warning(
                "model %s is built for another version of macOS; build it again: "
                "streamd models build NAME --engine coreml",
                self._site.built.meta.name,
            )
            return
        verdict = recall(self._site.place) if self._wanted == "auto" else None
        if verdict is not None:
            self._follow(verdict)
            return
        tried = (gpu(self._forms), *(candidates(self._forms) if self._wanted != "gpu" else ()))
        for placement in tried:
            if not self._is_over:
                self._try(placement)
        if self._wanted == "auto" and not self._is_over:
            remember(self._site.place, Verdict(best=self._best, trials=tuple(self._trials)))

    def _follow(self, verdict: Verdict) -> None:
        """Do what was best before: the GPU serves until the rest is loaded."""
        if verdict.best is None:
            return
        for placement in dict.fromkeys((gpu(self._forms), verdict.best)):
            engine = self._proved(placement)
            if engine is None:
                if not self._is_over:
                    forget(self._site.place)  # at the next start all is found out anew
                return
            self._engage(engine)
            log.info("Core ML: %s", placement)

    def _engage(self, engine: CoreMLEngine) -> None:
        """From now on it serves; who uses the Neural Engine is sooner given up, for the GPU."""
        patience, instead = self._site.patience, gpu(self._forms)
        if engine.placement == instead:
            engine.rely(patience)
        else:
            engine.rely(replace(patience, deaths=_DEATHS), instead)
        self._relay.relieve(engine)

    def _try(self, placement: Placement) -> None:
        engine = self._proved(placement)
        if engine is None:
            return
        try:
            own_ms, other_ms = self._times(engine, self._relay.engine)
        except EngineError as error:
            self._refuse(placement, engine, str(error.__cause__ or error))
            return
        if all(trial.placement for trial in self._trials):  # the CPU's is not there yet
            self._trials.append(Trial(placement=None, window_ms=other_ms))
        self._trials.append(Trial(placement=placement, window_ms=own_ms))
        if own_ms < other_ms or self._must(placement):
            self._best = placement
            self._engage(engine)
            log.info("Core ML: %s: %.0f ms a window, not %.0f", placement, own_ms, other_ms)
        else:
            engine.close()
            log.info("not %s: %.0f ms a window instead of %.0f", placement, own_ms, other_ms)

    def _times(self, *engines: Engine[Any]) -> list[float]:
        """The time of a window on each of them, in turns, so that what else goes on hits all."""
        best = [math.inf] * len(engines)
        for _ in range(_N_TIMES):
            best = [
                min(ms, self._window_ms(engine)) for ms, engine in zip(best, engines, strict=True)
            ]
        return best

    def _must(self, placement: Placement) -> bool:
        """Whether the user wants it, however slow: the first one of the kind that was asked for."""
        if self._wanted == "auto":
            return False
        return self._best is None or (self._best.encoder != placement.encoder == self._wanted)

    def _proved(self, placement: Placement) -> CoreMLEngine | None:
        """An engine that was loaded, and is right; or else None."""
        site, is_new = self._site, placement.encoder == "ane"
        job = Job(site.built.folder, site.place, placement, site.library, quietly=is_new)
        engine = CoreMLEngine(site.built, Supervisor(site.built.meta, job, patience=ON_PROBATION))
        if is_new:
            log.info("Core ML: compiling for the Neural Engine, while captions go on")
        try:
            numerics = against_golden(engine, golden_vectors(site.built))
        except EngineError as error:
            self._refuse(placement, engine, str(error.__cause__ or error))
            return None
        if not (numerics.logits <= FARTHEST and numerics.alignment <= FARTHEST):  # nor is NaN
            off = f"logits {numerics.logits:.2g} off, alignment {numerics.alignment:.2g}"
            self._refuse(placement, engine, off)
            return None
        return engine

    def _refuse(self, placement: Placement, engine: CoreMLEngine, why: str) -> None:
        engine.close()
        if not self._is_over:
            log.warning("not %s: %s", placement, why)
            self._trials.append(Trial(placement=placement, wrong=why))


def _window_ms(engine: Engine[Any]) -> float:
    n_ctx = min(_N_CTX, engine.dims.n_audio_ctx)
    mel = np.zeros((engine.dims.n_mels, 2 * n_ctx), np.float32)
    n_drafted = 2 * _N_TOKENS
    begun_s = time.perf_counter()
    decoder = engine.decoder(engine.encode(mel, n_ctx), n_drafted + _N_TOKENS)
    for first, k in ((0, n_drafted), *((n_drafted + i, 1) for i in range(_N_TOKENS))):
        order = np.arange(first, first + k)
        visible = np.arange(decoder.n_slots) <= order[:, None]
        decoder.step(np.zeros(k, np.int64), order, order, visible, np.arange(k))
    return (time.perf_counter() - begun_s) * 1000
