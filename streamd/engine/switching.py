"""An engine that can be replaced by another one between two windows.

Captions start on the engine that is ready first; a faster one replaces it when that is ready.
"""

from collections.abc import Callable
from typing import Any

from streamd.engine import Engine
from streamd.search import Decoder
from streamd.types import Mel

Fits = Callable[[Mel, int], bool]
"""Tells of a window, as `Engine.encode` gets it, whether an engine can run it."""
SwitchingFeatures = tuple[Engine[Any], Any]
"""The engine that encoded a window, which must decode it too, and its features."""


class SwitchingEngine:
    """Runs windows on the current engine; an `Engine` (streamd/engine/__init__.py)."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.dims = engine.dims
        self._engine: Engine[Any] = engine
        self._before: tuple[Engine[Any], Fits] | None = None

    @property
    def current(self) -> Engine[Any]:
        """The engine that encodes the next window."""
        return self._engine

    def switch_to(self, engine: Engine[Any], *, fits: Fits | None = None) -> None:
        """Run the next windows on `engine`, of the same model; any thread may call this.

        With `fits`, windows that it refuses still run on the old engine, until the next switch.
        Without, that is released when its last window is done.
        """
        before = self._engine
        self._before = (before, fits) if fits and before is not engine else None
        self._engine = engine

    def encode(self, mel: Mel, *, audio_ctx: int = 0) -> SwitchingFeatures:
        """Encode a window on the current engine."""
        engine, before = self._engine, self._before
        if before is not None and not before[1](mel, audio_ctx):
            engine = before[0]
        return engine, engine.encode(mel, audio_ctx=audio_ctx)

    def decoder(self, features: SwitchingFeatures, n_slots: int) -> Decoder:
        """Return a decoder of the engine that encoded the window."""
        engine, encoded = features
        return engine.decoder(encoded, n_slots)
