"""How much a stream may have decoded: sound that says nothing must not cost more than speech.

The unit is the frame of audio, for as many decoder passes as its text may take (`token_rate` in
`whisper/view.py`). No clock refills a budget: finals do not depend on the speed of the engine.
"""

from streamd.types import N_AUDIO_CTX


class Budget:
    """What `spend` takes from it, each frame of audio refills by `rate`, up to a whole window.

    It may be overdrawn: nobody knows what a window costs before it is decoded.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left: float = N_AUDIO_CTX
        self._at = 0

    def left(self, now: int) -> float:
        """Return what is left at frame `now`; negative if it is overdrawn."""
        return min(N_AUDIO_CTX, self._left + max(0, now - self._at) * self._rate)

    def spend(self, now: int, cost: int) -> None:
        """Take `cost` frames at frame `now`, which never goes back."""
        self._left, self._at = self.left(now) - cost, max(now, self._at)

    @property
    def repaid(self) -> float:
        """The frame from which on it is not overdrawn."""
        return self._at - min(0.0, self._left) / self._rate
