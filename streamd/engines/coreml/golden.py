"""Golden vectors: windows of real speech as the reference encodes them with what packages hold.

They let any machine judge an encoder without the checkpoint, and run every function of the
packages: each context, and a window that grows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import BUILD_AGAIN, GOLDEN, BuiltModel, Meta, NormScale
from streamd.engines.coreml.rounding import norm_scale
from streamd.engines.prepared import bundled_speech
from streamd.engines.reference import Array, ReferenceEngine, layer_norm
from streamd.errors import ModelError
from streamd.models import ModelDimensions, Weights
from streamd.models.silence import MARGIN, STRIDE, Extent, extend, longest_extent
from streamd.types import FRAME, Mel, Samples
from streamd.whisper.mel import log_mel

GOLDEN_TOLERANCE = 0.02
"""The largest distance of a window. Half precision costs up to 3e-3 with the weights of tiny.en and
base, and the Neural Engine also accumulates in half precision."""
_HIDDEN = 10
"""A window is this many positions shorter than its context, so that masks have an effect."""
_ENOUGH = 512
"""Positions of a window on a context that is not the full one: longer ones take minutes."""
_SILENT = 2
"""Frames of silence at the end of each window."""


@dataclass(frozen=True, slots=True)
class GoldenWindow:
    """What is encoded, `audio_ctx` as for `Engine.encode`.

    If `n_before`, so many positions of `mel` are encoded first, of which the window reuses
    `n_reused`. `encoded` is the reference's output behind these, once it was run.
    """

    mel: Mel
    audio_ctx: int = 0
    n_before: int = 0
    n_reused: int = 0
    encoded: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


Encode = Callable[[int, Mel, Extent, int | None, int, Iterable[int]], NDArray[np.float16]]
"""`CoreMLEncoder.encode`."""
NUMBER = -1
"""The number that windows have here, of which only the last is kept."""


def against_golden(
    encode: Encode, built: BuiltModel, windows: Iterable[GoldenWindow]
) -> tuple[float, str]:
    """Run golden vectors through an encoder; return the largest distance, and in which window."""
    off = []
    for window in windows:
        previous = None
        if window.n_before:
            before = built.extend(window.mel[:, : 2 * window.n_before], window.audio_ctx)
            encode(NUMBER, *before, None, 0, (NUMBER,))
            previous = NUMBER
        extended = built.extend(window.mel, window.audio_ctx)
        found = encode(NUMBER, *extended, previous, window.n_reused, (NUMBER,))
        found = found[-len(window.encoded) :]
        where = f"{window.mel.shape[1] // 2} positions"
        where += f" behind {window.n_reused}" if window.n_reused else ""
        off.append((distance(found.astype(np.float32), window.encoded), where))
    # NaN is farther than any number.
    return max(off, key=lambda each: np.nan_to_num(each[0], nan=np.inf))


def distance(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Return the root of the mean squared difference over that of the values, or itself for zeros.

    NaN stays NaN.
    """
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


# -- what is run ----------------------------------------------------------------------------------


def golden_windows(meta: Meta) -> tuple[GoldenWindow, ...]:
    """Return a window for each context, and one that grows if windows can be resumed."""
    speech, found = bundled_speech(), []
    for before, n_ctx in pairwise((0, *meta.contexts)):
        with_silence = meta.silence and MARGIN + _HIDDEN < n_ctx < meta.dims.n_audio_ctx
        n = max(1, n_ctx - _HIDDEN - with_silence * MARGIN)
        if with_silence:
            n = min(n, max(_ENOUGH, before + 1), longest_extent(meta.dims) - MARGIN)
        mel = mel_of(meta.dims, speech[: max(1, n - _SILENT) * FRAME], n)
        whole = with_silence or n_ctx == meta.dims.n_audio_ctx
        found.append(GoldenWindow(mel, 0 if whole else n))
    if k := meta.n_resumed:
        # Just as much is known as a call of fixed size needs, so that the reference computes the
        # same positions; the window before is too long to be computed by such a call itself.
        n_before, n = k - MARGIN + 2 * STRIDE, k - MARGIN + 4 * STRIDE
        mel = mel_of(meta.dims, speech[: (n - _SILENT) * FRAME], n)
        found.append(GoldenWindow(mel, n_before=n_before, n_reused=n + MARGIN - k + 1))
    return tuple(found)


def mel_of(dims: ModelDimensions, samples: Samples, n_ctx: int) -> Mel:
    """Return the log-mel of the first `n_ctx` frames of a recording, (n_mels, 2 * n_ctx)."""
    samples = samples[: n_ctx * FRAME]
    return log_mel(np.pad(samples, (0, n_ctx * FRAME - len(samples))), dims.n_mels)


def run_reference(
    reference: ReferenceEngine, windows: Iterable[GoldenWindow]
) -> tuple[list[GoldenWindow], dict[str, NormScale]]:
    """Encode the windows; return them with the results, and the scale of each layer norm."""
    sums: dict[str, float] = {}

    def measured(x: Array, weights: Weights, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        largest = float(np.square(centred).sum(axis=-1).max(initial=0))
        sums[name] = max(sums.get(name, 0.0), largest)
        return layer_norm(x, weights, name)

    reference.norm = measured
    found = []
    for window in windows:
        before = None
        if window.n_before:
            known, _ = _states(reference, window.mel[:, : 2 * window.n_before], 0)
            before = known[:, : window.n_reused]
        states, extent = _states(reference, window.mel, window.audio_ctx, before)
        found.append(replace(window, encoded=states[-1][window.n_reused : extent.n]))
    return found, {name: norm_scale(largest) for name, largest in sums.items()}


def _states(
    reference: ReferenceEngine, mel: Mel, audio_ctx: int, before: Array | None = None
) -> tuple[Array, Extent]:
    has_silence = reference.silence is not None
    mel, extent = extend(mel, reference.dims, has_silence=has_silence, audio_ctx=audio_ctx)
    return reference.states(mel, extent, before), extent


# -- files ----------------------------------------------------------------------------------------


def save_golden(folder: Path, windows: Iterable[GoldenWindow]) -> None:
    """Write windows that the reference has encoded. Raises `OSError`."""
    arrays: dict[str, NDArray[Any]] = {}
    for i, one in enumerate(windows):
        about = np.array([one.audio_ctx, one.n_before, one.n_reused])
        arrays |= {f"mel{i}": one.mel, f"about{i}": about, f"encoded{i}": one.encoded}
    np.savez(folder / GOLDEN, **arrays)  # type: ignore[arg-type]  # numpy's stub: allow_pickle


def golden_vectors(built: BuiltModel) -> list[GoldenWindow]:
    """Read a built encoder's windows, that of the shortest context first.

    Raises `ModelError` if they are damaged.
    """
    n = len(built.meta.contexts) + (built.meta.n_resumed > 0)
    try:
        with np.load(built.folder / GOLDEN) as file:
            windows = (GoldenWindow(file[f"mel{i}"], *file[f"about{i}"].tolist()) for i in range(n))
            return [replace(each, encoded=file[f"encoded{i}"]) for i, each in enumerate(windows)]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise ModelError(f"{built.folder / GOLDEN}: damaged ({error}); {BUILD_AGAIN}") from error
