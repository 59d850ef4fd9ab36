"""Golden vectors: windows of real speech as the reference computes them with what packages hold.

They let any machine judge an engine without the checkpoint, and run every function of the packages:
each context; a window that grows; in the shortest window also passes of each size, with and without
logits, in each size of cache. Distances are taken pass by pass, so that one wrong function cannot
hide among the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import BUILD_AGAIN, FORMS, GOLDEN, MAX_TOKENS, BuiltModel, Meta
from streamd.engines.golden_clips import clips
from streamd.engines.prepared import bundled_speech
from streamd.errors import ModelError
from streamd.models.model import Model
from streamd.models.silence import MARGIN, STRIDE, longest_extent
from streamd.types import FRAME, Mel, Samples
from streamd.whisper.engine import Alignment, Engine, Logits, run_in_order
from streamd.whisper.mel import log_mel

GOLDEN_TOLERANCE = 0.02
"""The largest distance of a pass. Half precision costs up to 4e-3 with the weights of tiny.en and
base, and the Neural Engine also accumulates in half precision."""
_HIDDEN = 10
"""A window is this many positions shorter than its context, so that masks have an effect."""
_SILENT = 2
"""Frames of silence at the end of each window."""
_PASSES = ((25, False), (20, True), (6, True), (1, True))
"""Tokens of a pass, fewer than its function takes, and whether it returns logits."""
_N_TIMESTAMPS = 1501
_PARTS = ("tokens", "mel", "audio_ctx", "passes")
_BEFORE = "before"
_Result = tuple[Logits, Alignment]


@dataclass(frozen=True, slots=True)
class TextPass:
    """A pass of `k` tokens from `first` on, each seeing all before it."""

    first: int
    k: int
    has_logits: bool

    @property
    def want(self) -> list[int]:
        """The tokens whose logits it returns."""
        return sorted({0, self.k // 2, self.k - 1}) if self.has_logits else []


@dataclass(frozen=True, slots=True)
class GoldenWindow:
    """What is encoded, and the passes over it.

    `tokens` is a transcript, of which a pass has a part; `audio_ctx` as for `Engine.encode`.
    If `n_before`, so many positions of `mel` are encoded first, of which the window reuses
    `n_reused`. `results` are those of the reference for each pass, once it has been run.
    """

    tokens: NDArray[np.int64]
    mel: Mel
    audio_ctx: int
    passes: tuple[TextPass, ...]
    n_before: int = 0
    n_reused: int = 0
    results: tuple[_Result, ...] = ()


@dataclass(frozen=True, slots=True)
class Distance:
    """How far an engine is from the golden vectors, in the pass where it is farthest.

    `logits`, `alignment`: root of the mean squared difference over that of the values; NaN if any
    is. `agreed`: the share of logits' rows with the same likeliest token. `where` is that pass.
    """

    logits: float
    alignment: float
    agreed: float
    where: str

    @property
    def acceptable(self) -> bool:
        """Whether half precision can explain it."""
        # Both comparisons are false for NaN.
        return self.logits <= GOLDEN_TOLERANCE and self.alignment <= GOLDEN_TOLERANCE


def against_golden(engine: Engine[Any], windows: Iterable[GoldenWindow]) -> Distance:
    """Run golden vectors through an engine and measure the distance."""
    off, where, same = [], [], []
    for window in windows:
        found = run_window(engine, window)
        for each, mine, exact in zip(window.passes, found, window.results, strict=True):
            off.append([distance(*pair) for pair in zip(mine, exact, strict=True)])
            place = f"{each.k} tokens after {each.first}"
            where.append(f"{place}, {window.mel.shape[1] // 2} positions")
            same += (mine[0].argmax(axis=1) == exact[0].argmax(axis=1)).tolist()
    # NaN is farther than any number.
    farthest = int(np.nan_to_num(off, nan=np.inf).max(axis=1).argmax())
    logits, alignment = np.max(off, axis=0).tolist()
    return Distance(logits, alignment, float(np.mean(same)), where[farthest])


def distance(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Return the root of the mean squared difference over that of the values, or itself for zeros.

    NaN stays NaN.
    """
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


def run_window(engine: Engine[Any], window: GoldenWindow) -> Iterator[_Result]:
    """Encode a window and yield the results of its passes."""
    last, previous = window.passes[-1], None
    if window.n_before:
        before = window.mel[:, : 2 * window.n_before]
        previous = engine.encode(before, audio_ctx=window.audio_ctx)
    features = engine.encode(
        window.mel, audio_ctx=window.audio_ctx, previous=previous, n_reused=window.n_reused
    )
    decoder = engine.decoder(features, last.first + last.k)
    for each in window.passes:
        part = window.tokens[each.first : each.first + each.k].tolist()
        yield run_in_order(decoder, part, each.first, each.want)


# -- what is run ----------------------------------------------------------------------------------


def golden_windows(meta: Meta, model: Model) -> tuple[GoldenWindow, ...]:
    """Return a window for each context; the shortest runs all functions of the decoder, too.

    If windows can be resumed, there is a short one and one that goes on from there.
    """
    speech, tokens, found = bundled_speech(), _transcript(model), []
    few = (TextPass(0, 6, True), TextPass(6, 1, True))
    for i, n_ctx in enumerate(meta.contexts):
        with_silence = meta.silence and MARGIN + _HIDDEN < n_ctx < meta.dims.n_audio_ctx
        n = max(1, n_ctx - _HIDDEN - with_silence * MARGIN)
        if with_silence:
            n = min(n, longest_extent(meta.dims) - MARGIN)
        mel = mel_of(model, speech[: max(1, n - _SILENT) * FRAME], n)
        whole = with_silence or n_ctx == meta.dims.n_audio_ctx
        passes = few if i or meta.n_resumed else _passes(meta)
        found.append(GoldenWindow(tokens, mel, 0 if whole else n, passes))
    if k := meta.n_resumed:
        # Just as much is known as a call of fixed size needs, so that the reference computes the
        # same positions; the window before is too long to be computed by such a call itself.
        n_before, n = k - MARGIN + 2 * STRIDE, k - MARGIN + 4 * STRIDE
        short, mel = (
            mel_of(model, speech[: (each - _SILENT) * FRAME], each) for each in (n_before, n)
        )
        found.append(GoldenWindow(tokens, short, 0, _passes(meta)))
        n_reused = n + MARGIN - k + 1
        found.append(GoldenWindow(tokens, mel, 0, few, n_before=n_before, n_reused=n_reused))
    return tuple(found)


def mel_of(model: Model, samples: Samples, n_ctx: int) -> Mel:
    """Return the log-mel of the first `n_ctx` frames of a recording, (n_mels, 2 * n_ctx)."""
    samples = samples[: n_ctx * FRAME]
    return log_mel(np.pad(samples, (0, n_ctx * FRAME - len(samples))), model.dims.n_mels)


def _passes(meta: Meta) -> tuple[TextPass, ...]:
    n, filled, found = 0, 0, []
    for n_slots in sorted({size for form in FORMS for size in meta.slots(form)}):
        # Columns are taken in order, so tokens behind the shorter cache run on the longer one.
        fills = [(MAX_TOKENS, False)] * -(-max(0, filled - n) // MAX_TOKENS)
        for k, has_logits in (*fills, *_PASSES):
            if n + k <= meta.dims.n_text_ctx:
                found.append(TextPass(n, k, has_logits))
                n += k
        filled = n_slots
    return tuple(found)


def _transcript(model: Model) -> NDArray[np.int64]:
    """Return a transcript, as long as the text context: the special tokens it starts with, text."""
    start = start_of(model)
    said = " ".join(clip.text for clip in clips()).encode()
    found = []
    while said:
        # The longest token is not what the tokenizer would choose, but it is text.
        sizes = range(1, min(len(said), model.vocabulary.longest) + 1)
        first = max(model.vocabulary.among(said[:size] for size in sizes).items(), default=None)
        if first:
            found.append(first[1])
        said = said[len(first[0]) if first else 1 :]
    n = model.dims.n_text_ctx - len(start)
    return np.concatenate([start, np.resize(found or [0], n)], dtype=np.int64)


def start_of(model: Model) -> list[int]:
    """Return the special tokens that a transcript starts with, in English if there is a choice."""
    sot, timestamp_begin = len(model.vocabulary) + 1, model.dims.n_vocab - _N_TIMESTAMPS
    notimestamps, transcribe = timestamp_begin - 1, timestamp_begin - 5
    return [sot, notimestamps] if model.language else [sot, sot + 1, transcribe, notimestamps]


# -- files ----------------------------------------------------------------------------------------


def save_golden(folder: Path, reference: Engine[Any], windows: Iterable[GoldenWindow]) -> None:
    """Run the windows through the reference and write all of it. Raises `OSError`."""
    arrays: dict[str, NDArray[Any]] = {}
    for i, window in enumerate(windows):
        parts = (window.tokens, window.mel, window.audio_ctx, [*map(astuple, window.passes)])
        arrays |= {f"{i}.{name}": np.array(part) for name, part in zip(_PARTS, parts, strict=True)}
        if window.n_before:
            arrays[f"{i}.{_BEFORE}"] = np.array([window.n_before, window.n_reused])
        for j, result in enumerate(run_window(reference, window)):
            arrays[f"{i}.{j}.logits"], arrays[f"{i}.{j}.alignment"] = result
    np.savez(folder / GOLDEN, **arrays)  # type: ignore[arg-type]  # numpy's stub: allow_pickle


def golden_vectors(built: BuiltModel) -> list[GoldenWindow]:
    """Read a built model's windows, that of the shortest context first.

    Raises `ModelError` if they are damaged.
    """
    try:
        with np.load(built.folder / GOLDEN) as file:
            n = len(built.meta.contexts) + 2 * (built.meta.n_resumed > 0)
            return [_read_window(file, i) for i in range(n)]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{built.folder / GOLDEN}: damaged ({error}); {BUILD_AGAIN}") from error


def _read_window(file: Mapping[str, NDArray[Any]], i: int) -> GoldenWindow:
    tokens, mel, audio_ctx, rows = (file[f"{i}.{name}"] for name in _PARTS)
    passes = tuple(TextPass(first, k, bool(logits)) for first, k, logits in rows.tolist())
    results = ((file[f"{i}.{j}.logits"], file[f"{i}.{j}.alignment"]) for j in range(len(passes)))
    n_before, n_reused = file[f"{i}.{_BEFORE}"].tolist() if f"{i}.{_BEFORE}" in file else (0, 0)
    return GoldenWindow(
        tokens,
        mel,
        int(audio_ctx),
        passes,
        n_before=n_before,
        n_reused=n_reused,
        results=tuple(results),
    )
