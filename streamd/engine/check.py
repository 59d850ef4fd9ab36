"""Whether a model computes what it should, on this machine: the same sound as in the reference.

Clips of real speech ship with streamd. What an engine makes of them is compared with the numpy
reference, in float32, at the encoder contexts that are in use: of each clip at the one that a live
window of its length gets, of the longest clip at the full one. Knows nothing of speed, of how words
are compared, nor how results are shown.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.assets import asset
from streamd.engine import Engine, FeaturesT
from streamd.engine.model import Model
from streamd.engine.recognizer import encoder_positions
from streamd.engine.reference import Array, ReferenceEngine
from streamd.mel import log_mel
from streamd.options import DecodingOptions
from streamd.search.decode import Context, decode, slots_needed
from streamd.search.tokenizer import Tokenizer
from streamd.types import FRAME, SAMPLE_RATE, Mel, Samples

FLOAT16_MAX = 65_504.0
"""Half precision holds no larger number."""
MAX_DISTANCE = 1e-3
"""How far the logits of a float32 engine may be from the reference's; tiny.en's and base's are
1e-5 away."""
MAX_KL = 0.2
"""How far the distributions of an int8 engine may be from the reference's, in nats per token: those
of tiny.en and base are 0.004 and 0.02 away on the bundled clips (docs/models.md)."""
_MOST_TOKENS = 80
"""The longest clip has half as many, even as single digits."""
_N_STEPS = 3
"""Tokens decoded one by one, behind those of one pass."""
_Values = tuple[Array, Array]
"""Logits and alignment, a row for each position."""


@dataclass(frozen=True, slots=True)
class GoldenClip:
    """A recording of real speech, and what is said in it."""

    name: str
    samples: Samples
    text: str

    @property
    def n_frames(self) -> int:
        """Return how long it is."""
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
        """Whether so much may come from rounding in this precision; NaN may not."""
        return self.kl <= MAX_KL if precision == "int8" else self.logits <= MAX_DISTANCE


@dataclass(frozen=True, slots=True)
class Compared:
    """One clip at one encoder context: the numbers, and the texts that were read in it.

    The numbers are about the reference's text, given to both.
    """

    clip: GoldenClip
    n_ctx: int
    numerics: Numerics
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest value in a layer."""

    where: str
    value: float


class _Read(msgspec.Struct, frozen=True):
    weights_sha256: str
    texts: dict[str, str]


def clips() -> list[GoldenClip]:
    """The clips that ship with streamd. Raises `StreamdError` if they do not."""
    folder = asset("golden")
    texts = msgspec.json.decode((folder / "clips.json").read_bytes(), type=dict[str, str])
    return [GoldenClip(name, _read(folder / f"{name}.flac"), text) for name, text in texts.items()]


def read_by_whisper(weights: Path) -> dict[str, str]:
    """What openai-whisper reads in the clips, at full context, with the weights in this file.

    Empty for weights other than the bundled ones. Raises `StreamdError` if the installation lacks
    the golden files.
    """
    told = msgspec.json.decode((asset("golden") / "read.json").read_bytes(), type=_Read)
    same = hashlib.sha256(weights.read_bytes()).hexdigest() == told.weights_sha256
    return told.texts if same else {}


def contexts_in_use(options: DecodingOptions, n_audio_ctx: int) -> list[tuple[GoldenClip, int]]:
    """The clips at the encoder contexts of a live window, then the longest one at the full one."""
    every = clips()
    live = [
        (clip, encoder_positions(clip.n_frames, options, n_audio_ctx))
        for clip in every
        if clip.n_frames <= n_audio_ctx
    ]
    longest = max(every, key=lambda clip: clip.n_frames)
    return [*live, (longest, n_audio_ctx)]


def compare(
    model: Model,
    engine: Engine[Any],
    tokenizer: Tokenizer,
    sounds: Sequence[tuple[GoldenClip, int]],
) -> tuple[list[Compared], list[Peak]]:
    """Run each clip at its encoder context through the reference and the engine.

    Returns
    -------
    the comparisons, and the reference's largest values by layer
    """
    peaks: dict[str, float] = {}

    def notice(where: str, values: Array) -> None:
        peaks[where] = max(peaks.get(where, 0.0), float(np.abs(values).max()))

    heads = model.alignment_heads
    reference = ReferenceEngine(model.dims, model.weights, alignment_heads=heads, notice=notice)
    start = (*tokenizer.sot_sequence, tokenizer.notimestamps)
    rows = []
    for clip, n_ctx in sounds:
        mel = mel_of(model, clip.samples, n_ctx)
        exact, rounded = reference.encode(mel, n_ctx), engine.encode(mel, n_ctx)
        expected = _read_in(reference, exact, tokenizer)
        found = _read_in(engine, rounded, tokenizer)
        wanted = _forced(reference, exact, (*start, *expected))
        given = _forced(engine, rounded, (*start, *expected))
        texts = (tokenizer.decode(tokens).strip() for tokens in (expected, found))
        rows.append(
            Compared(clip, n_ctx, numerics(_text(wanted, start), _text(given, start)), *texts)
        )
    return rows, [Peak(*row) for row in peaks.items()]


def _text(values: _Values, start: Sequence[int]) -> _Values:
    """Without the positions at which nothing of the text is decided."""
    return values[0][len(start) - 1 :], values[1][len(start) - 1 :]


def _read_in(
    engine: Engine[FeaturesT], features: FeaturesT, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """The text tokens of a greedy decode."""
    options, n_text_ctx = DecodingOptions(), engine.dims.n_text_ctx
    most = min(_MOST_TOKENS, n_text_ctx // 2)
    context = Context(max_tokens=most, language=tokenizer.language)
    n_slots = slots_needed(context, options=options, n_text_ctx=n_text_ctx)
    found = decode(engine.decoder(features, n_slots), tokenizer, options=options, context=context)
    return tuple(token for token in found.tokens if token < tokenizer.eot)


def forward(engine: Engine[Any], mel: Mel, tokens: Sequence[int]) -> tuple[Array, Array]:
    """Logits and alignment of all tokens, behind the log-mel (n_mels, 2 * n_ctx) of the audio."""
    return _forced(engine, engine.encode(mel, mel.shape[1] // 2), tokens)


def _forced(engine: Engine[FeaturesT], features: FeaturesT, tokens: Sequence[int]) -> _Values:
    """Most tokens in one pass, the last ones one by one."""
    decoder = engine.decoder(features, len(tokens))
    first = max(1, len(tokens) - _N_STEPS)
    rows = []
    for start, end in ((0, first), *((i, i + 1) for i in range(first, len(tokens)))):
        order = np.arange(start, end)
        visible = np.arange(decoder.n_slots) <= order[:, None]
        passed = np.array(tokens[start:end], np.int64)
        rows.append(decoder.step(passed, order, order, visible, np.arange(end - start)))
    logits, alignment = zip(*rows, strict=True)
    return np.concatenate(logits), np.concatenate(alignment)


def numerics(wanted: _Values, found: _Values) -> Numerics:
    """How far one result of `forward` is from another."""
    logits, alignment = (_difference(a, b) for a, b in zip(wanted, found, strict=True))
    agreed = float((wanted[0].argmax(axis=1) == found[0].argmax(axis=1)).mean())
    exact, rounded = _log_softmax(wanted[0]), _log_softmax(found[0])
    kl = float((np.exp(exact) * (exact - rounded)).sum(axis=1).mean())
    return Numerics(logits, alignment, agreed, kl)


def average(rows: Sequence[Numerics]) -> Numerics:
    """The mean of several comparisons, each of them worth the same."""
    columns = zip(*((row.logits, row.alignment, row.agreed, row.kl) for row in rows), strict=True)
    return Numerics(*(float(np.mean(column)) for column in columns))


def _difference(wanted: Array, found: Array) -> float:
    """NaN if there is one in either."""
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))


def _log_softmax(logits: Array) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normal: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normal


def mel_of(model: Model | Engine[Any], samples: Samples, n_ctx: int) -> Mel:
    """The log-mel of the beginning of a recording, (n_mels, 2 * n_ctx)."""
    samples = samples[: n_ctx * FRAME]
    return log_mel(np.pad(samples, (0, n_ctx * FRAME - len(samples))), model.dims.n_mels)


def _read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == SAMPLE_RATE
    return np.asarray(samples, np.float32)
