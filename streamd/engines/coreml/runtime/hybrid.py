"""An engine of two: Core ML encodes a window, in a worker, and another engine decodes it.

What goes from one to the other is the encoder's output of a window's new positions, in half
precision: 0.1 MB in a step of tiny.en, 0.35 of large-v3-turbo.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.golden import (
    GOLDEN_TOLERANCE,
    NUMBER,
    Encode,
    against_golden,
    golden_vectors,
)
from streamd.engines.coreml.package import LIBRARY, BuiltModel
from streamd.engines.coreml.runtime.encoder import CoreMLEncoder
from streamd.engines.coreml.runtime.library import Devices, make_compiled_folder
from streamd.engines.supervised.remote import DroppedNumbers, RemoteEngine
from streamd.engines.supervised.switchover import Candidate
from streamd.engines.supervised.worker import Job, Worker
from streamd.errors import EngineError
from streamd.system.disk import megabytes
from streamd.system.processor import memory_bytes
from streamd.types import Mel
from streamd.whisper.engine import Decoder, Engine, ProjectingEngine

log = logging.getLogger(__name__)

FeaturesT = TypeVar("FeaturesT")

NAME = "the Neural Engine"
_START_S, _LOAD_S, _PLAN_S, _ANSWER_S = 120.0, 3600.0, 120.0, 20.0
"""How long a process may take to start, to compile or load, to plan a package, and for a window."""
_LARGEST_SHARE = 0.5
"""Of the machine's memory: functions share their weights on disk, but Core ML may hold them once
for each in memory (coremltools #2351)."""
_PREPARED = "prepared"
"""A file in the folder of compiled packages that says that all of them are."""


class DecodingEngine(Engine[FeaturesT], ProjectingEngine[FeaturesT], Protocol[FeaturesT]):
    """An engine that decodes what Core ML has encoded."""


@dataclass(frozen=True, eq=False)
class HybridFeatures(Generic[FeaturesT]):
    """A window that the worker has encoded under a number, and its features for the decoder."""

    number: int
    decoded: FeaturesT


class HybridEngine(Generic[FeaturesT]):
    """An `Engine` (streamd/whisper/engine.py) whose encoder is a worker's.

    If the worker is lost, `encode` raises `WorkerLostError`, an `EngineError`; features that there
    are can be decoded all the same.
    """

    def __init__(
        self, built: BuiltModel, worker: Worker, decoding: DecodingEngine[FeaturesT]
    ) -> None:
        """`worker` has loaded a `CoreMLEncoder`."""
        self.dims, self.worker = built.meta.dims, worker
        self._built, self._encode, self._decoding = built, encoding(worker), decoding
        self._numbers, self._dropped = count(), DroppedNumbers(NUMBER)

    @property
    def n_cheap(self) -> int:
        """That of the engine that decodes."""
        return self._decoding.n_cheap

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        previous: HybridFeatures[FeaturesT] | None = None,
        n_reused: int = 0,
    ) -> HybridFeatures[FeaturesT]:
        """Encode log-mel as `Engine.encode` says. Raises `EngineError` if Core ML failed.

        The functions have fixed shapes: more positions may be computed than have to be.
        """
        mel, extent = self._built.extend(mel, audio_ctx)
        before, number = None if previous is None else previous.number, next(self._numbers)
        encoded = self._encode(number, mel, extent, before, n_reused, self._dropped.taken())
        # Fewer than that, if the worker knew less of the window before.
        n_known = extent.n - len(encoded)
        decoded = self._decoding.project(
            encoded,
            extent,
            previous=previous.decoded if previous and n_known else None,
            n_reused=n_known,
        )
        return self._dropped.watched(HybridFeatures(number, decoded), number)

    def decoder(self, features: HybridFeatures[FeaturesT], n_slots: int) -> Decoder:
        """Return a decoder for these features with an empty pool of `n_slots` slots."""
        return self._decoding.decoder(features.decoded, n_slots)

    def close(self) -> None:
        """End the worker, and that of the engine that decodes; nothing can be encoded any more."""
        self.worker.close()
        if isinstance(self._decoding, RemoteEngine):
            self._decoding.close()


# -- workers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoreMLCandidate(Generic[FeaturesT]):
    """The Neural Engine as a `Candidate` (streamd/engines/supervised/switchover.py).

    `find` finds the packages or builds them. `decoding` is an engine that stays, or a candidate
    that is loaded and ended with the encoder. `library` is the module that runs Core ML.
    """

    find: Callable[[], BuiltModel]
    decoding: DecodingEngine[FeaturesT] | Candidate
    library: str = LIBRARY
    answer_s: float = _ANSWER_S

    @property
    def name(self) -> str:
        """What the log calls it."""
        where = "the CPU" if isinstance(self.decoding, ProjectingEngine) else self.decoding.name
        return f"{NAME}, decoder on {where}"

    def load(self) -> HybridEngine[FeaturesT]:
        """Have Core ML compile what it has not yet, load it, and compare it with golden vectors.

        Raises `EngineError` if Core ML fails, or computes something else; `ModelError` if files are
        damaged or cannot be written.
        """
        built = self.find()
        golden = golden_vectors(built)
        prepare(built, library=self.library)
        worker = load_encoder(built, library=self.library, answer_s=self.answer_s)
        try:
            off, where = against_golden(encoding(worker), built, golden)
            if not off <= GOLDEN_TOLERANCE:  # or NaN
                raise EngineError(
                    f"{off:.2g} off at {where}, where {GOLDEN_TOLERANCE:g} is allowed"
                )
            decoding: Any = self.decoding
            if not isinstance(decoding, ProjectingEngine):
                decoding = decoding.load()
        except EngineError:
            worker.close()
            raise
        log.info("%s: %s", NAME, megabytes(worker.used_bytes()))
        return HybridEngine(built, worker, decoding)


def prepare(built: BuiltModel, *, library: str = LIBRARY) -> None:
    """Have Core ML compile an encoder, while everything else goes first, unless it has.

    Each function takes seconds to minutes. Raises `WorkerLostError` if Core ML refuses one.
    """
    compiled = make_compiled_folder(built)
    if (compiled / _PREPARED).exists():
        return
    log.info("%s: compiling %s while captions continue", NAME, built.meta.name)
    worker = _worker(built, library, background=True)
    try:
        worker.answer_s = _LOAD_S
        worker.call("load", False)
    finally:
        worker.close()
    with suppress(OSError):  # then it is done again
        (compiled / _PREPARED).touch()


def load_encoder(
    built: BuiltModel, *, library: str = LIBRARY, answer_s: float = _ANSWER_S
) -> Worker:
    """Start a worker that has loaded a `CoreMLEncoder`. Raises `WorkerLostError`."""
    worker = _worker(built, library)
    worker.answer_s = _LOAD_S
    worker.call("load")
    worker.answer_s = answer_s
    return worker


def encoding(worker: Worker) -> Encode:
    """Return `CoreMLEncoder.encode` of a worker that has loaded it."""

    def encode(*given: object) -> NDArray[np.float16]:
        encoded = worker.call("encode", *given)
        assert isinstance(encoded, np.ndarray)
        return encoded

    return encode


def plan(built: BuiltModel, package: str, *, library: str = LIBRARY) -> dict[str, Devices]:
    """Return the devices of each function of a package, nothing if Core ML does not say.

    Core ML is asked in a process of its own: ``MLComputePlan`` is slow, and is known to crash.
    """
    worker = None
    try:
        worker = _worker(built, library)
        worker.answer_s = _PLAN_S
        found = worker.call("plan", package)
        assert isinstance(found, dict)
    except EngineError:
        return {}
    finally:
        if worker is not None:
            worker.close()
    return found


def _worker(built: BuiltModel, library: str, *, background: bool = False) -> Worker:
    make = partial(CoreMLEncoder, built, make_compiled_folder(built), library)
    worker = Worker(Job(make, NAME, background=background))
    worker.most_bytes = _LARGEST_SHARE * memory_bytes()
    worker.wait(_START_S)
    return worker
