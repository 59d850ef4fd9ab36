"""A stream's recent frames, by their numbers since the beginning of the stream."""

import numpy as np

from streamd.types import FRAME, Frames, Samples

_FIRST_CAPACITY = 512
"""Frames (10 s, 640 KiB): a session with a fast engine needs no more than its window."""


class Ring:
    """Frames `start` to `end` of a stream, at most `limit` of them; the owner calls `forget`.

    Memory grows with the frames held (1280 bytes each) and is never returned: an engine that
    stalled once may stall again.
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
        """Number of the next frame."""
        return self._end

    def append(self, frames: Frames) -> int:
        """Take (n, 320) new frames, which get the numbers `end` to `end + n`.

        Returns how many of the oldest frames were overwritten because of the limit: a gap.
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

        Raises `IndexError` if some of them are not held any more, or not yet.
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
        """Free all frames before number `before`."""
        self._start = max(self._start, min(before, self._end))

    def _grow(self, n_held: int) -> None:
        """Make room for `n_held` frames, and at least double it, so that growth stays cheap."""
        kept = self.read(self._start, self._end).reshape(-1, FRAME)
        capacity = min(self._limit, max(n_held, 2 * len(self._frames)))
        self._frames = np.empty((capacity, FRAME), np.float32)
        self._write(self._start, kept)

    def _write(self, number: int, frames: Frames) -> None:
        capacity = len(self._frames)
        first = number % capacity
        n_to_edge = min(len(frames), capacity - first)
        self._frames[first : first + n_to_edge] = frames[:n_to_edge]
        self._frames[: len(frames) - n_to_edge] = frames[n_to_edge:]
