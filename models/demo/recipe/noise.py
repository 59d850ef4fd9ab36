"""What is in the air besides the speaker: noises, music, babble, rooms."""

from __future__ import annotations

import numpy as np
from clips import RATE_HZ, Clip, Samples, audible
from numpy.random import Generator
from scipy.signal import fftconvolve


def coloured(r: Generator, n: int, slope: float) -> Samples:
    """Noise of unit power, its amplitude as frequency**-slope: 0 white, 0.5 pink, 1 brown."""
    spectrum = np.fft.rfft(r.standard_normal(n))
    spectrum *= np.maximum(np.arange(len(spectrum)), 20 * n / RATE_HZ) ** -slope
    x = np.fft.irfft(spectrum, n)
    return (x / x.std()).astype(np.float32)


def hum(r: Generator, n: int) -> Samples:
    """Mains hum and a fan: harmonics of 50 or 60 Hz over brown noise."""
    t, base = np.arange(n) / RATE_HZ, r.choice([50.0, 60.0, r.uniform(80, 300)])
    x = sum(
        r.uniform(0.1, 1) / k * np.sin(2 * np.pi * base * k * t + r.uniform(0, 6))
        for k in range(1, 9)
    )
    x = x / np.std(x) + 0.3 * coloured(r, n, 1.0)
    return (x / x.std()).astype(np.float32)


def music(r: Generator, n: int) -> Samples:
    """A made-up tune: chords, a melody and a beat."""
    x = np.zeros(n + 4 * RATE_HZ, np.float32)
    beat = int(RATE_HZ * r.uniform(0.25, 0.6))
    scale = (
        np.array([0, 2, 4, 5, 7, 9, 11]) if r.random() < 0.6 else np.array([0, 2, 3, 5, 7, 8, 10])
    )
    root, loudness = r.uniform(36, 55), r.uniform(0.2, 1, 3)
    for i, at in enumerate(range(0, n, beat)):
        if i % 4 == 0:
            degree = r.integers(7)
            for step in (0, 2, 4):
                _note(r, x, at, 4 * beat, root + scale[(degree + step) % 7] + 12, loudness[0])
        if r.random() < 0.7:
            _note(r, x, at, beat * int(r.integers(1, 3)), root + 24 + r.choice(scale), loudness[1])
        if r.random() < 0.8:
            length = int(RATE_HZ * r.uniform(0.03, 0.15))
            hit = r.standard_normal(length) * np.exp(-np.arange(length) / (length / 5))
            x[at : at + length] += (loudness[2] * hit).astype(np.float32)
    x = x[:n]
    return x / x.std()


def _note(r: Generator, x: Samples, at: int, length: int, pitch: float, loudness: float) -> None:
    t = np.arange(length) / RATE_HZ
    base = 440 * 2 ** ((pitch - 69) / 12)
    vibrato = 0.004 * np.sin(2 * np.pi * 5 * t) * (r.random() < 0.3)
    tone = sum(
        k ** -r.uniform(0.8, 2) * np.sin(2 * np.pi * base * k * t * (1 + vibrato))
        for k in range(1, 9)
    )
    envelope = (
        np.minimum(t / 0.01, 1) * np.exp(-t / r.uniform(0.2, 2)) * np.minimum((t[-1] - t) / 0.02, 1)
    )
    x[at : at + length] += (loudness * envelope * tone).astype(np.float32)


def babble(r: Generator, clips: list[Clip], n: int, voices: int) -> Samples:
    """Many people talking at once; no word of it is to be written."""
    x = np.zeros(n, np.float32)
    for _ in range(voices):
        at = int(r.integers(RATE_HZ))
        while at < n:
            y = audible(clips[r.integers(len(clips))])[: n - at]
            x[at : at + len(y)] += y / (float(np.sqrt(np.mean(y**2))) + 1e-4)
            at += len(y) + int(r.integers(0, RATE_HZ // 3))
    return x / x.std()


def knocks(r: Generator, n: int) -> Samples:
    """Single sounds: knocks, clicks and tones."""
    x = np.zeros(n, np.float32)
    for _ in range(r.integers(1, 5)):
        length = min(n - 1, int(r.integers(200, 4000)))
        at = int(r.integers(0, n - length))
        sound = r.standard_normal(length) * np.exp(-np.arange(length) / (length / 5))
        if r.random() < 0.4:
            sound = 0.4 * np.sin(np.arange(length) * r.uniform(0.05, 1.5))
        x[at : at + length] += (sound * r.uniform(0.5, 4)).astype(np.float32)
    return x


def room(r: Generator, x: Samples) -> Samples:
    """Add the reverberation of a made-up room."""
    length = int(r.uniform(0.08, 0.45) * RATE_HZ)
    tail = r.standard_normal(length) * np.exp(-np.arange(length) / (length / 5))
    tail[: int(r.uniform(0.001, 0.006) * RATE_HZ)] = 0
    tail *= 10 ** (-r.uniform(1, 14) / 20) / np.sqrt((tail**2).sum())
    tail[0] = 1
    return fftconvolve(x, tail)[: len(x)].astype(np.float32)


class Noises:
    """A minute of each kind of noise, to take pieces from."""

    SECONDS = 60

    def __init__(self, r: Generator, clips: list[Clip]) -> None:
        n = self.SECONDS * RATE_HZ
        self._steady = [coloured(r, n, slope) for slope in (0, 0.25, 0.5, 0.5, 0.75, 1.0)] + [
            hum(r, n)
        ]
        self._music = [music(r, n) for _ in range(4)]
        self._babble = [babble(r, clips, n, voices) for voices in (6, 9, 12)]

    def piece(self, r: Generator, n: int) -> Samples:
        """Take ``n`` samples of unit power: steady noise mostly, music or babble at times."""
        source = (self._steady, self._music, self._babble)[r.choice(3, p=[0.6, 0.18, 0.22])]
        noise = source[r.integers(len(source))]
        at = int(r.integers(len(noise) - n + 1))
        return noise[at : at + n]
