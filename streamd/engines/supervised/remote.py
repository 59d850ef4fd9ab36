"""An engine in a worker: what runs there, and the `Engine` that stands for it in the program.

Features and decoders stay in the worker under numbers. When the program drops one, its number goes
along with the next window.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, Protocol, TypeVar, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from streamd.engines.supervised.worker import Worker, WorkerLostError
from streamd.models import ModelDimensions
from streamd.models.silence import Extent
from streamd.types import Mel
from streamd.whisper.engine import Answer, BatchEngine, Decoder, Engine, Pass, Together

StandInT = TypeVar("StandInT")
_Indices = NDArray[np.int64]
Asked = tuple[_Indices, _Indices, _Indices, NDArray[np.bool_], _Indices, _Indices | None]
"""What `Decoder.step` is called with."""


Figures = dict[str, str | float]
"""``device``, ``library``; ``memory``, ``active`` and ``cached`` bytes; ``graph_s``, seconds that
were spent on graphs, without what they compute."""


class SupervisedEngine(Engine[Any], BatchEngine[Any], Protocol):
    """An engine that can run in a worker."""

    def figures(self) -> Figures:
        """Return what it says of its device and memory."""


# -- in the worker --------------------------------------------------------------------------------


class ServedEngine:
    """What a worker calls; numbers are the program's. It never has two of the same number."""

    def __init__(self, engine: SupervisedEngine) -> None:
        self._engine, self._together = engine, engine.together(lambda: True)
        self._features: dict[int, Any] = {}
        self._decoders: dict[int, Decoder] = {}

    def about(self) -> tuple[ModelDimensions, int, int]:
        """Return the model's dimensions, `Engine.n_cheap` and `BatchEngine.n_together`."""
        return self._engine.dims, self._engine.n_cheap, self._engine.n_together

    def figures(self) -> Figures:
        """Return what the engine says of its device and memory."""
        return self._engine.figures()

    def features(
        self,
        number: int,
        method: Literal["encode", "project"],
        given: tuple[Any, ...],
        options: dict[str, Any],
        dropped: list[int],
    ) -> None:
        """Make features of a window by a method of the engine, after dropping others."""
        if (previous := options["previous"]) is not None:
            options["previous"] = self._features[previous]
        self._drop(dropped)
        self._features[number] = getattr(self._engine, method)(*given, **options)

    def encode_together(self, number: int, mel: Mel, dropped: list[int]) -> None:
        """Encode a window whose passes run with others."""
        self._drop(dropped)
        self._features[number] = self._together.encode(mel)

    def step_together(self, asked: Sequence[tuple[int, Asked]]) -> list[Answer]:
        """Run a pass of each of several decoders."""
        return self._together([Pass(self._decoders[number], *each) for number, each in asked])

    def decoder(self, number: int, features: int, n_slots: int) -> None:
        """Make a decoder."""
        self._decoders[number] = self._engine.decoder(self._features[features], n_slots)

    def adopt(self, decoder: int, before: int, n: int) -> bool:
        """Take the first `n` slots of another window's decoder."""
        return self._decoders[decoder].adopt(self._decoders[before], n)

    def step(self, decoder: int, asked: Asked) -> Answer:
        """Run a pass."""
        return self._decoders[decoder].step(*asked)

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._features.pop(number, None)
            self._decoders.pop(number, None)


# -- in the program -------------------------------------------------------------------------------


class DroppedNumbers:
    """The numbers in a worker of what the program has dropped. Any thread may call."""

    def __init__(self, *numbers: int) -> None:
        self._dropped = deque(numbers)

    def watched(self, stand_in: StandInT, number: int) -> StandInT:
        """Return what stands for a number in the program; that is dropped with it."""
        finalize(stand_in, self._dropped.append, number).atexit = False
        return stand_in

    def taken(self) -> list[int]:
        """Return the numbers that were dropped since this was last called."""
        taken = []
        with suppress(IndexError):  # until there are no more: several threads take some
            while True:
                taken.append(self._dropped.popleft())
        return taken


@dataclass(frozen=True, eq=False)
class RemoteFeatures:
    """Features of a window that an engine's worker has under a number."""

    engine: "RemoteEngine"
    number: int


class RemoteEngine:
    """An `Engine` (streamd/whisper/engine.py) in a worker that has loaded a `ServedEngine`.

    Every method raises `WorkerLostError` if the worker is lost; then it cannot be used any more.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker, self._numbers, self._dropped = worker, count(), DroppedNumbers()
        self.dims, self.n_cheap, self.n_together = cast(
            tuple[ModelDimensions, int, int], worker.call("about")
        )

    def encode(
        self,
        mel: Mel,
        *,
        audio_ctx: int = 0,
        previous: RemoteFeatures | None = None,
        n_reused: int = 0,
    ) -> RemoteFeatures:
        """Encode log-mel as `Engine.encode` says."""
        given = {"audio_ctx": audio_ctx, "n_reused": n_reused}
        return self._features("encode", (mel,), given, previous)

    def project(
        self,
        encoded: NDArray[np.float16],
        extent: Extent,
        *,
        previous: RemoteFeatures | None = None,
        n_reused: int = 0,
    ) -> RemoteFeatures:
        """Take what another encoder computed, as `ProjectingEngine.project` says."""
        return self._features("project", (encoded, extent), {"n_reused": n_reused}, previous)

    def _features(
        self,
        method: Literal["encode", "project"],
        given: tuple[Any, ...],
        options: dict[str, Any],
        previous: RemoteFeatures | None,
    ) -> RemoteFeatures:
        options["previous"] = None if previous is None else previous.number
        number = next(self._numbers)
        self.worker.call("features", number, method, given, options, self._dropped.taken())
        return self._dropped.watched(RemoteFeatures(self, number), number)

    def decoder(self, features: RemoteFeatures, n_slots: int) -> "RemoteDecoder":
        """Return a decoder for these features with an empty pool of `n_slots` slots."""
        number = next(self._numbers)
        self.worker.call("decoder", number, features.number, n_slots)
        return self._dropped.watched(RemoteDecoder(self, number, n_slots), number)

    def together(self, is_alone: Callable[[], bool]) -> "RemoteTogether":
        """Return what runs passes of several decoders at once."""
        return RemoteTogether(self)

    def encode_together(self, mel: Mel) -> RemoteFeatures:
        """Encode a window whose passes run with others."""
        number = next(self._numbers)
        self.worker.call("encode_together", number, mel, self._dropped.taken())
        return self._dropped.watched(RemoteFeatures(self, number), number)

    def checked(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Return what was computed; NaN or infinity counts as a lost worker."""
        if not all(np.isfinite(part).all() for answer in answers for part in answer):
            self.close()
            raise WorkerLostError("computed infinity or NaN")
        return answers

    def figures(self) -> Figures:
        """Return what the engine says of its device and memory."""
        return cast(Figures, self.worker.call("figures"))

    def close(self) -> None:
        """End the worker."""
        self.worker.close()


class RemoteDecoder:
    """A `Decoder` (streamd/whisper/engine.py) in a worker."""

    def __init__(self, engine: RemoteEngine, number: int, n_slots: int) -> None:
        self.n_vocab, self.n_text_ctx = engine.dims.n_vocab, engine.dims.n_text_ctx
        self.n_slots, self.number, self.engine = n_slots, number, engine

    def step(
        self,
        tokens: _Indices,
        positions: _Indices,
        slots: _Indices,
        visible: NDArray[np.bool_],
        want: _Indices,
        among: _Indices | None = None,
    ) -> Answer:
        """Run k tokens in one pass. NaN or infinity counts as a lost worker."""
        asked = tokens, positions, slots, visible, want, among
        answer = cast(Answer, self.engine.worker.call("step", self.number, asked))
        return self.engine.checked([answer])[0]

    def adopt(self, before: Decoder, n: int) -> bool:
        """Take the first `n` slots of another window's decoder in the same worker."""
        if not isinstance(before, RemoteDecoder) or before.engine is not self.engine:
            return False
        return bool(self.engine.worker.call("adopt", self.number, before.number, n))


class RemoteTogether(Together[RemoteFeatures]):
    """Passes of several windows in one request."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    def __call__(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes, each of another window."""
        asked = [(cast(RemoteDecoder, decoder).number, each) for decoder, *each in passes]
        found = cast(list[Answer], self._engine.worker.call("step_together", asked))
        return list(self._engine.checked(found))

    def encode(self, mel: Mel) -> RemoteFeatures:
        """Encode a window, as `Together.encode` says."""
        return self._engine.encode_together(mel)
