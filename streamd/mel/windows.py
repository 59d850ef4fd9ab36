"""The log-mel of windows: of a stream, whose windows overlap, and of a whole recording.

Both compute each column once. `MelCache` finds the columns of earlier windows of a stream,
`RecordingMel` keeps those of a recording while its audio arrives.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from streamd.mel import HOP, N_FFT, REACH, SILENCE, log10_mel, normalise, reflect
from streamd.types import FRAME, SAMPLE_RATE, Mel, Samples

_HOPS = FRAME // HOP
_EDGE = -(-REACH // HOP)
"""Columns at an end of the audio that see beyond it."""


@dataclass(frozen=True, slots=True, eq=False)
class _CachedWindow:
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
        self._entries: deque[_CachedWindow] = deque(maxlen=n_windows)

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
        self._entries.append(_CachedWindow(start, samples.copy(), own))
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


_AFTER = 3
"""Columns behind the audio that still see some of it."""
_BLOCK = 30 * SAMPLE_RATE
"""Samples transformed at once, at most: the transform takes 40 times their memory."""


class RecordingMel:
    """Call `append` as the audio comes, `finish` at its end, then `window` as often as you like."""

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels
        self.n_columns = 0
        """10 ms each, of audio; a rest of less than a column does not count."""
        self._n_samples = 0
        self._waiting: Samples = np.empty(0, np.float32)
        self._mirrored = False
        self._parts: list[Mel] = []
        self._starts: list[int] = []
        self._n_stored = 0
        self._peak = SILENCE

    def append(self, samples: Samples) -> None:
        """Take in the next samples, (n,) float32 at 16 kHz."""
        self._n_samples += len(samples)
        self.n_columns = self._n_samples // HOP
        for at in range(0, len(samples), _BLOCK):
            self._push(samples[at : at + _BLOCK])

    def finish(self, *, n_padding: int = 0) -> None:
        """Say that the recording ends here, or `n_padding` samples of silence ago.

        The columns behind the end are the same either way, as openai/whisper pads with silence too,
        but they are not part of the recording.
        """
        self.n_columns = max(0, self._n_samples - n_padding) // HOP
        self._push(np.zeros(REACH + _AFTER * HOP, np.float32))

    def window(self, first: int, n_columns: int, *, width: int) -> Mel:
        """Columns from `first` on as the model wants them, (n_mels, width).

        Clamped and scaled by the whole recording; there is silence behind its end, and zeros behind
        the `n_columns` that were asked for, as in openai/whisper.
        """
        columns = np.full((self.n_mels, n_columns), SILENCE, np.float32)
        at = max(0, bisect_right(self._starts, first) - 1)
        for start, part in zip(self._starts[at:], self._parts[at:], strict=True):
            begin, end = max(first, start), min(first + n_columns, start + part.shape[1])
            if begin >= end:
                break
            columns[:, begin - first : end - first] = part[:, begin - start : end - start]
        mel = np.zeros((self.n_mels, width), np.float32)
        mel[:, :n_columns] = normalise(columns, self._peak)
        return mel

    def _push(self, samples: Samples) -> None:
        waiting = np.concatenate([self._waiting, samples])
        if not self._mirrored and len(waiting) > REACH:
            waiting = np.concatenate([waiting[REACH:0:-1], waiting])
            self._mirrored = True
        n_ready = (len(waiting) - N_FFT) // HOP + 1 if self._mirrored else 0
        if n_ready > 0:
            part = log10_mel(waiting, 0, n_ready, n_mels=self.n_mels)
            self._peak = max(self._peak, part.max())
            self._parts.append(part)
            self._starts.append(self._n_stored)
            self._n_stored += n_ready
            waiting = waiting[n_ready * HOP :].copy()
        self._waiting = waiting
