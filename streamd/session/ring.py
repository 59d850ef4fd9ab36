"""The last minutes of a stream's audio."""

import numpy as np

from streamd.types import Frames, Samples


class Ring:
    """Frames `start` to `end` of a stream, at most `limit` of them; the owner calls `forget`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: list[Samples] = []
        self.start = 0  # number of the oldest frame held; equal to `end` when nothing is held

    @property
    def end(self) -> int:
        """Number of the next frame."""
        return self.start + len(self._frames)

    def append(self, frames: Frames) -> int:
        """Take (n, 320) new frames; return how many of the oldest were dropped at the limit."""
        self._frames.extend(frames.copy())
        n_lost = max(0, len(self._frames) - self._limit)
        self.forget(self.start + n_lost)
        return n_lost

    def read(self, start: int, end: int) -> Samples:
        """Copy frames `start` to `end`: (n * 320,). Raises `IndexError` if they are not held."""
        if not self.start <= start <= end <= self.end:
            held = f"{self.start}..{self.end}"
            raise IndexError(f"frames {start}..{end} are not in the ring, which holds {held}")
        parts = self._frames[start - self.start : end - self.start]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def forget(self, before: int) -> None:
        """Free all frames before number `before`."""
        n = min(max(0, before - self.start), len(self._frames))
        del self._frames[:n]
        self.start += n
