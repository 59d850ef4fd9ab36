"""Log-mel spectrogram as openai-whisper computes it, in numpy.

`log10_mel` is local (a column depends on its own 400 samples), `normalise` is not (it clamps to the
loudest column). `streamd.mel.windows` keeps the result of the first and repeats the second. Source:
openai/whisper ``audio.log_mel_spectrogram``.
"""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from streamd.types import SAMPLE_RATE, Mel, Samples

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
    span = reflected[first * HOP : (last - 1) * HOP + N_FFT]
    spectrum = np.fft.rfft(sliding_window_view(span, N_FFT)[::HOP] * hann_window())
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    bands = np.empty((n_mels, len(power)), np.float32)
    for at in range(0, len(power), _BLOCK):
        np.matmul(mel_filters(n_mels), power[at : at + _BLOCK].T, out=bands[:, at : at + _BLOCK])
    return np.log10(np.maximum(bands, np.float32(1e-10)))


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
