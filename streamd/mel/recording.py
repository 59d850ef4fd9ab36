"""The log-mel of a whole recording, computed while its audio arrives.

openai/whisper clamps a file to the loudest of all its columns, so no window is ready before the
recording has ended. What is kept until then are the columns, 32 kB a second with 80 bands (115 MB
an hour); the samples, twice as large, are not. Source: openai/whisper ``audio.py``.
"""

from bisect import bisect_right

import numpy as np

from streamd.mel.filters import N_FFT
from streamd.mel.spectrogram import HOP, REACH, SILENCE, log10_mel, normalise
from streamd.types import SAMPLE_RATE, Mel, Samples

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
