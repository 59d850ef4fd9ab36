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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from streamd.system.disk import in_utf8
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

    def __call__(self, frames: Frames, likely: Sequence[bool]) -> list[float]:
        """How probable speech is in the next (n, 320) frames, 0 where there is none.

        `likely`: the first detector thinks so. A frame is judged by the newest chunk that ended in
        it or before, by 32 ms at most.
        """
        found: list[float] = []
        while (at := len(found)) < len(frames):
            if self._hearing is not None:
                found += self._hear(self._hearing, frames[at:])
                continue
            n_asleep = next((n for n, one in enumerate(likely[at:]) if one), len(frames) - at)
            found += [0.0] * n_asleep
            asleep = frames[at : at + n_asleep].reshape(-1)
            self._recent = np.concatenate([self._recent, asleep])[FRAME - _BACK :]
            if (woken := at + n_asleep) < len(frames):
                self._hearing = _Hearing(np.concatenate([self._recent, frames[woken]])[0])
        return found

    def _hear(self, hearing: "_Hearing", frames: Frames) -> list[float]:
        """Judge the frames up to one where the state is reset, or all of them."""
        n_before = len(self._recent)
        samples = np.concatenate([self._recent, frames.reshape(-1)])
        n_chunks = len(samples) // _CHUNK
        probs = iter(hearing.probs(samples[: n_chunks * _CHUNK].reshape(-1, _CHUNK)))
        found: list[float] = []
        n_judged = 0
        for end in range(n_before + FRAME, len(samples) + 1, FRAME):
            while n_judged < end // _CHUNK:
                hearing.judge(next(probs))
                n_judged += 1
            found.append(hearing.prob if hearing.speech else 0.0)
            if hearing.n_low >= _N_LOW:
                self._hearing = None
                break
        self._recent = samples[n_judged * _CHUNK : n_before + len(found) * FRAME]
        return found


class _Hearing:
    """What it has heard since it was woken.

    `prob` is that of the newest chunk; `n_low`: for how many chunks hardly any speech.
    """

    def __init__(self, first: float) -> None:
        self._filter = HighPass(first)
        self._before = np.zeros(_BEFORE, np.float32)
        self._state = [np.zeros((1, 1, 128), np.float32)] * 2
        self.speech, self.prob, self.n_low = False, 0.0, 0
        self._n_on = self._n_off = 0

    def probs(self, chunks: NDArray[np.float32]) -> list[float]:
        """How probable speech is in each of the next (n, 512) chunks."""
        if not len(chunks):
            return []
        high = self._filter(chunks)
        before = np.concatenate([self._before[None], high[:-1, -_BEFORE:]])
        h, c = self._state
        given = {"input": np.concatenate([before, high], axis=1), "h": h, "c": c}
        probs, *self._state = _model().run(None, given)
        self._before = high[-1, -_BEFORE:]
        found: list[float] = probs.tolist()
        return found

    def judge(self, prob: float) -> None:
        """Take the probability of the next chunk."""
        self.prob = prob
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
    with in_utf8(_MODEL) as file:
        return InferenceSession(file, options, providers=["CPUExecutionProvider"])


_BLOCK = 32
"""Samples that the filter takes at a time."""


class _Products(NamedTuple):
    """The filter as matrix products, which take a fifth of the time of running sums."""

    samples: NDArray[np.float32]
    """(32, 32 + 2): what a block's samples make of a filter at rest, and its state after them."""
    state: NDArray[np.float32]
    """(2, 32): what the state before a block adds."""
    blocks: NDArray[np.float32]
    """(16 * 2, 17 * 2): what the states after a chunk's blocks make of those before each block, and
    of that after the chunk."""
    chunk: NDArray[np.float32]
    """(2, 17 * 2): what the state before the chunk adds to these."""


@cache
def _products() -> _Products:
    a = np.exp(-2 * np.pi * _LOWEST_HZ / SAMPLE_RATE)
    # Each row is a run of the filter in which one sample, or one number of its state, is 1.
    rows = np.zeros((_BLOCK + 2, _BLOCK))
    state = np.zeros((_BLOCK + 2, 2))
    state[_BLOCK:] = np.eye(2)
    for at in range(_BLOCK):
        x = np.zeros(_BLOCK + 2)
        x[at] = 1
        for k in range(2):
            y = a * x + state[:, k]
            state[:, k] = a * (y - x)
            x = y
        rows[:, at] = x
    n, later = _CHUNK // _BLOCK, [np.eye(2)]
    for _ in range(n):
        later.append(later[-1] @ state[_BLOCK:])
    blocks = np.zeros((n, 2, n + 1, 2))
    for at in range(n):
        for then in range(at + 1, n + 1):
            blocks[at, :, then] = later[then - at - 1]
    return _Products(
        samples=np.concatenate([rows, state], axis=1)[:_BLOCK].astype(np.float32),
        state=rows[_BLOCK:].astype(np.float32),
        blocks=blocks.reshape(2 * n, -1).astype(np.float32),
        chunk=np.concatenate(later, axis=1).astype(np.float32),
    )


class HighPass:
    """Twice a filter of first order, chunk by chunk: y[n] = a (y[n - 1] + x[n] - x[n - 1])."""

    def __init__(self, first: float) -> None:
        """`first`: the sample before the first one, so that it does not start with a step."""
        a = np.exp(-2 * np.pi * _LOWEST_HZ / SAMPLE_RATE)
        # What the two newest chunks would have left of a filter at rest.
        self._left = np.array([[0, 0], [-a * first, 0]], np.float32)

    def __call__(self, chunks: NDArray[np.float32]) -> NDArray[np.float32]:
        """Filter the next (n, 512) samples."""
        n, given = len(chunks), _products()
        blocks = np.matmul(chunks.reshape(n, -1, _BLOCK), given.samples)
        states = blocks[..., _BLOCK:].reshape(n, -1) @ given.blocks
        left = np.concatenate([self._left, states[:, -2:]])
        # Of what was before the two newest chunks, a part of 1e-12 is left.
        before = left[1:-1] + left[:-2] @ given.chunk[:, -2:]
        states += before @ given.chunk
        filtered: NDArray[np.float32] = np.matmul(states[:, :-2].reshape(n, -1, 2), given.state)
        filtered += blocks[..., :_BLOCK]
        self._left = left[-2:]
        return filtered.reshape(n, _CHUNK)
