"""An engine that can be replaced by another one between two windows.

Captions start on the engine that is ready first; a faster one replaces it when that is ready.
"""

from typing import Any

from streamd.engine import Engine
from streamd.search import Decoder
from streamd.types import Mel

SwitchingFeatures = tuple[Engine[Any], Any]
"""The engine that encoded a window, which must decode it too, and its features."""


class SwitchingEngine:
    """Runs windows on the current engine; an `Engine` (streamd/engine/__init__.py)."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.dims = engine.dims
        self._engine = engine

    @property
    def current(self) -> Engine[Any]:
        """The engine that encodes the next window."""
        return self._engine

    def switch_to(self, engine: Engine[Any]) -> None:
        """Run the next windows on `engine`, of the same model; any thread may call this.

        The old engine is released when its last window is done.
        """
        self._engine = engine

    def encode(self, mel: Mel, *, audio_ctx: int = 0) -> SwitchingFeatures:
        """Encode a window on the current engine."""
        engine = self._engine
        return engine, engine.encode(mel, audio_ctx=audio_ctx)

    def decoder(self, features: SwitchingFeatures, n_slots: int) -> Decoder:
        """Return a decoder of the engine that encoded the window."""
        engine, encoded = features
        return engine.decoder(encoded, n_slots)
