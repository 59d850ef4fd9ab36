"""Compares an engine with the float32 reference on clips of real speech that ship with streamd.

Each clip is encoded as a window of a stream is, the longest one at the full context too.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.engines.reference import Array, ReferenceEngine
from streamd.models.model import Model
from streamd.options import DecodingOptions
from streamd.system.disk import asset
from streamd.types import FRAME, Mel, Samples
from streamd.whisper.decode import Context, decode, slots_needed
from streamd.whisper.engine import Engine, FeaturesT, run_in_order
from streamd.whisper.mel import log_mel
from streamd.whisper.tokenizer import Tokenizer

FLOAT16_MAX = 65_504.0
"""The largest number in half precision."""
MAX_DISTANCE = 1e-3
"""Limit for the logits of a float32 engine; those of tiny.en and base are off by 1e-5."""
MAX_KL = 0.2
"""Limit for an int8 engine; tiny.en has 0.004 and base 0.02 on the clips (docs/models.md)."""
_MOST_TOKENS = 80
"""Twice as many as the longest clip has, even in single digits."""
_N_STEPS = 3
"""Tokens decoded one by one after a pass of all others."""
_SILENT = 2
"""Frames of silence after a clip, with which its log-mel ends."""
_Values = tuple[Array, Array]
"""Logits and alignment, a row for each position."""


@dataclass(frozen=True, slots=True)
class GoldenClip:
    """A recording of real speech, and its correct text."""

    name: str
    samples: Samples
    text: str

    @property
    def n_frames(self) -> int:
        """The clip's length."""
        return -(-len(self.samples) // FRAME)


@dataclass(frozen=True, slots=True)
class Numerics:
    """How far an engine is from the reference.

    `logits`, `alignment`: root of the mean squared difference over that of the values; `kl`: the
    Kullback-Leibler divergence of the reference's distribution from the engine's, in nats, the
    mean over the positions; `agreed`: the share of positions with the same likeliest token.
    """

    logits: float
    alignment: float
    agreed: float
    kl: float

    def acceptable(self, precision: str) -> bool:
        """Return whether rounding in this precision can explain the differences; NaN fails."""
        return self.kl <= MAX_KL if precision == "int8" else self.logits <= MAX_DISTANCE


@dataclass(frozen=True, slots=True)
class Compared:
    """One clip, encoded as a window of a stream or, if it is `whole`, at the full context.

    `fits` tells whether the model takes all of it. `numerics` compares both engines on the
    reference's text, `expected`; `found` is the engine's own text.
    """

    clip: GoldenClip
    whole: bool
    fits: bool
    numerics: Numerics
    expected: str
    found: str


def clips() -> list[GoldenClip]:
    """Return the clips that ship with streamd. Raises `StreamdError` if they are missing."""
    folder = asset("golden")
    texts = msgspec.json.decode((folder / "clips.json").read_bytes(), type=dict[str, str])
    sounds = (soundfile.read(folder / f"{name}.flac", dtype="float32")[0] for name in texts)
    return [GoldenClip(*row) for row in zip(texts, sounds, texts.values(), strict=True)]


def read_by_whisper(weights: Path) -> dict[str, str]:
    """Return openai-whisper's texts of the clips, if the weights are the bundled ones.

    Raises `StreamdError` if the installation lacks the golden files.
    """
    golden = msgspec.json.decode((asset("golden") / "read.json").read_bytes())
    same = hashlib.sha256(weights.read_bytes()).hexdigest() == golden["weights_sha256"]
    return dict(golden["texts"]) if same else {}


def sounds(n_audio_ctx: int) -> list[tuple[GoldenClip, bool]]:
    """Return the clips that fit, to be encoded as in a stream, then the longest one as a whole."""
    every = clips()
    live = [(clip, False) for clip in every if clip.n_frames + _SILENT <= n_audio_ctx]
    return [*live, (max(every, key=lambda clip: clip.n_frames), True)]


def compare(
    model: Model,
    engine: Engine[Any],
    tokenizer: Tokenizer,
    chosen: Sequence[tuple[GoldenClip, bool]],
) -> tuple[list[Compared], dict[str, float]]:
    """Run each clip, whole or not (see `Compared`), through the reference and the engine.

    Returns the comparisons, and the largest value in each layer of the reference, by its name.
    """
    peaks: dict[str, float] = {}

    def notice(where: str, values: Array) -> None:
        peaks[where] = max(peaks.get(where, 0.0), float(np.abs(values).max()))

    heads = model.alignment_heads
    reference = ReferenceEngine(
        model.dims, model.weights, alignment_heads=heads, bank=model.bank, notice=notice
    )
    start = (*tokenizer.sot_sequence, tokenizer.notimestamps)
    rows = []
    for clip, whole in chosen:
        n_audio_ctx = model.dims.n_audio_ctx
        mel = mel_of(model, clip.samples, n_audio_ctx if whole else clip.n_frames + _SILENT)
        exact, rounded = reference.encode(mel), engine.encode(mel)
        expected = _transcribe(reference, exact, tokenizer)
        found = _transcribe(engine, rounded, tokenizer)
        wanted = _forced(reference, exact, (*start, *expected))
        given = _forced(engine, rounded, (*start, *expected))
        first = len(start) - 1  # the positions before predict nothing of the text
        off = numerics((wanted[0][first:], wanted[1][first:]), (given[0][first:], given[1][first:]))
        texts = (tokenizer.decode(tokens).strip() for tokens in (expected, found))
        rows.append(Compared(clip, whole, clip.n_frames <= n_audio_ctx, off, *texts))
    return rows, peaks


def _transcribe(
    engine: Engine[FeaturesT], features: FeaturesT, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """Decode greedily and return the text tokens."""
    options, n_text_ctx = DecodingOptions(), engine.dims.n_text_ctx
    most = min(_MOST_TOKENS, n_text_ctx // 2)
    context = Context(max_tokens=most, language=tokenizer.language)
    n_slots = slots_needed(context, options=options, n_text_ctx=n_text_ctx)
    found = decode(engine.decoder(features, n_slots), tokenizer, options=options, context=context)
    return tuple(token for token in found.tokens if token < tokenizer.eot)


def _forced(engine: Engine[FeaturesT], features: FeaturesT, tokens: Sequence[int]) -> _Values:
    decoder = engine.decoder(features, len(tokens))
    first = max(1, len(tokens) - _N_STEPS)
    parts = ((0, first), *((i, i + 1) for i in range(first, len(tokens))))
    rows = [run_in_order(decoder, tokens[start:end], start) for start, end in parts]
    logits, alignment = zip(*rows, strict=True)
    return np.concatenate(logits), np.concatenate(alignment)


def numerics(wanted: _Values, found: _Values) -> Numerics:
    """Return how far `found` is from `wanted`, both results of `forward`; NaN stays NaN."""
    logits, alignment = (distance(*pair) for pair in zip(found, wanted, strict=True))
    agreed = float((wanted[0].argmax(axis=1) == found[0].argmax(axis=1)).mean())
    exact, rounded = _log_softmax(wanted[0]), _log_softmax(found[0])
    kl = float((np.exp(exact) * (exact - rounded)).sum(axis=1).mean())
    return Numerics(logits, alignment, agreed, kl)


def distance(found: Array, wanted: Array) -> float:
    """Return the root of the mean squared difference over that of the values, or itself for zeros.

    NaN stays NaN.
    """
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


def average(rows: Sequence[Numerics]) -> Numerics:
    """Return the mean of several comparisons with equal weights."""
    columns = zip(*map(astuple, rows), strict=True)
    return Numerics(*(float(np.mean(column)) for column in columns))


def _log_softmax(logits: Array) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normal: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normal


def mel_of(model: Model | Engine[Any], samples: Samples, n_ctx: int) -> Mel:
    """Return the log-mel of the first `n_ctx` frames of a recording, (n_mels, 2 * n_ctx)."""
    samples = samples[: n_ctx * FRAME]
    return log_mel(np.pad(samples, (0, n_ctx * FRAME - len(samples))), model.dims.n_mels)
