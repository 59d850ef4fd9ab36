"""The silence after a window's sound, as the encoder sees it: computed once for a model, and kept.

Whisper was trained on 30 s and reads a shorter context worse, but what its encoder computes for the
silence after a short sound hardly depends on the sound. So an engine computes the positions of the
sound and `MARGIN` more; in every layer they attend to themselves and to stored
`SilenceStates` for the rest of the 30 s, and so does the decoder. These are averages over the
silence after real speech. Most are sampled: one position stands for `STRIDE`, and log `STRIDE` is
added to the scores of its key. How close this comes to the full context: benchmarks/RESULTS.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.models import ModelDimensions
from streamd.types import Mel

MARGIN = 32
"""Positions after the sound that are computed: the states of silence just after it vary most."""
STRIDE = 8
"""Positions that a sampled one stands for."""
_N_UNSAMPLED = 56
"""At least this many positions at the end of the context are not sampled: they vary, too."""
_N_SKIPPED = 16
"""Positions after the sound that say nothing of silence yet."""


@dataclass(frozen=True, slots=True)
class SilenceStates:
    """States of silence at the positions `kept_positions`.

    `states` is (n_audio_layer + 1, n_positions, n_state) float16: the normalised input of each
    block's attention, then the encoder's output.
    """

    states: NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Extent:
    """What is computed of a context: `n` positions; states of silence follow, from `first` on."""

    n: int
    first: int


def kept_positions(n_audio_ctx: int) -> NDArray[np.int64]:
    """Return the positions whose states of silence are kept, in ascending order."""
    end = _sampled_end(n_audio_ctx)
    return np.concatenate(
        [np.arange(STRIDE // 2, end, STRIDE), np.arange(end, n_audio_ctx)], dtype=np.int64
    )


def silence_shape(dims: ModelDimensions) -> tuple[int, int, int]:
    """Return the shape of the states of silence."""
    n_positions = len(kept_positions(dims.n_audio_ctx))
    return dims.n_audio_layer + 1, n_positions, dims.n_audio_state


def bias(n_audio_ctx: int) -> NDArray[np.float32]:
    """Return what is added to the scores of the keys of silence, (n_positions,)."""
    n_sampled = _sampled_end(n_audio_ctx) // STRIDE
    added = np.zeros(len(kept_positions(n_audio_ctx)), np.float32)
    added[:n_sampled] = np.log(STRIDE)
    return added


def longest_extent(dims: ModelDimensions) -> int:
    """Return the most positions that states of silence follow."""
    return 2 * dims.n_audio_ctx // 3


def extend(
    mel: Mel, dims: ModelDimensions, *, has_silence: bool, audio_ctx: int = 0
) -> tuple[Mel, Extent]:
    """Return the log-mel (n_mels, 2 * n) of the positions to compute, and their extent.

    `mel` (n_mels, n_columns) ends in silence, which its last column repeats. Where the sound fills
    two thirds of the context, or without states of silence, all of it is computed. A positive
    `audio_ctx` cuts the context to that many positions, or to the length of `mel`. Raises
    `ValueError` if `mel` does not fit the model.
    """
    full, n_kept = dims.n_audio_ctx, len(kept_positions(dims.n_audio_ctx))
    n = -(-mel.shape[1] // 2)
    if mel.shape[0] != dims.n_mels or not 0 < n <= full:
        raise ValueError(f"log-mel of shape {mel.shape} for {dims.n_mels} bands, {full} positions")
    first = n_kept
    if audio_ctx:
        n = min(max(n, audio_ctx), full)
    else:
        n = -(-(n + MARGIN) // STRIDE) * STRIDE
        if has_silence and n <= longest_extent(dims):
            first = n // STRIDE
        else:
            n = full
    n_columns = 2 * n - mel.shape[1]
    silence = np.repeat(mel[:, -1:], n_columns, axis=1)
    return np.concatenate([mel, silence], axis=1, dtype=np.float32), Extent(n, first)


class Average:
    """Averages states of silence over windows, of which it knows how many positions have sound.

    Every kept position should be silent in one of them.
    """

    def __init__(self, n_sound: Sequence[int], dims: ModelDimensions) -> None:
        self._kept = kept_positions(dims.n_audio_ctx)
        self._silent = [self._kept >= n + _N_SKIPPED for n in n_sound]
        self._count = np.maximum(sum(self._silent, np.zeros(len(self._kept))), 1)

    def __call__(self, states: Sequence[NDArray[np.float32]]) -> NDArray[np.float16]:
        """Average the states of one layer at all positions, (n_audio_ctx, n_state) of each window.

        Returns those at the kept positions, (n_positions, n_state).
        """
        total = np.zeros((len(self._kept), states[0].shape[1]))
        for silent, of_window in zip(self._silent, states, strict=True):
            total[silent] += of_window[self._kept[silent]]
        return (total / self._count[:, None]).astype(np.float16)


def _sampled_end(n_audio_ctx: int) -> int:
    return max(0, n_audio_ctx - _N_UNSAMPLED) // STRIDE * STRIDE
