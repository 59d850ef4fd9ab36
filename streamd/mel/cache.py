"""Log-mel of a stream's windows, computing each column once.

Consecutive windows of a stream share most of their audio. A column sees 400 samples, so it can be
taken over from an earlier window when all of them lie inside what the two windows share. What they
share is established by comparing the samples, not by whom they came from: streams that use the same
cache cannot be mixed up.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from streamd.mel.spectrogram import HOP, REACH, SILENCE, log10_mel, normalise, reflect
from streamd.types import FRAME, Mel, Samples

_HOPS = FRAME // HOP
_EDGE = -(-REACH // HOP)
"""Columns at an end of the audio that see beyond it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A window's own columns, without padding; `start` in frames of the stream."""

    start: int
    samples: Samples
    columns: Mel

    @property
    def end(self) -> int:
        return self.start + len(self.samples) // FRAME


class MelCache:
    """Gives log-mels of zero-padded windows; remembers the last few windows.

    Not thread-safe: it belongs to the recognizer that calls it.
    """

    def __init__(self, n_mels: int, *, n_windows: int = 8) -> None:
        """`n_windows`: how many streams can take turns before a window finds nothing to reuse."""
        self.n_mels = n_mels
        self._entries: deque[_Entry] = deque(maxlen=n_windows)

    def log_mel(self, samples: Samples, *, start: int, n_ctx: int) -> Mel:
        """Log-mel of a window whose audio is padded with zeros to the encoder's context.

        Parameters
        ----------
        samples : (n * 320,) the window's audio, at most `n_ctx` frames
        start : the window's first frame in its stream
        n_ctx : encoder positions

        Returns
        -------
        (n_mels, 2 * n_ctx), equal to `log_mel` of the padded audio up to float32 rounding

        Raises
        ------
        ValueError
            The audio is longer than the context.
        """
        room = n_ctx * FRAME - len(samples)
        if room < 0:
            raise ValueError(f"{len(samples)} samples do not fit into {n_ctx} frames")
        reflected = reflect(np.pad(samples, (0, room)))
        heard = min(2 * n_ctx, -(-(len(samples) + REACH) // HOP))
        columns = np.full((self.n_mels, _HOPS * n_ctx), SILENCE, np.float32)
        first, last = self._reuse(samples, start, columns)
        columns[:, :first] = log10_mel(reflected, 0, first, n_mels=self.n_mels)
        columns[:, last:heard] = log10_mel(reflected, last, heard, n_mels=self.n_mels)
        own = columns[:, : len(samples) // HOP].copy()
        self._entries.append(_Entry(start, samples.copy(), own))
        return normalise(columns)

    def _reuse(self, samples: Samples, start: int, columns: Mel) -> tuple[int, int]:
        """Copy what an earlier window has of these samples; which columns are done now."""
        for entry in reversed(self._entries):
            shared_start = max(start, entry.start)
            shared_end = min(start + len(samples) // FRAME, entry.end)
            first, last = _HOPS * shared_start + _EDGE, _HOPS * shared_end - _EDGE + 1
            if first >= last:
                continue
            here, there = (
                audio[(shared_start - origin) * FRAME : (shared_end - origin) * FRAME]
                for audio, origin in ((samples, start), (entry.samples, entry.start))
            )
            if not np.array_equal(here, there):
                continue
            here_at, there_at = _HOPS * start, _HOPS * entry.start
            columns[:, first - here_at : last - here_at] = entry.columns[
                :, first - there_at : last - there_at
            ]
            self._entries.remove(entry)
            return first - here_at, last - here_at
        return 0, 0
