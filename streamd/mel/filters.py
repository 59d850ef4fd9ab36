"""The mel filterbank, computed instead of shipped.

Triangles that are evenly spaced on Slaney's mel scale (linear below 1 kHz, logarithmic above) and
have equal area: what ``librosa.filters.mel(sr=16000, n_fft=400, n_mels=n)`` gives, and what
openai/whisper ships as ``mel_filters.npz``.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from streamd.types import SAMPLE_RATE

N_FFT = 400
"""Samples that one column sees: 25 ms."""

_HZ_PER_MEL = 200 / 3
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27
"""27 mels for each factor of 6.4 above 1 kHz (Slaney, Auditory Toolbox)."""


def hz_from_mel(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Frequencies of points on Slaney's mel scale."""
    above = _LOG_FROM_HZ * np.exp(_LOG_STEP * (mel - _LOG_FROM_MEL))
    return np.where(mel < _LOG_FROM_MEL, mel * _HZ_PER_MEL, above)


@cache
def mel_filters(n_mels: int) -> NDArray[np.float32]:
    """Weights (n_mels, 201) from the power at the FFT's frequencies to mel bands.

    The array is shared by all callers and cannot be written to.
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
