"""Whether a model computes what it should, on this machine: golden vectors, numerics, activations.

Three clips of real speech ship with streamd, and what openai-whisper makes of them with the bundled
weights. Any other model is compared with the numpy reference. The work is bounded: a short context
and a few tokens, whatever the size of the model. Knows nothing of speed, nor how results are shown.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile

from streamd.assets import asset
from streamd.engine import Engine
from streamd.engine.model import Model
from streamd.engine.reference import Array, ReferenceEngine
from streamd.mel import log_mel
from streamd.search.decode import Context, decode, slots_needed
from streamd.search.options import DecodingOptions
from streamd.search.tokenizer import Tokenizer
from streamd.types import FRAME, SAMPLE_RATE, Mel, Samples

FLOAT16_MAX = 65_504.0
"""Half precision holds no larger number."""
_N_CTX = 128
"""Encoder positions that are compared: 2.5 s."""
_N_STEPS = 3
"""Tokens decoded one by one, behind those of one pass."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording of real speech, and what is said in it."""

    name: str
    samples: Samples
    text: str


@dataclass(frozen=True, slots=True)
class Numerics:
    """How far an engine is from the reference.

    `logits`, `alignment`: root of the mean squared difference over that of the values; `agreed`:
    the share of positions with the same likeliest token.
    """

    logits: float
    alignment: float
    agreed: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest value in a layer."""

    where: str
    value: float


class _Case(msgspec.Struct, frozen=True):
    clip: str
    n_ctx: int
    options: dict[str, Any]
    tokens: list[int]


class _Cases(msgspec.Struct, frozen=True):
    decode: list[_Case]


class _Golden(msgspec.Struct, frozen=True):
    weights_sha256: str
    bundled: _Cases = msgspec.field(name="tiny.en")


def clips() -> list[Clip]:
    """The clips that ship with streamd. Raises `StreamdError` if they do not."""
    folder = asset("golden")
    texts = msgspec.json.decode((folder / "clips.json").read_bytes(), type=dict[str, str])
    return [Clip(name, _read(folder / f"{name}.flac"), text) for name, text in texts.items()]


def golden_cases(model_file: Path) -> list[_Case]:
    """What openai-whisper decodes greedily with the weights in this file; nothing if it is others.

    Raises `StreamdError` if the installation lacks the golden files.
    """
    golden = msgspec.json.decode((asset("golden") / "golden.json").read_bytes(), type=_Golden)
    if hashlib.sha256(model_file.read_bytes()).hexdigest() != golden.weights_sha256:
        return []
    return [case for case in golden.bundled.decode if case.options == {"without_timestamps": True}]


def as_golden(engine: Engine[Any], tokenizer: Tokenizer, cases: Sequence[_Case]) -> list[bool]:
    """Of each case, whether this engine decodes the same tokens."""
    sounds = {clip.name: clip.samples for clip in clips()}
    options = DecodingOptions(text_only=False)
    context = Context(max_tokens=engine.dims.n_text_ctx // 2, language=tokenizer.language)
    n_slots = slots_needed(context, options=options, n_text_ctx=engine.dims.n_text_ctx)
    same = []
    for case in cases:
        features = engine.encode(mel_of(engine, sounds[case.clip], case.n_ctx), case.n_ctx)
        decoder = engine.decoder(features, n_slots)
        found = decode(decoder, tokenizer, options=options, context=context)
        same.append(list(found.tokens) == case.tokens)
    return same


def compare(model: Model, engine: Engine[Any], tokenizer: Tokenizer) -> tuple[Numerics, list[Peak]]:
    """Run the same audio and tokens through the reference and the engine.

    Returns
    -------
    the differences, and the reference's largest values by layer
    """
    peaks: dict[str, float] = {}

    def notice(where: str, values: Array) -> None:
        peaks[where] = max(peaks.get(where, 0.0), float(np.abs(values).max()))

    heads = model.alignment_heads
    reference = ReferenceEngine(model.dims, model.weights, alignment_heads=heads, notice=notice)
    tokens = (*tokenizer.sot_sequence, tokenizer.notimestamps, *tokenizer.encode(" one two three"))
    mel = mel_of(model, clips()[0].samples, _N_CTX)
    wanted, found = (forward(each, mel, tokens) for each in (reference, engine))
    return numerics(wanted, found), [Peak(*row) for row in peaks.items()]


def forward(engine: Engine[Any], mel: Mel, tokens: Sequence[int]) -> tuple[Array, Array]:
    """Logits and alignment of all tokens: most in one pass, the last ones one by one."""
    n_ctx = mel.shape[1] // 2
    decoder = engine.decoder(engine.encode(mel, n_ctx), len(tokens))
    first = max(1, len(tokens) - _N_STEPS)
    rows = []
    for start, end in ((0, first), *((i, i + 1) for i in range(first, len(tokens)))):
        order = np.arange(start, end)
        visible = np.arange(decoder.n_slots) <= order[:, None]
        passed = np.array(tokens[start:end], np.int64)
        rows.append(decoder.step(passed, order, order, visible, np.arange(end - start)))
    logits, alignment = zip(*rows, strict=True)
    return np.concatenate(logits), np.concatenate(alignment)


def numerics(wanted: tuple[Array, Array], found: tuple[Array, Array]) -> Numerics:
    """How far one result of `forward` is from another."""
    logits, alignment = (_difference(a, b) for a, b in zip(wanted, found, strict=True))
    agreed = float((wanted[0].argmax(axis=1) == found[0].argmax(axis=1)).mean())
    return Numerics(logits, alignment, agreed)


def _difference(wanted: Array, found: Array) -> float:
    """NaN if there is one in either."""
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))


def mel_of(model: Model | Engine[Any], samples: Samples, n_ctx: int) -> Mel:
    """The log-mel of the beginning of a recording, (n_mels, 2 * n_ctx)."""
    samples = samples[: n_ctx * FRAME]
    return log_mel(np.pad(samples, (0, n_ctx * FRAME - len(samples))), model.dims.n_mels)


def _read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == SAMPLE_RATE
    return np.asarray(samples, np.float32)
