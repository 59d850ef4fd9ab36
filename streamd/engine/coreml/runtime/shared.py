"""Arrays that the engine and its worker both see, so that what is large is not sent.

The memory has no name: it is gone when both processes are, however they end.
"""

import math
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.package import STEPS, Meta

Memory = Any
"""What carries the arrays into a process that is being started: ctypes bytes of `multiprocessing`,
which has no public name for them."""

Array = NDArray[np.float32]

_BYTES = np.dtype(np.float32).itemsize


def new_memory(meta: Meta) -> Memory:
    """Room for the arrays of a built model; all zeros."""
    n_bytes = sum(math.prod(shape) for shape in _shapes(meta)) * _BYTES
    return get_context("spawn").RawArray("B", n_bytes)


class Shared:
    """The arrays in a piece of memory; float32, each without gaps from its beginning on."""

    def __init__(self, memory: Memory, meta: Meta) -> None:
        """`memory`: of `new_memory`, which lives as long as the arrays."""
        arrays = _arrays(memory, _shapes(meta))
        self._mel, self._logits, self._alignment = arrays
        self._n_mels, self._n_vocab = meta.dims.n_mels, meta.dims.n_vocab
        self._n_heads = len(meta.alignment_heads)

    def mel(self, n_ctx: int) -> Array:
        """The log-mel of a window, (n_mels, 2 * n_ctx)."""
        return _first(self._mel, (self._n_mels, 2 * n_ctx))

    def logits(self, n: int) -> Array:
        """Logits of the `n` wanted tokens of a pass, (n, n_vocab)."""
        return _first(self._logits, (n, self._n_vocab))

    def alignment(self, k: int, n_ctx: int) -> Array:
        """Scores of all `k` tokens of a pass, (k, n_heads, n_ctx)."""
        return _first(self._alignment, (k, self._n_heads, n_ctx))


def _shapes(meta: Meta) -> tuple[tuple[int, ...], ...]:
    """The largest that there can be: log-mel, logits, alignment."""
    dims, most = meta.dims, STEPS[-1]
    return (
        (dims.n_mels, 2 * dims.n_audio_ctx),
        (most, dims.n_vocab),
        (most, len(meta.alignment_heads), dims.n_audio_ctx),
    )


def _arrays(memory: Memory, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    values, at, found = np.frombuffer(memory, np.float32), 0, []
    for shape in shapes:
        n = math.prod(shape)
        found.append(values[at : at + n])
        at += n
    return found


def _first(array: Array, shape: tuple[int, ...]) -> Array:
    return array[: math.prod(shape)].reshape(shape)
