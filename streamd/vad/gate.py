"""The voice gate: from one decision per frame to stretches of speech.

A detector alone fires on noise (WebRTC VAD calls loud steady noise speech for ever), so a frame
counts as voiced only if it is also louder than an absolute floor and the sound of late was not
steady. The gate opens when enough of the last frames are voiced and closes when few are. It knows
nothing of utterances or text: `segmenter` does.
"""

from collections import deque

from streamd.options import GateOptions
from streamd.types import Samples
from streamd.vad import Vad
from streamd.vad.energy import Steadiness, level_db


class Gate:
    """Decides frame by frame whether somebody is speaking."""

    def __init__(self, vad: Vad, options: GateOptions | None = None) -> None:
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
