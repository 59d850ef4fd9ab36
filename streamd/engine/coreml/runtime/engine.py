"""Whisper on Core ML: an engine whose work is done by a supervised process.

Any thread may call it; it does one thing at a time. Where the model runs, and whether the worker
had to be replaced in the middle of a window, does not show in what it gives.
"""

import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import finalize

import numpy as np

from streamd.engine.coreml.built import Built
from streamd.engine.coreml.runtime.decoder import CoreMLDecoder, Pass
from streamd.engine.coreml.runtime.placement import Placement
from streamd.engine.coreml.runtime.process import Worker, WorkerLostError
from streamd.engine.coreml.runtime.seats import Heard, Seats
from streamd.engine.coreml.runtime.supervisor import Patience, Supervisor
from streamd.search import Alignment, Logits
from streamd.types import Mel

ResultT = TypeVar("ResultT")


class CoreMLFeatures:
    """A window that is heard, by some worker."""

    def __init__(self, engine: "CoreMLEngine", mel: Mel) -> None:
        self.heard = Heard(mel)
        self._engine = engine

    def decode(
        self, decoder: CoreMLDecoder, attempt: Callable[[int, Pass], tuple[Logits, Alignment]]
    ) -> tuple[Logits, Alignment]:
        """As `streamd.engine.coreml.runtime.decoder.Window` says."""

        def try_with(worker: Worker) -> tuple[Logits, Alignment]:
            seat = self._engine.seat(worker, self.heard, decoder)
            return attempt(seat, lambda step: worker.step(step, self.heard.n_ctx))

        return self._engine.persist(try_with)


class CoreMLEngine:
    """A built model on Core ML; an `Engine` (streamd/engine/__init__.py)."""

    def __init__(self, built: Built, supervisor: Supervisor) -> None:
        """The supervisor's worker ends with the engine, or when it is closed."""
        self.dims = built.meta.dims
        self._supervisor = supervisor
        self._lock = threading.RLock()
        self._seats = Seats()
        self._end = finalize(self, supervisor.close)

    @property
    def placement(self) -> Placement:
        """Where the model runs now."""
        return self._supervisor.placement

    def start(self) -> None:
        """Load the model now rather than with the first window.

        Raises
        ------
        EngineError
            As below.
        """
        self.persist(lambda worker: None)

    def rely(self, patience: Patience, *instead: Placement) -> None:
        """As `Supervisor.rely`."""
        with self._lock:
            self._supervisor.rely(patience, *instead)

    def close(self) -> None:
        """End the worker; the engine is not used any more."""
        self._end()

    def encode(self, mel: Mel, n_ctx: int) -> CoreMLFeatures:
        """Encode (n_mels, 2 * n_ctx) log-mel; `n_ctx` may be shorter than the trained context.

        Raises
        ------
        EngineError
            Core ML failed again and again.
        ValueError
            The log-mel does not have the shape that `n_ctx` demands.
        """
        if not 0 < n_ctx <= self.dims.n_audio_ctx or mel.shape != (self.dims.n_mels, 2 * n_ctx):
            raise ValueError(f"log-mel of shape {mel.shape} for {n_ctx} encoder positions")
        features = CoreMLFeatures(self, np.array(mel, np.float32))
        with self._lock:
            self._supervisor.new_window()
            self.persist(lambda worker: self.seat(worker, features.heard))
        return features

    def decoder(self, features: CoreMLFeatures, n_slots: int) -> CoreMLDecoder:
        """Give a decoder for these features with an empty pool of `n_slots` cache slots."""
        return CoreMLDecoder(self.dims, features, n_slots)

    def persist(self, attempt: Callable[[Worker], ResultT]) -> ResultT:
        """Do something with the worker; should it be lost, all of it again with another.

        Raises
        ------
        EngineError
            One too many was lost.
        """
        with self._lock:
            while True:
                try:
                    return attempt(self._supervisor.worker())
                except WorkerLostError as error:
                    self._supervisor.lost(error)

    def seat(self, worker: Worker, window: Heard, decoder: CoreMLDecoder | None = None) -> int:
        """As `Seats.take`."""
        return self._seats.take(worker, window, decoder)
