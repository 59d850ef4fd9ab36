"""Speaker models: community-1's segmentation and embedding (models/community-1) on ONNX Runtime.

The segmentation (pyannote.audio, arXiv 2104.04045) says in which steps of 16.875 ms each of three
local speakers talks. The embedding is WeSpeaker's ResNet34 (arXiv 2210.17016), which hears Kaldi's
filter banks. Both are loaded when the first voice comes, and all streams share them.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from streamd.speakers import (
    Activity,
    Chances,
    Describe,
    HeardVoices,
    HearingRequest,
    HearingStep,
    HearingSteps,
    Roster,
    SpokenTurn,
)
from streamd.speakers.boundaries import runs
from streamd.system.disk import asset, in_utf8
from streamd.types import FRAME, SAMPLE_RATE, Frames, Hypothesis, Samples, Window, WindowRecognizer

_STEP, _CENTRE = 270, 495
"""Samples from one step of the segmentation to the next, and up to the middle of the first."""
_TALKING = np.array(
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], np.bool_
)
"""Who talks in each of its classes ("powerset", arXiv 2310.13025)."""
_SHORTEST = SAMPLE_RATE // 2
"""Samples that it hears at least; fewer are followed by silence."""
_SILENT = 50
"""Frames without a voice that are segmented again."""
_WIDTH, _HOP, _N_FFT, _N_MELS, _LOWEST_HZ = 400, 160, 512, 80, 20
"""Kaldi's filter banks."""
_BLOCK = 8
"""Rows multiplied at once: few enough for BLAS to stay in this thread (`streamd.whisper.mel`)."""


class Listener:
    """A recognizer that also says who speaks, in windows that ask for it."""

    def __init__(self, recognizer: WindowRecognizer) -> None:
        self._recognizer = recognizer

    def recognize(self, window: Window) -> Hypothesis:
        """Transcribe the window, and hear what its `HearingRequest` asks for."""
        hypothesis = self._recognizer.recognize(window)
        if (request := window.asked(HearingRequest)) is None:
            return hypothesis
        heard = [request.roster]
        for step in request.steps:
            heard.append(heard[-1].copy())  # the session may read its own meanwhile
            hear(heard[-1], step, request.audio, start=request.start)
        return hypothesis.answered(HeardVoices(tuple(heard[1:])))


class RecordedVoices:
    """Hears who speaks in a whole recording while it is read."""

    def __init__(self) -> None:
        self._roster, self._steps = Roster(whole=True), HearingSteps(whole=True)
        self._audio = np.empty(0, np.float32)
        self._begin = self._end = 0

    def feed(self, frames: Frames, gate: Iterable[tuple[int, int]]) -> None:
        """Take the next (n, 320) frames, and what the gate says of each (`HearingSteps.push`)."""
        for silence, late in gate:
            self._end += 1
            self._steps.push(self._end, silence, late)
        self._audio = np.concatenate([self._audio, frames.reshape(-1)])
        self._hear()

    def turns(self, n_speakers: int = 0) -> list[SpokenTurn]:
        """End the recording, and return who talks when; `n_speakers`: see `Roster.tell_apart`."""
        self._steps.flush()
        self._hear()
        self._roster.tell_apart(n_speakers)
        return self._roster.turns

    @property
    def prints(self) -> list[tuple[bytes, int]]:
        """The voiceprint of each speaker, and of how many frames, after `turns`."""
        return self._roster.prints

    def _hear(self) -> None:
        for step in self._steps.take(self._end):
            hear(self._roster, step, self._audio, start=self._begin)
        n_old = self._steps.oldest - self._begin
        self._audio, self._begin = self._audio[FRAME * n_old :], self._begin + n_old


def hear(roster: Roster, step: HearingStep, audio: Samples, *, start: int) -> None:
    """Have a roster hear a step, in audio that begins at frame `start`."""
    part = audio[FRAME * (step.start - start) : FRAME * (step.end - start)]
    levels = 10 * np.log10((part.reshape(-1, FRAME).astype(np.float64) ** 2).mean(1) + 1e-10)
    # Their own mean would take a part of the voice with it. Every eighth bank is enough for that.
    mean = cache(lambda: filter_banks(part, 8 * _HOP).mean(0))

    def listen_to(first: int, end: int) -> Describe:
        return listen(filter_banks(part[FRAME * first : FRAME * end]) - mean())

    roster.hear(step, *(segment_twice if roster.whole else segment)(part), levels, listen_to)


def segment(audio: Samples) -> tuple[Activity, Chances]:
    """Return who of three local speakers talks in each frame, (n, 3), and how probable that is."""
    padded = np.pad(audio, (0, max(0, _SHORTEST - len(audio))))
    steps = _run("segmentation", padded[None, None])
    middles = (np.arange(len(audio) // FRAME) + 0.5) * FRAME
    nearest = np.rint((middles - _CENTRE) / _STEP).astype(int).clip(0, steps.shape[1] - 1)
    log_probs = steps[0, nearest]
    chances: Chances = np.exp(log_probs) @ _TALKING.astype(np.float32)
    return _TALKING[log_probs.argmax(1)], chances


def segment_twice(audio: Samples) -> tuple[Activity, Chances]:
    """Segment audio, and each place of a second and more without a voice once more, by itself.

    In a far room, it is not heard for seconds that somebody talks, unless a piece begins there.
    """
    activity, chances = segment(audio)
    for ((first, end),) in runs(activity.sum(1) == 0):
        if _SILENT <= end - first < len(activity):
            place = slice(first, end)
            activity[place], chances[place] = segment(audio[FRAME * first : FRAME * end])
    return activity, chances


def listen(banks: NDArray[np.float64]) -> Describe:
    """Return what describes the voice in some frames of a piece of audio, whose banks are given.

    It takes (k, n) frames, and returns (k, 256) embeddings. The network hears the audio once; only
    the mean and the deviation of what it gives for every 80 ms are those of the frames.
    """
    (heard,) = _run("embedding", banks[None].astype(np.float32))  # (2560, n / 4)
    squares = heard**2

    def describe(frames: NDArray[np.bool_]) -> NDArray[np.float32]:
        n = 4 * heard.shape[1]
        padded = np.pad(frames, ((0, 0), (0, max(0, n - frames.shape[1]))))[:, :n]
        weights = padded.reshape(len(frames), -1, 4).mean(2, dtype=np.float32)
        total = np.maximum(weights.sum(1, keepdims=True), 1e-6)
        mean = weights @ heard.T / total
        free = total - (weights**2).sum(1, keepdims=True) / total
        spread = weights @ squares.T - total * mean**2
        deviation = np.sqrt(np.maximum(spread / np.maximum(free, 1e-6), 1e-10))
        voices = _run("pooled", np.concatenate([mean, deviation], axis=1))
        described: NDArray[np.float32] = voices / np.linalg.norm(voices, axis=1, keepdims=True)
        return described

    return describe


def filter_banks(audio: Samples, hop: int = _HOP) -> NDArray[np.float64]:
    """Return Kaldi's log filter banks, (n, 80), one every `hop` samples.

    They are those of its ``compute-fbank-feats`` for 16-bit samples, with a Hamming window and
    without dither.
    """
    parts = np.lib.stride_tricks.sliding_window_view(audio, _WIDTH)[::hop].astype(np.float64)
    parts -= parts.mean(1, keepdims=True)
    parts *= 32768
    parts[:, 1:] -= 0.97 * parts[:, :-1]
    parts[:, 0] *= 1 - 0.97
    spectra = np.fft.rfft(parts * _window(), _N_FFT)[:, :-1]
    power = spectra.real**2 + spectra.imag**2
    bands = [power[at : at + _BLOCK] @ _mels() for at in range(0, len(power), _BLOCK)]
    banks: NDArray[np.float64] = np.log(np.maximum(np.concatenate(bands), np.finfo(np.float32).eps))
    return banks


@cache
def _window() -> NDArray[np.float64]:
    return np.hamming(_WIDTH)


@cache
def _mels() -> NDArray[np.float64]:
    def mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1127 * np.log1p(hz / 700)

    lowest, highest = mel(np.array([_LOWEST_HZ, SAMPLE_RATE / 2]))
    edges = np.linspace(lowest, highest, _N_MELS + 2)
    at = mel(np.arange(_N_FFT // 2) * SAMPLE_RATE / _N_FFT)[:, None]
    rising, falling = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    mels: NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    return mels


_ECHO_S, _ECHO = 0.6, 2.0
"""In a room, an echo dies away by 60 dB in `_ECHO_S`, and has `_ECHO` times the energy of the sound
that comes directly."""


def in_room(sound: Samples) -> Samples:
    """Return about what is heard of a sound across a room."""
    n = round(_ECHO_S * SAMPLE_RATE)
    echo = np.random.default_rng(0).standard_normal(n) * 10 ** (-3 * np.arange(n) / n)
    echo *= _ECHO**0.5 / np.linalg.norm(echo)
    echo[0] += 1
    size = 1 << (len(sound) + n).bit_length()
    heard = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)[: len(sound)]
    room: Samples = (heard / max(float(np.abs(heard).max()), 1e-9)).astype(np.float32)
    return room


def _run(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    model = _model(name)
    (result,) = model.run(None, {model.get_inputs()[0].name: values})
    return np.asarray(result, np.float32)


def release() -> None:
    """Free the models (11 MB); the next call loads them again, in 0.03 s of CPU time."""
    _model.cache_clear()


@cache
def _model(name: str) -> InferenceSession:
    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, not printed
    # The longest step would take 26 MB for good, for a tenth less time of each.
    options.enable_cpu_mem_arena = False
    path = asset("community-1") / f"{name}.onnx"
    with in_utf8(path) as file:
        return InferenceSession(file, options, providers=["CPUExecutionProvider"])
