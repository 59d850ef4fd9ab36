"""Voice activity: detectors that decide frame by frame, and the gate over their decisions.

The first detector alone takes steady noise for speech, so a frame counts as voiced only if it is
also louder than an absolute floor, and a second detector agrees.
`streamd.session.segmenter` cuts the stream into utterances. Another detector is another
`VoiceDetector`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from streamd.options import GateOptions
from streamd.types import FRAME, SAMPLE_RATE, Frames

VoiceDetector = Callable[[Frames], Sequence[bool]]
"""Tells in which of the next (n, 320) float32 frames there is speech; no frame is left out."""
ConfirmingDetector = Callable[[Frames, Sequence[bool]], Sequence[float]]
"""How probable speech is in the next (n, 320) frames, 0 where there is none, given in which of them
the first detector and the level find speech. `streamd.engines.silero` has one."""


class GatedFrame(NamedTuple):
    """The gate's decision about a frame.

    `silence`: 0 while the gate is open, otherwise frames since the last voiced frame, at least 1.
    `level`: in dB. `late`: frames by which the second detector lags; when the gate opens, a word
    may have begun that much earlier. `voice`: somebody seems to speak. That takes fewer voiced
    frames than opening the gate and comes 40 ms earlier, in time for a voice agent to stop talking;
    utterances do not begin there, because dictated digits would be written one by one. `unvoiced`:
    frames since the last voiced frame, whether the gate is open or not. `prob`: the second
    detector's probability of speech; 0 without one.
    """

    silence: int
    level: float
    late: int = 0
    voice: bool = False
    unvoiced: int = 0
    prob: float = 0.0


_AGGRESSIVENESS = 1
"""Of 0 (most is speech) to 3 (least is); `Silero` judges the rest."""


class WebRtcVad:
    """Google's detector; it adapts to the noise of its stream, so each stream needs its own."""

    def __init__(self) -> None:
        """Load the library."""
        import webrtcvad  # here, since it takes 100 ms and only this detector needs it

        self._vad = webrtcvad.Vad(_AGGRESSIVENESS)

    def __call__(self, frames: Frames) -> list[bool]:
        """See `VoiceDetector`."""
        pcm = (np.clip(frames, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
        is_speech = self._vad.is_speech
        return [
            bool(is_speech(pcm[at : at + 2 * FRAME], SAMPLE_RATE))
            for at in range(0, len(pcm), 2 * FRAME)
        ]


SILENCE_DB = -120.0
"""The level of digital silence."""


def levels_db(frames: Frames) -> list[float]:
    """Root mean square of each of (n, 320) frames in dB; 0 dB is a full-scale square wave."""
    power = np.einsum("ij,ij->i", frames, frames).astype(np.float64) / frames.shape[1]
    levels: list[float] = (10.0 * np.log10(np.maximum(power, 10 ** (SILENCE_DB / 10)))).tolist()
    return levels


def any_sound(frames: Frames) -> list[bool]:
    """Take every frame for speech (`--vad off`)."""
    return [True] * len(frames)


class Gate:
    """Opens when enough of the last frames are voiced, and closes when two fewer are."""

    def __init__(
        self,
        vad: VoiceDetector,
        options: GateOptions | None = None,
        *,
        confirm: ConfirmingDetector | None = None,
    ) -> None:
        """`confirm` decides about the frames that `vad` and the level let through."""
        self._vad, self._confirm, self._options = vad, confirm, options or GateOptions()
        self._detected, self._confirmed = Opening(self._options), Opening(self._options)
        self._late = 0
        self._loudest_db = SILENCE_DB

    def feed(self, frames: Frames) -> list[GatedFrame]:
        """Take the next (n, 320) float32 frames; return what is heard in each."""
        levels = levels_db(frames)
        # Both detectors have state, so both must see every frame.
        speech = self._vad(frames)
        judged = zip(speech, levels, self._floors_db(speech, levels), strict=True)
        voiced = [is_speech and level >= floor_db for is_speech, level, floor_db in judged]
        probs = [0.0] * len(voiced) if self._confirm is None else self._confirm(frames, voiced)
        heard = []
        has_second, gate = self._confirm is not None, self._confirmed
        for one, prob, level in zip(voiced, probs, levels, strict=True):
            if has_second:
                self._late = self._late + 1 if self._detected.update(one) == 0 else 0
            silence = gate.update(one and (prob > 0 or not has_second))
            late = min(self._late, LATEST)
            heard.append(GatedFrame(silence, level, late, gate.voice, gate.unvoiced, prob))
        return heard

    def _floors_db(self, speech: Sequence[bool], levels: Sequence[float]) -> list[float]:
        """The level below which each frame is not voiced.

        From a microphone that is turned down by 40 dB, most frames of a voice are below the usual
        floor. It stays for louder voices, whose pauses would otherwise be noticed later.
        """
        loudest_db, peaks_db = self._loudest_db, []
        for is_speech, level in zip(speech, levels, strict=True):
            loudest_db = max(level if is_speech else SILENCE_DB, loudest_db - _FADES_DB)
            peaks_db.append(loudest_db)
        self._loudest_db = loudest_db
        highest_db = self._options.floor_db
        lowered_db = np.maximum(highest_db - _LOWERED_DB, np.array(peaks_db) - _RANGE_DB)
        floors_db: list[float] = np.minimum(highest_db, lowered_db).tolist()
        return floors_db

    @property
    def doubtful(self) -> bool:
        """Whether the gate is closed, but the latest frames may be the start of a word."""
        return self._confirmed.doubtful


_RANGE_DB, _LOWERED_DB = 40.0, 20.0
"""The floor is lower, by up to 20 dB, where no speech is 40 dB above it."""
_FADES_DB = 0.02
"""A loud frame counts for 1 dB less with each second."""
LATEST = 30
"""Frames that the second detector may take; the longest seen was 28, in rumbling noise."""


CLEAR, CERTAIN = 0.75, 15
"""The mean probability of speech from which voiced frames are clear, and of how many frames in a
row (0.3 s) that is enough to be certain of speech. Of 64 utterances that the gate found in 400
recordings of animals, machines and weather 55 are never certain; of 474 lines of dialogue five, 0.2
s of a first word each; of 240 in a hall, at 3 m, and under those noises four."""


def is_certain(probs: Sequence[float]) -> bool:
    """Whether somebody certainly speaks, from the second detector's probability for each frame."""
    runs = np.convolve([0.0, *probs], np.full(CERTAIN, 1 / CERTAIN))
    return bool(runs.max() >= CLEAR)


class Opening:
    """Whether a gate is open, from the decisions about its frames."""

    def __init__(self, options: GateOptions) -> None:
        self._opens, self._stays_open = options.opens, options.stays_open
        self._least_voice = options.voice_share * options.attack
        self._least_doubtful = options.doubtful_share * options.attack
        self._voiced = deque([False] * options.attack)
        self._n_voiced = 0
        self._open = False
        self.voice, self.unvoiced = False, 0
        """After the last `update`: see `GatedFrame`."""

    def update(self, voiced: bool) -> int:
        """Take the decision about the next frame; returns `GatedFrame.silence`."""
        self._voiced.append(voiced)
        self._n_voiced = n_voiced = self._n_voiced + voiced - self._voiced.popleft()
        self.unvoiced = 0 if voiced else self.unvoiced + 1
        self._open = n_voiced >= (self._stays_open if self._open else self._opens)
        least = self._least_doubtful if self.voice else self._least_voice
        self.voice = self._open or n_voiced >= least
        return 0 if self._open else max(1, self.unvoiced)

    @property
    def doubtful(self) -> bool:
        """See `Gate.doubtful`."""
        return not self._open and self._n_voiced >= self._least_doubtful
