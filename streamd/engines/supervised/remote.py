"""The `Engine` that stands for one in a worker, where features and decoders stay (`Handle`)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engines.supervised.worker import Handle, Worker, WorkerLostError
from streamd.models.silence import Extent
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass, Reuse, Together

Figures = dict[str, str | float]
"""``device``, ``library``; ``memory``, ``active`` and ``cached`` bytes; ``graph_s``, seconds that
were spent on graphs, without what they compute."""


class RemoteEngine(Together[Handle]):
    """An `Engine`, `ProjectingEngine` and `BatchEngine` that a worker has loaded.

    Every method raises `WorkerLostError` if the worker is lost; then it cannot be used any more.
    """

    def __init__(self, worker: Worker) -> None:
        names = "dims", "n_cheap", "n_together"
        about: Any = [worker.call("__getattribute__", name) for name in names]
        self.dims, self.n_cheap, self.n_together = about
        self.worker = worker

    def encode(self, mel: Mel, reuse: Reuse[Handle] | None = None, *, audio_ctx: int = 0) -> Handle:
        return self.worker.keep("encode", mel, reuse, options={"audio_ctx": audio_ctx})

    def project(
        self, encoded: NDArray[np.float16], extent: Extent, *, reuse: Reuse[Handle] | None = None
    ) -> Handle:
        return self.worker.keep("project", encoded, extent, options={"reuse": reuse})

    def decoder(self, features: Handle, n_slots: int) -> "RemoteDecoder":
        return RemoteDecoder(self, self.worker.keep("decoder", features, n_slots), n_slots)

    def together(self, is_alone: Callable[[], bool]) -> Together[Handle]:
        return self

    def encode_alone(self, mel: Mel) -> Handle:
        return self.worker.keep("encode_alone", mel)

    def run(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes in one request; NaN or infinity counts as a lost worker."""
        answers: Any = self.worker.call("run", passes)
        if not all(np.isfinite(part).all() for answer in answers for part in answer):
            self.close()
            raise WorkerLostError("computed infinity or NaN")
        return list(answers)

    def figures(self) -> Figures:
        """Return what the engine says of its device and memory."""
        found: Any = self.worker.call("figures")
        return dict(found)

    def close(self) -> None:
        self.worker.close()


class RemoteDecoder:
    """A `Decoder` in a worker; in the arguments of a call there, it is that one."""

    def __init__(self, engine: RemoteEngine, there: Handle, n_slots: int) -> None:
        self.n_vocab, self.n_text_ctx = engine.dims.n_vocab, engine.dims.n_text_ctx
        self.n_slots, self._there, self._engine = n_slots, there, engine

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._there,)

    def run(self, asked: Pass) -> Answer:
        (answer,) = self._engine.run([asked])
        return answer

    def adopt(self, before: Decoder, n: int) -> bool:
        if not isinstance(before, RemoteDecoder) or before._engine is not self._engine:
            return False
        return bool(self._engine.worker.call("adopt", before, n, on=self._there))


def _itself(kept: object) -> object:
    return kept
