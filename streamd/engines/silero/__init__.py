"""Silero VAD: a small recurrent network that tells speech from music and noise.

It confirms what the gate's first detector found (`streamd.session.gate.ConfirmingDetector`). The
model is version 6.2 for sequences at 16 kHz, from the package silero-vad 6.2.3 (MIT, LICENSE), with
convolutions as matrix products, which ONNX Runtime computes in a third of the time
(models/silero/make.py).

It takes chunks of 512 samples, each with the 64 samples before it, several at once, and carries a
state from one to the next. After long sound without speech that state may make it miss speech:
after 8 s of silence and a rumble it detected none of 63 words. So its state is reset after two
seconds without speech, and it starts anew a quarter of a second before the next frame that the
first detector takes for speech. Until then it does not run.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from streamd.types import FRAME, SAMPLE_RATE, Frames

_MODEL = Path(__file__).with_name("silero_vad_16k.onnx")
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

    def __call__(self, frames: Frames, likely: Sequence[bool]) -> list[bool]:
        """Whether there is speech in the next (n, 320) frames.

        `likely`: the first detector thinks so. A frame is judged by the newest chunk that ended in
        it or before, by 32 ms at most.
        """
        found: list[bool] = []
        while (at := len(found)) < len(frames):
            if self._hearing is not None:
                found += self._hear(self._hearing, frames[at:])
                continue
            n_asleep = next((n for n, one in enumerate(likely[at:]) if one), len(frames) - at)
            found += [False] * n_asleep
            asleep = frames[at : at + n_asleep].reshape(-1)
            self._recent = np.concatenate([self._recent, asleep])[FRAME - _BACK :]
            if (woken := at + n_asleep) < len(frames):
                self._hearing = _Hearing(np.concatenate([self._recent, frames[woken]])[0])
        return found

    def _hear(self, hearing: "_Hearing", frames: Frames) -> list[bool]:
        """Judge the frames up to one where the state is reset, or all of them."""
        n_before = len(self._recent)
        samples = np.concatenate([self._recent, frames.reshape(-1)])
        n_chunks = len(samples) // _CHUNK
        probs = iter(hearing.probs(samples[: n_chunks * _CHUNK].reshape(-1, _CHUNK)))
        found, n_judged = [], 0
        for end in range(n_before + FRAME, len(samples) + 1, FRAME):
            while n_judged < end // _CHUNK:
                hearing.judge(next(probs))
                n_judged += 1
            found.append(hearing.speech)
            if hearing.n_low >= _N_LOW:
                self._hearing = None
                break
        self._recent = samples[n_judged * _CHUNK : n_before + len(found) * FRAME]
        return found


class _Hearing:
    """What it has heard since it was woken; `n_low`: for how many chunks hardly any speech."""

    def __init__(self, first: float) -> None:
        self._filters = HighPass(_LOWEST_HZ, first), HighPass(_LOWEST_HZ, 0.0)
        self._before = np.zeros(_BEFORE, np.float32)
        self._state = [np.zeros((1, 1, 128), np.float32)] * 2
        self.speech, self.n_low = False, 0
        self._n_on = self._n_off = 0

    def probs(self, chunks: NDArray[np.float32]) -> list[float]:
        """How probable speech is in each of the next (n, 512) chunks."""
        if not len(chunks):
            return []
        first, second = self._filters
        high = second(first(chunks.astype(np.float64))).astype(np.float32)
        before = np.concatenate([self._before[None], high[:-1, -_BEFORE:]])
        h, c = self._state
        given = {"input": np.concatenate([before, high], axis=1), "h": h, "c": c}
        probs, *self._state = _model().run(None, given)
        self._before = high[-1, -_BEFORE:]
        found: list[float] = probs.tolist()
        return found

    def judge(self, prob: float) -> None:
        """Take the probability of the next chunk."""
        on = prob >= (_OFF if self.speech else _ON)
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

    def __call__(self, chunks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Filter the next (n, 512) samples."""
        last_x, last_y = self._newest
        samples = chunks.reshape(-1)
        rise = samples.copy()  # numpy's `diff` with the sample before takes three times as long
        rise[0] -= last_x
        rise[1:] -= samples[:-1]
        total = np.cumsum(rise.reshape(chunks.shape) / self._powers, axis=1)
        for row in total:
            row += last_y
            last_y = self._a * self._powers[-1] * row[-1]
        filtered: NDArray[np.float64] = self._a * self._powers * total
        self._newest = (float(samples[-1]), float(last_y))
        return filtered
