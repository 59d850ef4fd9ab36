"""Which sounds other than speech are reported, from a classifier's scores of each window.

The classifier is YAMNet (`streamd.engines.yamnet`), which gives each of AudioSet's 521 classes a
probability of its own. A sound begins and ends by thresholds with hysteresis, which each label has.
No I/O: `streamd.streams.hearing` has it live, `streamd.engines.yamnet` for recordings.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.events import Sound
from streamd.types import FRAME, FRAME_MS, SAMPLE_RATE, Frames, Samples

Scores = NDArray[np.float32]
"""(521,) probabilities of AudioSet's classes in one window."""
Classify = Callable[[Samples], Scores]
"""Returns the probabilities of all classes in a window of (15600,) samples."""

HOP, WINDOW = 24, 15_600
"""Frames from one window to the next (0.48 s), and samples of a window (0.975 s)."""
_HOP_MS = HOP * FRAME_MS
_LINGER = 6
"""Windows without a sound after which it is over (2.9 s)."""
_LONG_MS = 10_000
_SOON_MS = 3_000
"""Silence is reported after a sound as long as the first, if it begins as soon as the second after
it: pauses in speech need no label."""


@dataclass(frozen=True, slots=True)
class SoundClass:
    """When a sound is reported under a label.

    The most probable of AudioSet's `classes` counts. The sound begins with `n_on` windows in a row
    that have `on`, or one that has `sure`, goes on as long as windows have `off`, and is over after
    `linger` that have not, or after `_LINGER` in silence.
    """

    label: str
    classes: tuple[int, ...]
    on: float
    off: float
    n_on: int = 2
    linger: int = _LINGER
    sure: float = 2.0


_MUSIC_CLASS = 132
_SILENCE, _LAUGHTER, _BABY = "silence", "laughter", "baby crying"
# Measured (models/yamnet/README.md): `on` was chosen with one half of ESC-50's recordings. In 2,017
# clips of speech (two hours), the least of two windows in a row was 0.03 for laughter, 0.08 for
# music, 0.69 for one dog that was none, and 0.01 for the rest. Music under speech was below 0.2 for
# up to 17 s: hence its `linger`. Class 392, buzzers, is no alarm here, since crickets sound like
# it, and 348, doors, is none, since claps do.
CLASSES = (
    SoundClass("music", (_MUSIC_CLASS,), on=0.4, off=0.1, linger=40),
    SoundClass(_LAUGHTER, (13, 15, 16, 17, 18), on=0.1, off=0.05),
    SoundClass("applause", (58, 62), on=0.1, off=0.05),
    SoundClass("cheering", (61,), on=0.4, off=0.2),
    SoundClass("bell", (195, 196, 197, 198, 200, 349, 384, 385), on=0.4, off=0.2),
    SoundClass("alarm", (304, 317, 318, 319, 389, 390, 391, 393, 394), on=0.3, off=0.15, sure=0.7),
    SoundClass(_BABY, (20,), on=0.4, off=0.2),
    SoundClass("dog", (69, 70, 71, 72, 73), on=0.5, off=0.25),
    SoundClass("door", (352, 353), on=0.4, off=0.2, sure=0.8),
    SoundClass(_SILENCE, (494,), on=0.2, off=0.1, n_on=5),
)
LABELS = tuple(each.label for each in CLASSES)
_STANDS_STILL = 0.02
"""Difference of the spectra of a window's halves, below which it is no music but a hum: 50 Hz with
overtones has 0.000, and with noise 10 dB below it 0.018 to 0.021; of two pieces of music, 1.4 % of
the windows have less, never two in a row."""


class SoundWindow(NamedTuple):
    """What is heard at once; `is_last`: nothing follows at once, because of the end or a gap."""

    start_ms: int
    samples: Samples
    is_last: bool = False


class SoundWindows:
    """Cuts the frames of a stream into windows, in order."""

    def __init__(self) -> None:
        self._samples = np.empty(0, np.float32)  # from the beginning of the next window on
        self._start_ms = 0  # when they begin

    def feed(self, frames: Frames, start_ms: int) -> Iterator[SoundWindow]:
        """Yield the windows that are complete with the next (n, 320) frames, from `start_ms` on."""
        if start_ms != self._start_ms + len(self._samples) * 1000 // SAMPLE_RATE:
            yield from self.rest()  # audio was lost
            self._start_ms = start_ms
        self._samples = np.concatenate([self._samples, frames.reshape(-1)])
        while len(self._samples) >= WINDOW:
            yield SoundWindow(self._start_ms, self._samples[:WINDOW])
            self._samples = self._samples[HOP * FRAME :]
            self._start_ms += _HOP_MS

    def rest(self) -> Iterator[SoundWindow]:
        """Yield what is left, with silence behind it: nothing follows at once."""
        if len(self._samples):
            padded = np.pad(self._samples, (0, WINDOW - len(self._samples)))
            yield SoundWindow(self._start_ms, padded, is_last=True)
            self._samples = self._samples[:0]


class SoundTracker:
    """The sounds of one stream: `feed` it the scores of each window, in order."""

    def __init__(self) -> None:
        self._tracks = [_SoundTrack(each) for each in CLASSES]
        by_label = {each.label: each for each in self._tracks}
        self._laughter, self._baby = by_label[_LAUGHTER], by_label[_BABY]
        self._long_end_ms = -_SOON_MS  # of the last long sound

    def hear(self, windows: Iterable[SoundWindow], classify: Classify) -> Iterator[Sound]:
        """Take the next windows; yield the sounds to report.

        Each is reported when it is certain, and once more when it is over, with the same start.
        """
        for window in windows:
            scores = classify(window.samples)
            if _stands_still(window.samples):
                scores = scores * (np.arange(len(scores)) != _MUSIC_CLASS)
            yield from self.feed(scores, window.start_ms)
            if window.is_last:
                yield from self.end()

    def feed(self, scores: Scores, start_ms: int) -> Iterator[Sound]:
        """Take the scores of a window that begins at `start_ms`; as `hear`."""
        for track in self._tracks:
            track.feed(scores, start_ms)
        if self._baby.is_certain and not self._laughter.is_told:
            self._laughter.forget()  # babies who cry sound like it between two breaths
        is_silent = self._tracks[-1].is_certain
        for track in self._tracks:
            is_worth = track.label != _SILENCE or track.start_ms - self._long_end_ms < _SOON_MS
            linger = _LINGER if is_silent else track.linger
            is_over = track.is_certain and track.n_without >= linger
            if (track.is_told and is_over) or (track.is_certain and is_worth and not track.is_told):
                track.is_told = True
                yield track.heard()
            if is_over:
                if track.label != _SILENCE and track.end_ms - track.start_ms >= _LONG_MS:
                    self._long_end_ms = track.end_ms
                track.forget()

    def end(self) -> Iterator[Sound]:
        """Yield the sounds that go on when the stream ends or has a gap, and forget all."""
        for track in self._tracks:
            if track.is_told:
                yield track.heard()
            track.forget()
        self._long_end_ms = -_SOON_MS


def _stands_still(samples: Samples) -> bool:
    first, last = (np.abs(np.fft.rfft(np.hanning(len(x)) * x)) for x in np.split(samples, 2))
    size = math.sqrt(float((first @ first) * (last @ last)))
    return size > 0 and 1 - float(first @ last) / size < _STANDS_STILL


class _SoundTrack:
    """How one sound goes on; `n_without`: windows since the last one that has it."""

    def __init__(self, sound: SoundClass) -> None:
        self.label, self.linger, self._sound = sound.label, sound.linger, sound
        self.forget()

    def forget(self) -> None:
        """Wait for the sound to begin."""
        self.is_certain = self.is_told = False
        self.n_without = self._n_on = 0
        self.start_ms = self.end_ms = 0
        self._prob = 0.0

    def feed(self, scores: Scores, start_ms: int) -> None:
        """Take the scores of a window that begins at `start_ms`."""
        prob, wanted = float(scores[list(self._sound.classes)].max()), self._sound
        if not self.is_certain:
            self._n_on = self._n_on + 1 if prob >= wanted.on else 0
            self.is_certain = self._n_on >= wanted.n_on or prob >= wanted.sure
            if self._n_on <= 1:
                # Of this window, the first half is in the one before it, which did not have it.
                self.start_ms, self._prob = start_ms + _HOP_MS, 0.0
        self.n_without = 0 if prob >= wanted.off else self.n_without + 1
        if self.n_without == 0:
            # A sound that ends in the second half of a window is in the next one, too.
            self.end_ms, self._prob = start_ms + _HOP_MS, max(prob, self._prob)

    def heard(self) -> Sound:
        """Return the sound so far; it lasts as long as windows are apart, at least."""
        end_ms = max(self.end_ms, self.start_ms + _HOP_MS)
        prob = round(self._prob, 3)
        return Sound(label=self.label, start_ms=self.start_ms, end_ms=end_ms, prob=prob)
