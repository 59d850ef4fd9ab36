"""An engine that another one can relieve, between two windows.

Captions start with what is there at once; a faster engine takes over when it is ready. A window is
decoded to its end by the engine that encoded it.
"""

from dataclasses import dataclass
from typing import Any

from streamd.engine import Engine
from streamd.search import Decoder
from streamd.types import Mel


@dataclass(frozen=True, slots=True)
class RelayFeatures:
    """A window, and the engine that has it."""

    engine: Engine[Any]
    features: Any


class Relay:
    """Runs windows on the engine at hand; an `Engine` (streamd/engine/__init__.py)."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.dims = engine.dims
        self._engine = engine

    @property
    def engine(self) -> Engine[Any]:
        """The one for the next window."""
        return self._engine

    def relieve(self, engine: Engine[Any]) -> None:
        """From the next window on, `engine` runs them; called from any thread.

        It must be of the same model. The one before is let go when its last window is done.
        """
        self._engine = engine

    def encode(self, mel: Mel, n_ctx: int) -> RelayFeatures:
        """As the engine at hand does it."""
        engine = self._engine
        return RelayFeatures(engine, engine.encode(mel, n_ctx))

    def decoder(self, features: RelayFeatures, n_slots: int) -> Decoder:
        """A decoder of the engine that encoded the window."""
        return features.engine.decoder(features.features, n_slots)
