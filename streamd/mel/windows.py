"""The log-mel of windows: of a stream, whose windows overlap, and of a whole recording.

Either way each column is computed once.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from streamd.mel import HOP, N_FFT, REACH, SILENCE, log10_mel, normalise, reflect
from streamd.types import FRAME, SAMPLE_RATE, Mel, Samples

_HOPS = FRAME // HOP
_EDGE = -(-REACH // HOP)
"""Columns at an end of the audio that depend on what is beyond it."""
_SILENT = 4
"""Columns after the audio: two that still depend on it, and silence."""


@dataclass(frozen=True, slots=True, eq=False)
class _CachedWindow:
    """The columns of a window's own audio; `start` is a frame of its stream."""

    start: int
    samples: Samples
    columns: Mel

    @property
    def end(self) -> int:
        return self.start + len(self.samples) // FRAME


class MelCache:
    """Computes log-mels of zero-padded windows, reusing columns of the last few. Not thread-safe.

    A column depends on 400 samples, so it can be reused where two windows share all of them. That
    is established by comparing samples: streams that share a cache cannot be mixed up.
    """

    def __init__(self, n_mels: int, *, n_windows: int = 8) -> None:
        """`n_windows`: how many streams can take turns and still find their last window."""
        self.n_mels = n_mels
        self._entries: deque[_CachedWindow] = deque(maxlen=n_windows)

    def log_mel(self, samples: Samples, *, start: int) -> Mel:
        """Return the log-mel (n_mels, 2 * n + 4) of a window of n frames, and of silence after it.

        It equals the beginning of `log_mel` of the audio and any longer silence, up to float32
        rounding; the last column is the silence's, and goes on. `samples` are (n * 320,) from frame
        `start` of the stream on.
        """
        reflected = reflect(np.pad(samples, (0, _SILENT * HOP)))
        n_own = len(samples) // HOP
        columns = np.full((self.n_mels, n_own + _SILENT), SILENCE, np.float32)
        first, last = self._reuse(samples, start, columns)
        n_audible = n_own + _EDGE
        columns[:, :first] = log10_mel(reflected, 0, first, n_mels=self.n_mels)
        columns[:, last:n_audible] = log10_mel(reflected, last, n_audible, n_mels=self.n_mels)
        own = columns[:, :n_own].copy()
        self._entries.append(_CachedWindow(start, samples.copy(), own))
        return normalise(columns)

    def _reuse(self, samples: Samples, start: int, columns: Mel) -> tuple[int, int]:
        """Copy the columns that an earlier window has; return which they are."""
        for entry in reversed(self._entries):
            shared_start = max(start, entry.start)
            shared_end = min(start + len(samples) // FRAME, entry.end)
            # At either end of what is shared, a column depends on samples beyond it.
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
            self._entries.remove(entry)  # the new window replaces it
            return first - here_at, last - here_at
        return 0, 0


_AFTER = 3
"""Columns after the end of the audio that still depend on some of it."""
_BLOCK = 30 * SAMPLE_RATE
"""Samples transformed at once: the transform takes 40 times their memory."""


class RecordingMel:
    """Call `append` as audio arrives, `finish` at its end, then `window` as often as needed.

    openai/whisper clamps a file to the loudest of its columns, so there is no window before its
    end. Until then the columns are kept (115 MB an hour with 80 bands), not the samples (230 MB).
    """

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels
        self.n_columns = 0
        """Columns of audio, 10 ms each; an incomplete one does not count."""
        self._n_samples = 0
        self._waiting: Samples = np.empty(0, np.float32)
        self._mirrored = False
        self._parts: list[Mel] = []
        self._starts: list[int] = []
        self._n_stored = 0
        self._peak = SILENCE

    def append(self, samples: Samples) -> None:
        """Take the next samples, (n,)."""
        self._n_samples += len(samples)
        self.n_columns = self._n_samples // HOP
        for at in range(0, len(samples), _BLOCK):
            self._push(samples[at : at + _BLOCK])

    def finish(self, *, n_padding: int = 0) -> None:
        """End the recording, whose last `n_padding` samples are padding and do not count."""
        self.n_columns = max(0, self._n_samples - n_padding) // HOP
        self._push(np.zeros(REACH + _AFTER * HOP, np.float32))

    def window(self, first: int, n_columns: int, *, width: int) -> Mel:
        """Return `n_columns` from `first` on, normalised by the whole recording: (n_mels, width).

        As in openai/whisper, silence follows the end of the recording, and zeros follow the
        `n_columns`.
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
