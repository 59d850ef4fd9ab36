"""An engine of two: Core ML encodes a window, in a worker, and another engine decodes it.

What goes from one to the other is the encoder's output of a window's new positions, in half
precision: 0.1 MB in a step of tiny.en, 0.35 of large-v3-turbo.
"""

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

from streamd.engines.coreml.golden import NUMBER, check_golden
from streamd.engines.coreml.package import LIBRARY, BuiltModel
from streamd.engines.coreml.runtime.encoder import CoreMLEncoder, Devices, make_compiled_folder
from streamd.engines.supervised.remote import RemoteEngine
from streamd.engines.supervised.switchover import Candidate
from streamd.engines.supervised.worker import DroppedNumbers, Job, Worker
from streamd.errors import EngineError, ModelError
from streamd.models.silence import extend
from streamd.system.disk import megabytes
from streamd.system.processor import memory_bytes
from streamd.types import Mel
from streamd.whisper.engine import Decoder, Engine, ProjectingEngine, Reuse

log = logging.getLogger(__name__)

NAME = "the Neural Engine"
_START_S, _LOAD_S, _PLAN_S, _ANSWER_S = 120.0, 3600.0, 120.0, 20.0
"""How long a process may take to start, to compile or load, to plan a package, and for a window."""
_LARGEST_SHARE = 0.5
"""Of the machine's memory: functions share their weights on disk, but Core ML may hold them once
for each in memory (coremltools #2351)."""
_PREPARED = "prepared"
"""A file in the folder of compiled packages that says that all of them are."""


class DecodingEngine(Engine[Any], ProjectingEngine[Any], Protocol):
    """An engine that decodes what Core ML has encoded."""


@dataclass(frozen=True, eq=False)
class HybridFeatures:
    """A window that the worker has encoded under a number, and its features for the decoder."""

    number: int
    decoded: Any


class HybridEngine:
    """An `Engine` (streamd/whisper/engine.py) whose encoder is a worker's.

    If the worker is lost, `encode` raises `WorkerLostError`, an `EngineError`; features that there
    are can be decoded all the same.
    """

    def __init__(self, built: BuiltModel, worker: Worker, decoding: DecodingEngine) -> None:
        """`worker` has loaded a `CoreMLEncoder`."""
        self.dims, self.worker, self.n_cheap = built.meta.dims, worker, decoding.n_cheap
        self._decoding, self._has_silence = decoding, built.meta.silence
        self._numbers, self._dropped = count(), DroppedNumbers(NUMBER)

    def encode(
        self, mel: Mel, reuse: Reuse[HybridFeatures] | None = None, *, audio_ctx: int = 0
    ) -> HybridFeatures:
        """Encode log-mel as `Engine.encode` says. Raises `EngineError` if Core ML failed.

        The functions have fixed shapes: more positions may be computed than have to be.
        """
        mel, extent = extend(mel, self.dims, has_silence=self._has_silence, audio_ctx=audio_ctx)
        before, n_reused = (reuse.features, reuse.n) if reuse else (None, 0)
        number = next(self._numbers)
        given = number, mel, extent, before and before.number, n_reused, self._dropped.taken()
        encoded: Any = self.worker.call("encode", *given)
        # Fewer than that, if the worker knew less of the window before.
        n_known = extent.n - len(encoded)
        known = Reuse(before.decoded, n_known) if before and n_known else None
        decoded = self._decoding.project(encoded, extent, reuse=known)
        return self._dropped.watched(HybridFeatures(number, decoded), number)

    def decoder(self, features: HybridFeatures, n_slots: int) -> Decoder:
        return self._decoding.decoder(features.decoded, n_slots)

    def close(self) -> None:
        """End the worker, and that of the engine that decodes; nothing can be encoded any more."""
        self.worker.close()
        if isinstance(self._decoding, RemoteEngine):
            self._decoding.close()


# -- workers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoreMLCandidate:
    """The Neural Engine as a `Candidate` (streamd/engines/supervised/switchover.py).

    `find` finds the packages or builds them. `decoding` is an engine that stays, or a candidate
    that is loaded and ended with the encoder. `library` is the module that runs Core ML.
    """

    find: Callable[[], BuiltModel]
    decoding: DecodingEngine | Candidate
    library: str = LIBRARY
    answer_s: float = _ANSWER_S

    @property
    def name(self) -> str:
        """What the log calls it."""
        where = "the CPU" if isinstance(self.decoding, ProjectingEngine) else self.decoding.name
        return f"{NAME}, decoder on {where}"

    def load(self) -> HybridEngine:
        """Have Core ML compile what it has not yet, load it, and compare it with golden vectors.

        Raises `EngineError` if Core ML fails, or computes something else; `ModelError` if files are
        damaged or cannot be written.
        """
        built = self.find()
        prepare(built, library=self.library)
        worker, told = load_encoder(built, library=self.library, answer_s=self.answer_s)
        log.info("%s: %s; golden vectors %s", NAME, megabytes(worker.used_bytes()), told)
        if isinstance(self.decoding, ProjectingEngine):
            return HybridEngine(built, worker, self.decoding)
        try:
            decoding: Any = self.decoding.load()
        except EngineError:
            worker.close()
            raise
        return HybridEngine(built, worker, decoding)


def prepare(built: BuiltModel, *, library: str = LIBRARY) -> None:
    """Have Core ML compile an encoder, while everything else goes first, unless it has.

    Each function takes seconds to minutes. Raises `WorkerLostError` if Core ML refuses one.
    """
    compiled = make_compiled_folder(built)
    if (compiled / _PREPARED).exists():
        return
    log.info("%s: compiling %s while captions continue", NAME, built.meta.name)
    with closing(_worker(built, library, background=True)) as worker:
        worker.call("load", False)
    with suppress(OSError):  # then it is done again
        (compiled / _PREPARED).touch()


def load_encoder(
    built: BuiltModel, *, library: str = LIBRARY, answer_s: float = _ANSWER_S
) -> tuple[Worker, str]:
    """Start a worker that has loaded a `CoreMLEncoder`; return it, and how right it is.

    Raises `ModelError` if the golden vectors are damaged, `EngineError` if the encoder computes
    something else, or cannot be loaded.
    """
    worker = _worker(built, library)
    try:
        worker.call("load")
        worker.answer_s = answer_s
        return worker, check_golden(partial(worker.call, "encode"), built)
    except (EngineError, ModelError):
        worker.close()
        raise


def plan(built: BuiltModel, package: str, *, library: str = LIBRARY) -> dict[str, Devices]:
    """Return the devices of each function of a package, nothing if Core ML does not say.

    Core ML is asked in a process of its own: ``MLComputePlan`` is slow, and is known to crash.
    """
    try:
        with closing(_worker(built, library)) as worker:
            worker.answer_s = _PLAN_S
            found = worker.call("plan", package)
    except EngineError:
        return {}
    assert isinstance(found, dict)
    return found


def _worker(built: BuiltModel, library: str, *, background: bool = False) -> Worker:
    make = partial(CoreMLEncoder, built, make_compiled_folder(built), library)
    worker = Worker(Job(make, NAME, background=background))
    worker.most_bytes = _LARGEST_SHARE * memory_bytes()
    worker.wait(_START_S)
    worker.answer_s = _LOAD_S
    return worker
