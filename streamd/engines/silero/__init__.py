"""Silero VAD: a small recurrent network that tells speech from music and noise.

It confirms what the gate's first detector found (`streamd.session.gate.ConfirmingDetector`). The
model is version 6.2 for 16 kHz, from the package silero-vad 6.2.3 (MIT, LICENSE), unchanged.

It takes chunks of 512 samples, each with the 64 samples before it, and carries a state from one to
the next. After long sound without speech that state may make it miss speech: after 8 s of silence
and a rumble it detected none of 63 words. So its state is reset after two seconds without speech,
and it starts anew a quarter of a second before the next frame that the first detector takes for
speech. Until then it does not run.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from streamd.types import SAMPLE_RATE, Samples

_MODEL = Path(__file__).with_name("silero_vad_16k_op15.onnx")
_CHUNK, _BEFORE = 512, 64
"""Samples that the model hears at a time, and those before them that it hears again."""
_BACK = 8 * _CHUNK
"""Samples up to the end of the frame that wakes it."""
_ON, _OFF = 0.5, 0.35
"""Probability from which there is speech, and below which it has ended (silero-vad's own)."""
_LINGER, _LASTED = 10, 6
"""Speech that has lasted `_LASTED` chunks ends only after `_LINGER` chunks (320 ms) below that, as
the first detector knows better where a pause in speech begins. Without this, utterances end in
short pauses, and more of their words are wrong."""
_LOW, _N_LOW = 0.2, 62
"""The state is reset after `_N_LOW` chunks (2 s) below this probability."""
_LOWEST_HZ = 80
"""Rumble is lower; it made the detector miss speech, too."""


class Silero:
    """Confirms speech in one stream; each stream needs its own."""

    def __init__(self) -> None:
        self._recent = np.zeros(0, np.float32)  # what it has not heard yet
        self._hearing: _Hearing | None = None

    def __call__(self, frame: Samples, likely: bool) -> bool:
        """Whether there is speech in the next frame; `likely`: the first detector thinks so.

        A frame is judged by the newest chunk that ended in it or before, by 32 ms at most.
        """
        self._recent = np.concatenate([self._recent, frame])
        if self._hearing is None:
            self._recent = self._recent[-_BACK:]
            if not likely:
                return False
            self._hearing = _Hearing(self._recent[0])
        while len(self._recent) >= _CHUNK:
            self._hearing.chunk(self._recent[:_CHUNK])
            self._recent = self._recent[_CHUNK:]
        speech = self._hearing.speech
        if self._hearing.n_low >= _N_LOW:
            self._hearing = None
        return speech


class _Hearing:
    """What it has heard since it was woken; `n_low`: for how many chunks hardly any speech."""

    def __init__(self, first: float) -> None:
        self._filters = HighPass(_LOWEST_HZ, first), HighPass(_LOWEST_HZ, 0.0)
        self._before = np.zeros(_BEFORE, np.float32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self.speech, self.n_low = False, 0
        self._n_on = self._n_off = 0

    def chunk(self, samples: Samples) -> None:
        first, second = self._filters
        high = second(first(samples.astype(np.float64))).astype(np.float32)
        given = {
            "input": np.concatenate([self._before, high])[None],
            "state": self._state,
            "sr": np.array(SAMPLE_RATE, np.int64),
        }
        ((prob,),), self._state = _model().run(None, given)
        self._before = high[-_BEFORE:]
        on = bool(prob >= (_OFF if self.speech else _ON))
        self._n_off = 0 if on else self._n_off + 1
        lingers = self._n_on >= _LASTED and self._n_off <= _LINGER
        self.speech = on or (self.speech and lingers)
        self._n_on = self._n_on + on if self.speech else 0
        self.n_low = self.n_low + 1 if prob < _LOW else 0


@cache
def _model() -> InferenceSession:
    """The model, loaded when the first sound comes; all streams share it."""
    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, not printed
    return InferenceSession(_MODEL, options, providers=["CPUExecutionProvider"])


class HighPass:
    """A filter of first order, chunk by chunk: y[n] = a (y[n - 1] + x[n] - x[n - 1])."""

    def __init__(self, cutoff_hz: float, first: float) -> None:
        """`first`: the sample before the first one, so that it does not start with a step."""
        # y[n] / a**n is a running sum, which numpy computes at once; over a chunk a**n stays large
        # enough for float64.
        self._a = np.exp(-2 * np.pi * cutoff_hz / SAMPLE_RATE)
        self._powers = self._a ** np.arange(_CHUNK)
        self._newest = (first, 0.0)  # the newest sample before the filter, and behind it

    def __call__(self, chunk: NDArray[np.float64]) -> NDArray[np.float64]:
        """Filter the next 512 samples."""
        last_x, last_y = self._newest
        rise = chunk.copy()  # numpy's `diff` with the sample before takes three times as long
        rise[0] -= last_x
        rise[1:] -= chunk[:-1]
        total = np.cumsum(rise / self._powers) + last_y
        filtered: NDArray[np.float64] = self._a * self._powers * total
        self._newest = (float(chunk[-1]), float(filtered[-1]))
        return filtered
