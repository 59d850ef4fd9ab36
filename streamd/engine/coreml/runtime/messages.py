"""What the supervisor and a worker say to each other; what is large lies in `shared`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.runtime.placement import Placement


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to run.

    `folder` is the built model's; `compiled` where its compiled form is kept; `library` the module
    to import for Core ML: coremltools, or in tests what takes its place. `quietly`: while it loads,
    leave the processor to others.
    """

    folder: Path
    compiled: Path
    placement: Placement
    library: str
    quietly: bool = False


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode the shared log-mel, of which (n_mels, 2 * n_ctx) count, for the seat's decoders."""

    seat: int
    n_ctx: int


@dataclass(frozen=True, slots=True)
class Step:
    """A pass of at most 32 tokens over the seat's window, as `streamd.search.Decoder` has them.

    `places` are the slots of the cache that the worker has; `visible` is (k, n_places).
    """

    seat: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    places: NDArray[np.int64]
    visible: NDArray[np.bool_]
    want: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Progress:
    """The worker is still loading: what it is at now."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The worker has loaded, or has done what it was told; results lie in the shared arrays."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Core ML refused; the worker ends."""

    reason: str


Request = Encode | Step
Reply = Progress | Done | Failed
