"""Golden vectors: windows of real speech as the reference encodes them with what packages hold.

They let any machine judge an encoder without the checkpoint, and run every function of the
packages: each context, and a window that grows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import BUILD_AGAIN, GOLDEN, RESUMED, BuiltModel, Meta
from streamd.engines.coreml.rounding import norm_scale
from streamd.engines.prepared import bundled_speech
from streamd.engines.reference import Array, ReferenceEngine, layer_norm
from streamd.errors import EngineError, ModelError
from streamd.models import Weights
from streamd.models.silence import MARGIN, STRIDE, Extent, extend
from streamd.types import FRAME, Mel
from streamd.whisper.mel import log_mel

GOLDEN_TOLERANCE = 0.02
"""The largest distance of a window. Half precision costs up to 3e-3 with the weights of tiny.en and
base, and the Neural Engine also accumulates in half precision."""
_SILENT = 2
"""Frames of silence at the end of each window."""
NUMBER = -1
"""The number that windows have here, of which only the last is kept."""


@dataclass(frozen=True, slots=True)
class GoldenWindow:
    """What is encoded, and its extent as `models.silence.extend` returns both.

    It reuses the first `n_reused` positions of the golden window before it. `encoded` is the
    reference's output behind these.
    """

    mel: Mel
    extent: Extent
    n_reused: int
    encoded: Array


def check_golden(encode: Callable[..., Any], built: BuiltModel) -> str:
    """Run golden vectors through `CoreMLEncoder.encode`; say the largest distance, and of what.

    Raises `EngineError` if that is too large, `ModelError` if the vectors are damaged.
    """
    off = []
    for window in golden_vectors(built):
        previous = NUMBER if window.n_reused else None
        found = encode(NUMBER, window.mel, window.extent, previous, window.n_reused, (NUMBER,))
        found = found[-len(window.encoded) :].astype(np.float32)
        where = f"{window.extent.n} positions"
        where += f" behind {window.n_reused}" if window.n_reused else ""
        off.append((distance(found, window.encoded), where))
    # NaN is farther than any number.
    most, where = max(off, key=lambda each: np.nan_to_num(each[0], nan=np.inf))
    if not most <= GOLDEN_TOLERANCE:
        raise EngineError(f"{most:.2g} off at {where}, where {GOLDEN_TOLERANCE:g} is allowed")
    return f"{most:.2g} off at {where} (at most {GOLDEN_TOLERANCE:g})"


def distance(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Return the relative (rms) difference, of zeros itself; NaN stays NaN."""
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


def _windows(meta: Meta) -> Iterator[tuple[Mel, Extent, int]]:
    """Yield what is encoded for each function, and how much of the one before it reuses."""

    def of(n: int, audio_ctx: int = 0) -> tuple[Mel, Extent]:
        sound = bundled_speech()[: (n - _SILENT) * FRAME]
        mel = log_mel(np.pad(sound, (0, n * FRAME - len(sound))), meta.dims.n_mels)
        return extend(mel, meta.dims, has_silence=meta.silence, audio_ctx=audio_ctx)

    if meta.silence:
        # The first is too long for a "resume". Of the next so much is known as that needs, so that
        # the reference computes the same positions.
        yield *of(RESUMED - MARGIN + 2 * STRIDE), 0
        yield *of(RESUMED - MARGIN + 4 * STRIDE), 4 * STRIDE + 1
    # As few as take the full context. The rest is hidden: masks have an effect, and most of the
    # time of a build goes into what the reference computes here.
    n_full = meta.contexts[0] + 1 if meta.silence else meta.dims.n_audio_ctx * 2 // 3
    yield *of(n_full, n_full), 0


def write_golden(folder: Path, meta: Meta, reference: ReferenceEngine) -> dict[str, float]:
    """Write windows as the reference encodes them; return the scale of each layer norm.

    Raises `OSError`.
    """
    sums: dict[str, float] = {}

    def measured(x: Array, weights: Weights, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        largest = float(np.square(centred).sum(axis=-1).max(initial=0))
        sums[name] = max(sums.get(name, 0.0), largest)
        return layer_norm(x, weights, name)

    reference.norm = measured
    arrays: dict[str, NDArray[Any]] = {}
    states = np.zeros((0, 0, 0), np.float32)
    for i, (mel, extent, n_reused) in enumerate(_windows(meta)):
        states = reference.states(mel, extent, states[:, :n_reused] if n_reused else None)
        about = np.array([extent.n, extent.first, n_reused])
        encoded = states[-1][n_reused : extent.n]
        arrays |= {f"mel{i}": mel, f"about{i}": about, f"encoded{i}": encoded}
    np.savez(folder / GOLDEN, **arrays)  # type: ignore[arg-type]  # numpy's stub: allow_pickle
    return {name: norm_scale(largest) for name, largest in sums.items()}


def golden_vectors(built: BuiltModel) -> list[GoldenWindow]:
    """Read a built encoder's windows. Raises `ModelError` if they are damaged."""
    try:
        with np.load(built.folder / GOLDEN) as file:
            abouts = [file[f"about{i}"].tolist() for i in range(len(file.files) // 3)]
            return [
                GoldenWindow(file[f"mel{i}"], Extent(n, first), n_reused, file[f"encoded{i}"])
                for i, (n, first, n_reused) in enumerate(abouts)
            ]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise ModelError(f"{built.folder / GOLDEN}: damaged ({error}); {BUILD_AGAIN}") from error
