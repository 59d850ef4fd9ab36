"""What one streaming step costs: spectrogram, encoder, decoder, words, as the daemon runs them.

Windows of `length` follow each other by `step`; the script has 4 words a second, a token each. The
draft is the last window's hypothesis, so with 5 s and 500 ms of 20 tokens 17 are verified in the
first pass (of 18 drafted the last is wrong), 3 are decoded one by one.
"""

import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from streamd.bench.random_model import opened
from streamd.bench.script import Costs, ScriptedRecognizer
from streamd.config import Config
from streamd.daemon import build
from streamd.engine import Engine
from streamd.types import FRAME, Samples, Window

N_WARM = 2
"""Steps that are not counted: the runtime plans its memory in the first."""
N_SOUNDS = 20
"""Steps after which the sound begins anew."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the steps, in ms; `best_ms` is the fastest step.

    `cpu_ms` is the CPU time of all threads, which neighbours change little.
    `rest_ms` is what is left: spectrogram, rules, words. `tokens` are those of one hypothesis,
    `passes` those of the decoder for it.
    """

    step_ms: float
    best_ms: float
    p95_ms: float
    encode_ms: float
    decode_ms: float
    rest_ms: float
    cpu_ms: float
    n_steps: int
    tokens: int
    passes: float
    n_ctx: int


class StepBench(msgspec.Struct, frozen=True, kw_only=True):
    """A model's steps: as in a stream, without a draft, at the full context; its encoder alone."""

    model: str
    load_s: float
    step: StepTimes
    undrafted: StepTimes
    full: StepTimes
    encoder_ms: float


class Steps:
    """A stream that never pauses, one step after the other."""

    def __init__(
        self,
        recognizer: ScriptedRecognizer,
        *,
        length: int = 250,
        step: int = 25,
        draft: bool = True,
    ) -> None:
        """`length` and `step` in frames; without a `draft` every token is decoded by itself."""
        self._recognizer, self._length, self._step = recognizer, length, step
        self._drafts = draft
        self._draft: tuple[int, ...] = ()
        self._start = 0
        self._sound = noise(length + N_SOUNDS * step)

    def run(self) -> tuple[float, Costs, int]:
        """Do the next step; its seconds, those inside the engine, and how many tokens it wrote."""
        at = self._start % (N_SOUNDS * self._step) * FRAME
        window = Window(
            self._start,
            self._start + self._length,
            self._sound[at : at + self._length * FRAME],
            draft=self._draft,
        )
        costs = self._recognizer.engine.reset()
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        hypothesis = self._recognizer.recognize(window)
        took_s, costs.cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        self._start += self._step
        # what the next window does not hold any more is no part of its draft
        gone = sum(word.start + word.end < 2 * self._start for word in hypothesis.words)
        if self._drafts:
            self._draft = tuple(t for word in hypothesis.words[gone:] for t in word.tokens)
        return took_s, costs, len(hypothesis.tokens)


def measure_steps(
    recognizer: ScriptedRecognizer, *, n_steps: int = 20, draft: bool = True
) -> StepTimes:
    """Time steps of the usual length."""
    steps = Steps(recognizer, draft=draft)
    for _ in range(N_WARM):
        steps.run()
    before = replace(recognizer.counters)
    rows = [steps.run() for _ in range(n_steps)]
    total = np.array([took_s for took_s, _, _ in rows])
    encode = np.array([costs.encode_s for _, costs, _ in rows])
    decode = np.array([costs.decode_s for _, costs, _ in rows])
    n_encodes = recognizer.counters.encodes - before.encodes
    return StepTimes(
        step_ms=_ms(np.median(total)),
        best_ms=_ms(total.min()),
        p95_ms=_ms(np.percentile(total, 95)),
        encode_ms=_ms(np.median(encode)),
        decode_ms=_ms(np.median(decode)),
        rest_ms=_ms(np.median(total - encode - decode)),
        cpu_ms=_ms(np.median([costs.cpu_s for _, costs, _ in rows])),
        n_steps=n_steps,
        tokens=rows[-1][2],
        passes=round(float(np.mean([costs.passes for _, costs, _ in rows])), 1),
        n_ctx=(recognizer.counters.encoded_frames - before.encoded_frames) // n_encodes,
    )


def bench_step(config: Config, dims: str = "", *, n_steps: int = 20) -> StepBench:
    """Open the configured model, or random weights of a size, and measure; raises as `opened`."""
    begun_s = time.perf_counter()
    model, engine = opened(config, dims)
    load_s = round(time.perf_counter() - begun_s, 3)
    tokenizer, options = build.tokenizer(config, model), build.decoding_options(config, model)
    whole = replace(options, audio_ctx=model.dims.n_audio_ctx)
    live = ScriptedRecognizer(engine, tokenizer, options)
    return StepBench(
        model=model.name,
        load_s=load_s,
        step=measure_steps(live, n_steps=n_steps),
        undrafted=measure_steps(live, n_steps=max(2, n_steps // 4), draft=False),
        full=measure_steps(
            ScriptedRecognizer(engine, tokenizer, whole), n_steps=max(2, n_steps // 4)
        ),
        encoder_ms=measure_encoder(engine, model.dims.n_audio_ctx, n=max(2, n_steps // 4)),
    )


def step_table(result: StepBench) -> str:
    """The measured steps for people."""
    lines = [
        f"{result.model:28} {'step':>8} {'best':>8} {'p95':>8} {'encode':>8} {'decode':>8} "
        f"{'rest':>8} {'CPU':>8}  tokens passes context"
    ]
    for name, row in (
        ("a step of a stream", result.step),
        ("without a draft", result.undrafted),
        ("at the full context", result.full),
    ):
        lines.append(
            f"{name:28} {row.step_ms:8.1f} {row.best_ms:8.1f} {row.p95_ms:8.1f} "
            f"{row.encode_ms:8.1f} {row.decode_ms:8.1f} {row.rest_ms:8.1f} {row.cpu_ms:8.1f} "
            f"{row.tokens:7} {row.passes:6} {row.n_ctx:7}"
        )
    lines.append(f"{'encoder, full context':28} {result.encoder_ms:8.1f} ms")
    lines.append(f"{'loading':28} {result.load_s:8.2f} s")
    return "\n".join(lines) + "\n"


def measure_encoder(engine: Engine[Any], n_ctx: int, *, n: int = 5) -> float:
    """The encoder's median time in ms at a context, cross-attention keys and values included."""
    mel = np.random.default_rng(7).standard_normal((engine.dims.n_mels, 2 * n_ctx))
    times = []
    for _ in range(n + 1):
        begun_s = time.perf_counter()
        engine.encode(mel.astype(np.float32), n_ctx)
        times.append(time.perf_counter() - begun_s)
    return _ms(np.median(times[1:]))


def noise(n_frames: int) -> Samples:
    """Sound that is the same in every run; what it costs does not depend on what is in it."""
    rng = np.random.default_rng(7)
    return (rng.standard_normal(n_frames * FRAME) * 0.05).astype(np.float32)


def _ms(seconds: np.floating) -> float:
    return round(float(seconds) * 1000, 2)
