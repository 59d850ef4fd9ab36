"""Voice activity: detectors that decide frame by frame, and the gate over their decisions.

A detector alone fires on noise (WebRTC VAD takes loud steady noise for speech), so a frame counts
as voiced only if it is also louder than an absolute floor and the level varied of late. The gate
opens when enough of the last frames are voiced and closes when few are. Utterances and text are the
subject of `streamd.vad.segmenter`. Another detector is a class with the interface of
`VoiceDetector`.
"""

from collections import deque
from typing import Protocol

import numpy as np

from streamd.options import GateOptions
from streamd.types import FRAME, SAMPLE_RATE, Samples


class VoiceDetector(Protocol):
    """Says of one frame at a time whether somebody speaks in it."""

    def __call__(self, frame: Samples) -> bool:
        """Decide about the next frame, (320,) float32. Frames come in order, without holes."""
        ...


class WebRtcVad:
    """A Gaussian-mixture detector that adapts to the noise of its stream: one per stream."""

    def __init__(self, aggressiveness: int) -> None:
        """`aggressiveness` 0 (lets most through) to 3 (lets least through)."""
        import webrtcvad  # takes 100 ms, and energy does without it

        self._vad = webrtcvad.Vad(aggressiveness)

    def __call__(self, frame: Samples) -> bool:
        """Decide about one frame, (320,) float32."""
        pcm = (np.clip(frame, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
        return bool(self._vad.is_speech(pcm, SAMPLE_RATE))


SILENCE_DB = -120.0
"""What digital silence measures."""
_TAPER = np.hanning(FRAME).astype(np.float32)
_TAPER /= np.linalg.norm(_TAPER)
_BANDS = np.array([250, 500, 750, 1000, 1500, 2000, 3000, 4000]) * FRAME // SAMPLE_RATE
"""Borders of the bands that voices fill, as bins of a frame's spectrum: 50 Hz each."""
_WIDTHS = np.diff(_BANDS)


def level_db(frame: Samples) -> float:
    """Root mean square of the frame in dB below full scale (0 dB = a full-scale square wave)."""
    power = float(np.dot(frame, frame)) / len(frame)
    return 10.0 * float(np.log10(power)) if power > 1e-12 else SILENCE_DB


class Steadiness:
    """How much the level moved lately: speech rises and falls by the syllable, a fan does not.

    The level is the mean, in dB, of those of seven bands between 250 Hz and 4 kHz: hum fills one or
    two of them, noise of any colour counts by what it has where voices are, and many bands keep
    still where one would not. So white, pink and brown noise stay within 3 dB over `window` frames.
    Of the 1,106 words of two test streams it cuts off 103 in pink noise at 10 dB, 130 at 5 dB and
    107 in white noise at 10 dB (84, 0 and 97 are not found without any check). Tried instead and
    dropped: the level of the first difference, which follows what is above 4 kHz (122, 318 and 436;
    of 295 digits in a telephone's band in white noise 290, now 0); one band from 250 Hz to 4 kHz
    (brown noise moves); a floor some dB above the quietest moment (157 in pink noise at 10 dB).
    """

    def __init__(self, smoothing: int = 10, window: int = 100) -> None:
        """Compare levels averaged over `smoothing` frames within the last `window` frames."""
        self._recent: deque[float] = deque(maxlen=smoothing)
        self._levels: deque[float] = deque(maxlen=window)

    def range_db(self, frame: Samples) -> float:
        """Take in the next frame; how far apart the loudest and the quietest recent moment are."""
        self._recent.append(_voice_level_db(frame))
        self._levels.append(sum(self._recent) / len(self._recent))
        return max(self._levels) - min(self._levels)


def _voice_level_db(frame: Samples) -> float:
    """Mean level of the bands, in dB; as `level_db` for white noise."""
    spectrum = np.fft.rfft(frame * _TAPER)[: _BANDS[-1]]
    # Real and imaginary parts lie side by side, so a band is twice as many numbers as bins.
    parts = spectrum.view(spectrum.real.dtype)
    power = np.add.reduceat(parts * parts, 2 * _BANDS[:-1]) / _WIDTHS
    return 10.0 * float(np.log10(power + 1e-12).sum()) / len(_WIDTHS)


class AnySound:
    """Takes every frame for speech: level and steadiness decide alone (`--vad energy`)."""

    def __call__(self, frame: Samples) -> bool:
        """Say yes."""
        return True


class Gate:
    """Decides frame by frame whether somebody is speaking."""

    def __init__(self, vad: VoiceDetector, options: GateOptions | None = None) -> None:
        self._vad, self._options = vad, options or GateOptions()
        self._steadiness = Steadiness()
        self._voiced: deque[bool] = deque(maxlen=self._options.attack)
        self._since_voiced = 0
        self._open = False

    def update(self, frame: Samples, level: float | None = None) -> int:
        """Take in the next frame, (320,) float32, and its `level_db` if the caller has it.

        Returns
        -------
        0 while somebody speaks, else how many frames ago the last voiced frame was (at least 1)
        """
        voiced = self._is_voiced(frame, level_db(frame) if level is None else level)
        self._voiced.append(voiced)
        self._since_voiced = 0 if voiced else self._since_voiced + 1
        share = sum(self._voiced) / self._options.attack
        if self._open:
            lingers = self._since_voiced <= self._options.hangover
            self._open = lingers or share >= self._options.close_share
        else:
            self._open = share >= self._options.open_share
        return 0 if self._open else max(1, self._since_voiced)

    @property
    def doubtful(self) -> bool:
        """Whether the gate is shut though the latest frames may be the start of a word."""
        return (
            not self._open and sum(self._voiced) >= self._options.close_share * self._options.attack
        )

    def _is_voiced(self, frame: Samples, level: float) -> bool:
        # Detector and steadiness are always asked: they follow every frame.
        speech, moved = self._vad(frame), self._steadiness.range_db(frame)
        return speech and level >= self._options.floor_db and moved >= self._options.steady_db
