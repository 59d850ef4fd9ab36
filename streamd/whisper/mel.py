"""Log-mel spectrogram as openai-whisper computes it, in numpy.

`log10_mel` is local (a column depends on its own 400 samples), `normalise` is not (it clamps to the
loudest column). `WindowColumns` caches the first and repeats the second for each window. Source:
openai/whisper ``audio.log_mel_spectrogram``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from streamd.system.pages import zeros
from streamd.types import FRAME, SAMPLE_RATE, Mel, Samples

N_FFT = 400
"""Samples (25 ms) of one column."""

_HZ_PER_MEL = 200 / 3
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27
"""27 mels for each factor of 6.4 above 1 kHz; linear below it (Slaney, Auditory Toolbox)."""


def hz_from_mel(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Frequencies (Hz) of points on Slaney's mel scale."""
    above = _LOG_FROM_HZ * np.exp(_LOG_STEP * (mel - _LOG_FROM_MEL))
    return np.where(mel < _LOG_FROM_MEL, mel * _HZ_PER_MEL, above)


@cache
def mel_filters(n_mels: int) -> NDArray[np.float32]:
    """Weights (n_mels, 201) from the power at the FFT's frequencies to mel bands; read-only.

    Triangles of equal area, evenly spaced on the mel scale, as in ``librosa.filters.mel(sr=16000,
    n_fft=400, n_mels=n)`` and in openai/whisper's ``mel_filters.npz``.
    """
    nyquist = SAMPLE_RATE / 2
    top = _LOG_FROM_MEL + np.log(nyquist / _LOG_FROM_HZ) / _LOG_STEP
    edges = hz_from_mel(np.linspace(0.0, top, n_mels + 2))
    bins = np.linspace(0.0, nyquist, N_FFT // 2 + 1)
    lower, centre, upper = (edges[i : i + n_mels, None] for i in range(3))
    rising = (bins - lower) / (centre - lower)
    falling = (upper - bins) / (upper - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    weights = (triangles * (2.0 / (upper - lower))).astype(np.float32)
    weights.setflags(write=False)
    return weights


HOP = 160
"""Samples (10 ms) between columns."""
REACH = N_FFT // 2
"""Samples of a column to either side of its centre."""
SILENCE = np.float32(-10.0)
"""log10 of the smallest power: everything below it is the same."""

_BLOCK = 8
"""Columns multiplied at once: few enough for BLAS to stay in this thread. On a busy machine,
waiting for its other threads took 24 ms, the product 0.1 ms."""
_PIECE = 32 * _BLOCK
"""Columns transformed at once: in double precision, the transform takes 40 times their memory."""


@cache
def hann_window() -> NDArray[np.float64]:
    """Hann window with a period of 400, as for spectral analysis; read-only."""
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)
    window.setflags(write=False)
    return window


def reflect(samples: Samples) -> Samples:
    """Mirror 200 samples at both ends, so that column c sees ``[160 * c, 160 * c + 400)``."""
    return np.pad(samples, REACH, mode="reflect")


def log10_mel(reflected: Samples, first: int, last: int, *, n_mels: int) -> Mel:
    """Columns `first` to `last` (exclusive) of the unnormalised log10 mel power.

    The transform runs in double precision: the quietest bands that survive the clamp are 80 dB
    below the loudest, where float32 would leave two digits.
    """
    if first >= last:
        return np.empty((n_mels, 0), np.float32)
    bands = np.empty((n_mels, last - first), np.float32)
    for begin in range(first, last, _PIECE):
        end = min(last, begin + _PIECE)
        span = reflected[begin * HOP : (end - 1) * HOP + N_FFT]
        spectrum = np.fft.rfft(sliding_window_view(span, N_FFT)[::HOP] * hann_window())
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        here = bands[:, begin - first : end - first]
        for at in range(0, len(power), _BLOCK):
            np.matmul(mel_filters(n_mels), power[at : at + _BLOCK].T, out=here[:, at : at + _BLOCK])
    np.maximum(bands, np.float32(1e-10), out=bands)
    return np.log10(bands, out=bands)


def normalise(columns: Mel, peak: np.float32 | None = None) -> Mel:
    """Clamp to 80 dB below the loudest band (or `peak`), then scale to about [-1, 1]."""
    loudest = columns.max() if peak is None else peak
    clamped = np.maximum(columns, loudest - np.float32(8.0))
    normal: Mel = (clamped + np.float32(4.0)) / np.float32(4.0)
    return normal


def log_mel(samples: Samples, n_mels: int = 80) -> Mel:
    """Log-mel spectrogram (n_mels, n // 160) of (n,) samples, n >= 160.

    It equals openai/whisper's within 1e-5, but for a few faint values, where its float32 transform
    is off by up to 5e-5. The clamp is relative to the loudest column of this call, so a part of a
    recording differs slightly from the same part of the whole.
    """
    n_columns = len(samples) // HOP
    return normalise(log10_mel(reflect(samples), 0, n_columns, n_mels=n_mels))


_HOPS = FRAME // HOP
_EDGE = -(-REACH // HOP)
"""Columns at an end of the audio that depend on what is beyond it."""
_SILENT = 4
"""Columns after the audio: two that still depend on it, and silence."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowColumns:
    """The columns of a window's own audio, not normalised, from a frame of its stream on."""

    start: int
    columns: Mel


def window_log_mel(
    samples: Samples, n_mels: int, *, start: int = 0, known: WindowColumns | None = None
) -> tuple[Mel, WindowColumns]:
    """Log-mel (n_mels, 2 * n + 4) of a zero-padded window of n frames, and what it was made of.

    It equals the beginning of `log_mel` of the audio and any longer silence, up to float32
    rounding; the last column is the silence's, and goes on. `samples` are (n * 320,) from frame
    `start` of the stream on. A column depends on 400 samples, so it is taken from `known`, another
    window of the same stream, where both have all of them.
    """
    n_own = len(samples) // HOP
    columns = np.full((n_mels, n_own + _SILENT), SILENCE, np.float32)
    first, last = _copy(known, start, columns[:, :n_own]) if known else (0, 0)
    columns[:, :first] = _columns(samples, 0, first, n_mels)
    columns[:, last : n_own + _EDGE] = _columns(samples, last, n_own + _EDGE, n_mels)
    return normalise(columns), WindowColumns(start, columns[:, :n_own])


def _columns(samples: Samples, first: int, last: int, n_mels: int) -> Mel:
    """Columns of the audio and the silence after it, from the samples that these depend on."""
    begin = max(0, first * HOP - REACH)
    span = np.pad(samples[begin : last * HOP + REACH], (0, _SILENT * HOP + REACH))
    if first == 0:
        span = np.concatenate([span[REACH:0:-1], span])
    return log10_mel(span, 0, last - first, n_mels=n_mels)


def _copy(known: WindowColumns, start: int, columns: Mel) -> tuple[int, int]:
    """Copy the columns that are the same in a window that begins at `start`; return which."""
    shift = _HOPS * (start - known.start)
    # At either end of what is shared, a column depends on samples beyond it.
    first = max(0, -shift) + _EDGE
    last = min(columns.shape[1], known.columns.shape[1] - shift) - _EDGE + 1
    if first >= last:
        return 0, 0
    columns[:, first:last] = known.columns[:, first + shift : last + shift]
    return first, last


_MINUTE = 6_000
"""Columns that are stored, and forgotten, together."""
_AFTER = 3
"""Columns after the end of the audio that still depend on some of it."""


class RecordingMel:
    """Call `append` as audio arrives, `finish` at its end, then `window` as often as needed.

    openai/whisper clamps a file to the loudest of its columns, so there is no window before its
    end. Until then the columns are kept (115 MB an hour with 80 bands), not the samples (230 MB).
    `forget` what no window needs any more.
    """

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels
        self.n_columns = 0
        """Columns of audio, 10 ms each; an incomplete one does not count."""
        self._n_samples = 0
        self._waiting: Samples = np.empty(0, np.float32)
        self._mirrored = False
        self._minutes: list[Mel] = []
        self._n_stored = self._n_forgotten = 0
        self._peak = SILENCE

    def append(self, samples: Samples) -> None:
        """Take the next samples, (n,)."""
        self._n_samples += len(samples)
        self.n_columns = self._n_samples // HOP
        self._push(samples)

    def finish(self, *, n_padding: int = 0) -> None:
        """End the recording, whose last `n_padding` samples are padding and do not count."""
        self.n_columns = max(0, self._n_samples - n_padding) // HOP
        self._push(np.zeros(REACH + _AFTER * HOP, np.float32))

    def window(self, first: int, n_columns: int, *, width: int, silent: bool = False) -> Mel:
        """Return `n_columns` from `first` on, normalised by the whole recording: (n_mels, width).

        As in openai/whisper, silence follows the end of the recording, and zeros follow the
        `n_columns`, unless they are `silent`. Raises `ValueError` for what was forgotten.
        """
        if first < self._n_forgotten:
            raise ValueError(f"column {first} was forgotten: {self._n_forgotten} is the first one")
        columns = np.full((self.n_mels, n_columns), SILENCE, np.float32)
        for begin, stored in self._stored(first, min(first + n_columns, self._n_stored)):
            columns[:, begin - first : begin - first + stored.shape[1]] = stored
        mel = np.zeros((self.n_mels, width), np.float32)
        if silent:
            mel += normalise(np.full((1, 1), SILENCE), self._peak)
        mel[:, :n_columns] = normalise(columns, self._peak)
        return mel

    def forget(self, first: int) -> None:
        """Free the memory of columns before `first`, which no window may have any more."""
        while self._n_forgotten + _MINUTE <= min(first, self._n_stored):
            self._minutes[self._n_forgotten // _MINUTE] = np.empty((self.n_mels, 0), np.float32)
            self._n_forgotten += _MINUTE

    def _stored(self, first: int, end: int) -> Iterator[tuple[int, Mel]]:
        """The memory of columns, piece by piece, each with its first column."""
        while first < end:
            at, offset = divmod(first, _MINUTE)
            n = min(_MINUTE - offset, end - first)
            yield first, self._minutes[at][:, offset : offset + n]
            first += n

    def _push(self, samples: Samples) -> None:
        waiting = np.concatenate([self._waiting, samples])
        if not self._mirrored and len(waiting) > REACH:
            waiting = np.concatenate([waiting[REACH:0:-1], waiting])
            self._mirrored = True
        n_ready = (len(waiting) - N_FFT) // HOP + 1 if self._mirrored else 0
        if n_ready > 0:
            part = log10_mel(waiting, 0, n_ready, n_mels=self.n_mels)
            self._peak = max(self._peak, part.max())
            first, self._n_stored = self._n_stored, self._n_stored + n_ready
            while len(self._minutes) * _MINUTE < self._n_stored:
                self._minutes.append(zeros((self.n_mels, _MINUTE), np.dtype(np.float32)))
            for begin, stored in self._stored(first, self._n_stored):
                stored[:] = part[:, begin - first : begin - first + stored.shape[1]]
            waiting = waiting[n_ready * HOP :].copy()
        self._waiting = waiting
