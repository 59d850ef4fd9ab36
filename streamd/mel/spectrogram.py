"""Log-mel spectrogram as openai/whisper computes it, in numpy.

In two stages: `log10_mel` is local (a column depends on its own 400 samples), `normalise` is not
(it clamps to the loudest column of the call). `cache` keeps the first and repeats the second.
Source: openai/whisper ``audio.log_mel_spectrogram``.
"""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from streamd.mel.filters import N_FFT, mel_filters
from streamd.types import Mel, Samples

HOP = 160
"""Samples between columns: 10 ms."""
REACH = N_FFT // 2
"""Samples that a column sees to either side of its centre."""
SILENCE = np.float32(-10.0)
"""log10 of the smallest power that is told apart: 1e-10."""

_BLOCK = 8
"""Columns multiplied at once: so few that BLAS stays in this thread. On a busy machine waiting for
its helpers took 24 ms where the product takes 0.1."""


@cache
def hann_window() -> NDArray[np.float64]:
    """Hann window of period (not length) 400, as for spectral analysis."""
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)
    window.setflags(write=False)
    return window


def reflect(samples: Samples) -> Samples:
    """Mirror 200 samples at both ends, so that column c sees ``[160 * c, 160 * c + 400)``."""
    return np.pad(samples, REACH, mode="reflect")


def log10_mel(reflected: Samples, first: int, last: int, *, n_mels: int) -> Mel:
    """Columns `first` to `last` (exclusive) of the unnormalised log10 mel power.

    The transform runs in double precision: the quietest bands that survive the clamp lie 80 dB
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
    """Clamp to 80 dB below the loudest band, then scale to about [-1, 1].

    `peak`: the loudest band of the whole, if these columns are only a part of it.
    """
    loudest = columns.max() if peak is None else peak
    clamped = np.maximum(columns, loudest - np.float32(8.0))
    normal: Mel = (clamped + np.float32(4.0)) / np.float32(4.0)
    return normal


def log_mel(samples: Samples, n_mels: int = 80) -> Mel:
    """Log-mel spectrogram, as Whisper was trained on.

    Parameters
    ----------
    samples : (n,) float32, 16 kHz, in [-1, 1], at least one column (160 samples)
    n_mels : 80, or 128 for large-v3

    Returns
    -------
    (n_mels, n // 160) float32, one column per 10 ms

    Equal to openai/whisper's within 1e-5, but for a few faint values, where its float32 transform
    is off by up to 5e-5. The clamp is relative to the loudest column of this call: a part of a
    recording differs slightly from the same part of the whole.
    """
    n_columns = len(samples) // HOP
    return normalise(log10_mel(reflect(samples), 0, n_columns, n_mels=n_mels))
