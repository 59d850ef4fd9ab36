"""A stream's recent frames, held under the numbers that they have for good.

Frame numbers count from the beginning of the stream and are never reused. The ring knows nothing of
what is needed for how long: its owner says with `forget` what may go.
"""

import numpy as np

from streamd.types import FRAME, Frames, Samples

_FIRST_CAPACITY = 512
"""Frames: 10 s, 640 KiB. A session on a fast engine never needs more than its window."""


class Ring:
    """Frames `start` to `end` of a stream, `limit` of them at most.

    Memory grows with what is held (1280 bytes a frame) and stays: an engine that stalled once may
    stall again.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a ring needs room for at least one frame, got {limit}")
        self._limit = limit
        self._frames = np.empty((min(limit, _FIRST_CAPACITY), FRAME), np.float32)
        self._start = 0
        self._end = 0

    @property
    def start(self) -> int:
        """Number of the oldest frame held; equal to `end` when nothing is held."""
        return self._start

    @property
    def end(self) -> int:
        """Number that the next frame will get."""
        return self._end

    def append(self, frames: Frames) -> int:
        """Take (n, 320) new frames, which get the numbers `end` to `end + n`.

        Returns
        -------
        How many frames nobody had forgotten yet are gone because the limit was reached. They are
        the oldest; when it is not 0, tell the listeners of a gap.
        """
        n_held = min(self._end - self._start + len(frames), self._limit)
        if n_held > len(self._frames):
            self._grow(n_held)
        self._end += len(frames)
        oldest = max(self._start, self._end - self._limit)
        n_lost = oldest - self._start
        self._start = oldest
        newest = frames[-self._limit :]
        self._write(self._end - len(newest), newest)
        return n_lost

    def read(self, start: int, end: int) -> Samples:
        """Copy the samples of frames `start` to `end`, ((end - start) * 320,).

        Raises
        ------
        IndexError
            Some of them are not held (not yet appended, forgotten or overwritten).
        """
        if not self._start <= start <= end <= self._end:
            held = f"{self._start}..{self._end}"
            raise IndexError(f"frames {start}..{end} are not in the ring, which holds {held}")
        capacity = len(self._frames)
        first = start % capacity
        n_to_edge = min(end - start, capacity - first)
        n_wrapped = end - start - n_to_edge
        parts = (self._frames[first : first + n_to_edge], self._frames[:n_wrapped])
        return np.concatenate(parts).reshape(-1)

    def forget(self, before: int) -> None:
        """Free all frames before number `before`; numbers already forgotten do not matter."""
        self._start = max(self._start, min(before, self._end))

    def _grow(self, n_held: int) -> None:
        """Make room for at least `n_held` frames, at least doubling so that growth stays cheap."""
        kept = self.read(self._start, self._end).reshape(-1, FRAME)
        capacity = min(self._limit, max(n_held, 2 * len(self._frames)))
        self._frames = np.empty((capacity, FRAME), np.float32)
        self._write(self._start, kept)

    def _write(self, number: int, frames: Frames) -> None:
        """Store frames from `number` on; not more than there is room for."""
        capacity = len(self._frames)
        first = number % capacity
        n_to_edge = min(len(frames), capacity - first)
        self._frames[first : first + n_to_edge] = frames[:n_to_edge]
        self._frames[: len(frames) - n_to_edge] = frames[n_to_edge:]
