"""Sounds in which nobody says a word, to count the words that a model invents in them.

Some are steady, some resemble speech so closely that a voice detector takes them for it: music,
vowels without words, many voices at once. The same seed gives the same sounds, each as loud as
ordinary speech or softer. Made with numpy; filters work on the spectrum of each piece of sound.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.types import SAMPLE_RATE

SECONDS = 60
Sound = NDArray[np.float64]

_VOWELS_HZ = (
    (700, 1200, 2600), (300, 2300, 3000), (450, 800, 2400), (300, 900, 2200), (550, 1800, 2500)
)  # fmt: skip
"""The first three formants of a, i, o, u, e."""


def write(folder: Path, speech: Sequence[Path], seconds: int = SECONDS) -> list[Path]:
    """Write those that are not in the folder yet, as FLAC; `speech`: recordings for the crowd."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {
        "silence": lambda n, rng: np.zeros(n),
        "white": lambda n, rng: _level(rng.standard_normal(n), -30),
        "pink": lambda n, rng: _level(_pink(rng.standard_normal(n)), -30),
        "hum": lambda n, rng: _level(_hum(n) + 0.01 * rng.standard_normal(n), -30),
        "typing": lambda n, rng: _level(_typing(n, rng), -24),
        "cough": lambda n, rng: _level(_cough(n, rng), -24),
        "breathing": lambda n, rng: _level(_breathing(n, rng), -30),
        "music": lambda n, rng: _level(music(n, rng), -26),
        "mumble": lambda n, rng: _level(_vowels(n, rng), -26),
        "babble": lambda n, rng: _level(np.sum([_vowels(n, rng) for _ in range(8)], axis=0), -28),
        "crowd": lambda n, rng: _level(
            np.sum([_reversed(n, rng, speech) for _ in range(6)], axis=0), -28
        ),
    }
    paths = []
    for name, make in makers.items():
        path = folder / f"{name}.flac"
        paths.append(path)
        if not path.exists():
            sound = make(seconds * SAMPLE_RATE, np.random.default_rng(1))
            soundfile.write(path, sound.astype(np.float32), SAMPLE_RATE)
    return paths


def _level(sound: Sound, db: float) -> Sound:
    """Scale to a level, in dB of full scale, of what is not silent in it."""
    loud = sound[np.abs(sound) > 0.02 * np.abs(sound).max()]
    return (sound * 10 ** (db / 20) / np.sqrt(np.mean(loud**2))).clip(-1, 1)


def _add(sound: Sound, at: int, piece: Sound) -> None:
    n = max(0, min(len(piece), len(sound) - at))
    sound[at : at + n] += piece[:n]


def _filtered(sound: Sound, low_hz: float, high_hz: float) -> Sound:
    """A band of the sound, with slopes of 12 dB per octave."""
    hz = np.fft.rfftfreq(len(sound), 1 / SAMPLE_RATE) + 1e-9
    response = 1 / np.sqrt((1 + (low_hz / hz) ** 4) * (1 + (hz / high_hz) ** 4))
    return np.fft.irfft(np.fft.rfft(sound) * response, len(sound))


def _pink(white: Sound) -> Sound:
    spectrum = np.fft.rfft(white)
    n = np.maximum(np.arange(len(spectrum)), 20)
    return np.fft.irfft(spectrum / np.sqrt(n), len(white))


def _hum(n: int) -> Sound:
    """Mains: 50 Hz and its overtones."""
    t = np.arange(n) / SAMPLE_RATE
    return np.sum([np.sin(2 * np.pi * 50 * k * t + k) / k for k in range(1, 12)], axis=0)


def _typing(n: int, rng: np.random.Generator) -> Sound:
    """A click for each key, with pauses between bursts."""
    sound, at = 3e-4 * rng.standard_normal(n), 0
    t = np.arange(int(0.03 * SAMPLE_RATE)) / SAMPLE_RATE
    while at < n:
        ring_hz = rng.uniform(1500, 4000)
        click = (
            np.exp(-250 * t) * rng.standard_normal(len(t))
            + 0.4 * np.exp(-180 * t) * np.sin(2 * np.pi * ring_hz * t)
            + 0.5 * np.exp(-150 * t) * np.sin(2 * np.pi * 180 * t)
        )
        _add(sound, at, rng.uniform(0.3, 1) * click)
        burst = rng.random() < 0.93
        pause_s = rng.exponential(0.14) + 0.05 if burst else rng.uniform(0.5, 2)
        at += int(SAMPLE_RATE * pause_s)
    return sound


def _cough(n: int, rng: np.random.Generator) -> Sound:
    """One to three coughs, every few seconds."""
    sound, at = 3e-4 * rng.standard_normal(n), SAMPLE_RATE
    while at < n:
        for _ in range(rng.integers(1, 4)):
            t = np.arange(int(SAMPLE_RATE * rng.uniform(0.2, 0.4))) / SAMPLE_RATE
            _add(sound, at, _filtered(rng.standard_normal(len(t)), 400, 3000) * np.exp(-9 * t))
            at += len(t) + SAMPLE_RATE // 10
        at += int(SAMPLE_RATE * rng.uniform(2, 8))
    return sound


def _breathing(n: int, rng: np.random.Generator) -> Sound:
    """In and out, close to the microphone."""
    sound, at = 3e-4 * rng.standard_normal(n), 0
    while at < n:
        for seconds, low_hz, high_hz, gain in ((1.1, 300, 2500, 0.6), (1.4, 200, 1600, 1.0)):
            length = int(SAMPLE_RATE * seconds * rng.uniform(0.85, 1.15))
            breath = _filtered(rng.standard_normal(length), low_hz, high_hz)
            _add(sound, at, gain * breath * np.hanning(length) ** 0.7)
            at += length + int(SAMPLE_RATE * rng.uniform(0.1, 0.5))
    return sound


def music(n: int, rng: np.random.Generator) -> Sound:
    """Four chords, a melody of plucked tones, a drum."""
    sound, beat = np.zeros(n), int(0.4 * SAMPLE_RATE)
    chords = ((0, 4, 7), (5, 9, 12), (7, 11, 14), (9, 12, 16))
    scale = (0, 2, 4, 5, 7, 9, 11, 12)
    t = np.arange(int(1.2 * SAMPLE_RATE)) / SAMPLE_RATE

    def tone(semitones: int, base_hz: float, overtones: int) -> Sound:
        hz = base_hz * 2 ** (semitones / 12)
        waves = [np.sin(2 * np.pi * hz * k * t) / k for k in range(1, overtones + 1)]
        return np.sum(waves, axis=0)

    for number, at in enumerate(range(0, n, beat)):
        if number % 4 == 0:
            for semitones in chords[number // 4 % 4]:
                _add(sound, at, 0.3 * np.exp(-2 * t) * tone(semitones, 196, 4))
        _add(sound, at, 0.5 * np.exp(-4 * t) * tone(scale[rng.integers(8)], 392, 3))
        if number % 2 == 0:
            hit = t[: int(0.08 * SAMPLE_RATE)]
            _add(sound, at, 0.5 * rng.standard_normal(len(hit)) * np.exp(-60 * hit))
    return sound


def _vowels(n: int, rng: np.random.Generator) -> Sound:
    """One voice that speaks vowels, and no word."""
    sound, at = np.zeros(n), 0
    while at < n:
        length = int(SAMPLE_RATE * rng.uniform(0.12, 0.35))
        pitch_hz = rng.uniform(100, 180) * np.linspace(1, rng.uniform(0.85, 1.15), length)
        phase = np.cumsum(pitch_hz) / SAMPLE_RATE % 1
        source = (phase < 0.1) - 0.1 + 0.02 * rng.standard_normal(length)
        hz = np.fft.rfftfreq(length, 1 / SAMPLE_RATE)
        spectrum = np.fft.rfft(source)
        for formant_hz in _VOWELS_HZ[rng.integers(5)]:
            spectrum = spectrum / (1 - (hz / formant_hz) ** 2 + 1j * hz * 90 / formant_hz**2)
        _add(sound, at, np.fft.irfft(spectrum, length) * np.hanning(length))
        at += length + int(SAMPLE_RATE * rng.choice([0.02, 0.06, 0.3], p=[0.6, 0.3, 0.1]))
    return sound


def _reversed(n: int, rng: np.random.Generator, speech: Sequence[Path]) -> Sound:
    """Somebody's speech backwards, one recording after the other."""
    sound, at = np.zeros(n), 0
    while at < n:
        samples, _ = soundfile.read(speech[int(rng.integers(len(speech)))])
        _add(sound, at, samples[::-1] / np.sqrt(np.mean(samples**2)))
        at += len(samples)
    return sound
