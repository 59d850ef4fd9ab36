"""What one streaming step costs: spectrogram, encoder, decoder, words, as the daemon runs them.

Windows of `length` follow each other by `step`; the script has 4 words a second, a token each. The
draft is the last window's hypothesis, so with 5 s and 500 ms of 20 tokens 17 are verified in the
first pass (of 18 drafted the last is wrong), 3 are decoded one by one.
"""

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from streamd.bench.script import Costs, ScriptedRecognizer
from streamd.types import FRAME, Samples, Window

N_WARM = 2
"""Steps that are not counted: the runtime plans its memory in the first."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the steps, in ms; `best_ms` is the fastest step.

    `rest_ms` is what is left: spectrogram, rules, words. `tokens` are those of one hypothesis,
    `passes` those of the decoder for it.
    """

    step_ms: float
    best_ms: float
    p95_ms: float
    encode_ms: float
    decode_ms: float
    rest_ms: float
    n_steps: int
    tokens: int
    passes: float
    n_ctx: int


def measure_steps(
    recognizer: ScriptedRecognizer,
    *,
    n_steps: int = 20,
    length: int = 250,
    step: int = 25,
    draft: bool = True,
) -> StepTimes:
    """Time steps of a stream that never pauses; `length` and `step` in frames.

    `draft`: verify the last hypothesis; without it every token is decoded by itself.
    """
    samples = noise(length + step * (n_steps + N_WARM))
    known: tuple[int, ...] = ()
    rows: list[tuple[float, Costs]] = []
    recognizer.counters.encodes = recognizer.counters.encoded_frames = 0
    n_tokens = 0
    for n in range(n_steps + N_WARM):
        start = n * step
        window = Window(
            start, start + length, samples[start * FRAME : (start + length) * FRAME], draft=known
        )
        costs = recognizer.engine.reset()
        begun_s = time.perf_counter()
        hypothesis = recognizer.recognize(window)
        took_s = time.perf_counter() - begun_s
        rows.append((took_s, costs))
        n_tokens = len(hypothesis.tokens)
        # the next window begins a step later: the words before it are no part of its draft
        gone = sum(word.start + word.end < 2 * (start + step) for word in hypothesis.words)
        known = tuple(t for word in hypothesis.words[gone:] for t in word.tokens) if draft else ()
    return _summary(rows[N_WARM:], n_tokens, recognizer)


def _summary(
    rows: Sequence[tuple[float, Costs]], n_tokens: int, recognizer: ScriptedRecognizer
) -> StepTimes:
    total = np.array([took_s for took_s, _ in rows])
    encode = np.array([costs.encode_s for _, costs in rows])
    decode = np.array([costs.decode_s for _, costs in rows])
    counters = recognizer.counters
    return StepTimes(
        step_ms=_ms(np.median(total)),
        best_ms=_ms(total.min()),
        p95_ms=_ms(np.percentile(total, 95)),
        encode_ms=_ms(np.median(encode)),
        decode_ms=_ms(np.median(decode)),
        rest_ms=_ms(np.median(total - encode - decode)),
        n_steps=len(rows),
        tokens=n_tokens,
        passes=round(float(np.mean([costs.passes for _, costs in rows])), 1),
        n_ctx=counters.encoded_frames // max(1, counters.encodes),
    )


def noise(n_frames: int) -> Samples:
    """Sound that is the same in every run; what it costs does not depend on what is in it."""
    rng = np.random.default_rng(7)
    return (rng.standard_normal(n_frames * FRAME) * 0.05).astype(np.float32)


def _ms(seconds: np.floating) -> float:
    return round(float(seconds) * 1000, 2)
