"""Log-mel features as Whisper computes them, and augmentations that are cheap on a spectrum."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor
from whisper.audio import mel_filters

MELS, HOP, WINDOW = 80, 160, 400


def mel_power(samples: Tensor) -> Tensor:
    """Mel power spectrum, (B, samples) -> (B, 80, samples / 160)."""
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(samples, WINDOW, HOP, window=window, return_complex=True)
    return mel_filters(samples.device, MELS) @ (spectrum[..., :-1].abs() ** 2)


def log_mel(power: Tensor) -> Tensor:
    """Whisper's logarithm, floor and scale."""
    log = power.clamp(min=1e-10).log10()
    return (torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8) + 4) / 4


def _mel_of_hz(hz: np.ndarray) -> np.ndarray:
    above = 15 + np.log(np.maximum(hz, 1e-3) / 1000) * 27 / np.log(6.4)
    return np.where(hz < 1000, hz * 3 / 200, above)


def _hz_of_mel(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


@cache
def _stretch(percent: int, tilt: int) -> Tensor:
    """Matrix that stretches the mel axis in hertz: a longer or shorter vocal tract.

    With a ``tilt`` (percent), what is below 0.8 kHz moves that much further and what is above
    1.8 kHz that much less: the first formant against the others, which is how accents differ.
    """
    top = _mel_of_hz(np.array(8000.0))
    centres = _hz_of_mel(np.linspace(0, float(top), MELS + 2)[1:-1])
    apart = np.interp(np.log(centres), np.log([800, 1800]), [tilt, -tilt])
    factors = (1 + percent / 100) * (1 + apart / 100)
    position = np.interp(np.minimum(centres * factors, 7900), centres, np.arange(MELS))
    low = np.floor(position).astype(int)
    matrix = np.zeros((MELS, MELS), np.float32)
    matrix[np.arange(MELS), low] = 1 - (position - low)
    matrix[np.arange(MELS), np.minimum(low + 1, MELS - 1)] += position - low
    return torch.from_numpy(matrix)


class Augment:
    """Random speaker size, microphone and masks, one draw per example."""

    def __init__(self, r: np.random.Generator) -> None:
        self.r = r

    def __call__(self, samples: Tensor, heard: list[int]) -> Tensor:
        """Features of (B, samples); ``heard`` is the recorded length of each, in samples."""
        r, power = self.r, mel_power(samples)
        for b in range(len(power)):
            percent, tilt = np.clip(r.normal(2, 7.5), -18, 22), np.clip(r.normal(0, 3.5), -8, 8)
            stretch = _stretch(int(percent), int(tilt)).to(power.device)
            gain = torch.from_numpy(self._microphone()).to(power.device)
            power[b] = (stretch @ power[b]) * gain[:, None]
        mel = log_mel(power)
        for b, length in enumerate(heard):
            self._mask(mel[b], length)
        return mel

    def _microphone(self) -> np.ndarray:
        """Colour of a microphone: a smooth curve, at times with a missing top or bottom."""
        r, gain = self.r, np.ones(MELS, np.float32)
        if r.random() < 0.4:
            bends = np.interp(np.arange(MELS), [0, 20, 40, 60, 79], r.normal(0, 0.45, 5))
            gain *= (10**bends).astype(np.float32)
        if r.random() < 0.4:  # telephone and other low rates: nothing above 3.4 to 7 kHz
            gain[int(r.choice([57, 60, 62, 63, 66, 70, 75])) :] *= 1e-8
        if r.random() < 0.1:
            gain[: int(r.integers(3, 10))] *= 1e-4
        return gain

    def _mask(self, mel: Tensor, heard: int) -> None:
        r, end, low = self.r, heard // HOP, mel.min()
        if r.random() < 0.2 and end < mel.shape[1]:
            mel[:, end:] = 0.0  # some runtimes pad the features, not the sound
        for _ in range(r.integers(0, 3)):
            width = int(r.integers(1, 11))
            start = int(r.integers(0, MELS - width))
            mel[start : start + width] = low
        if r.random() < 0.2:
            width = int(r.integers(2, 12))
            start = int(r.integers(0, mel.shape[1] - width))
            mel[:, start : start + width] = low
