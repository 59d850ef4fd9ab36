"""What depends on the GPU: sizes to which arrays are padded, cheap rows, limits of memory."""

import re
from collections.abc import Sequence

import mlx.core as mx

POSITIONS = (96, 144, 192, 256, 384, 512, 768, 1024, 1500)
"""New positions of a window on a GPU: 88 in the first second of an utterance, 136 in a step of
500 ms, 1500 in a full context."""
KEYS = (256, 512, 768, 1024, 1280, 1536)
"""Positions that a window attends to on a GPU, those that stand for silence included."""
ROWS = (1, 4, 16, 64, 256, 448)
"""Tokens of a window in a pass on a GPU."""
SLOTS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Cache slots of a window on any device: its memory grows rarely, and to few sizes."""

_CACHE_BYTES, _CACHE_SHARE = 64 << 20, 20
"""Freed buffers that are kept: so many bytes, or this part of the weights."""
_COMPUTING_BYTES = 1 << 30
"""Memory beside the weights, for windows and for what is computed on the way."""
_WIRED_SHARE = 4
"""Weights stay resident if they are at most this part of a Mac's memory: more has frozen Macs of
16 GB. Otherwise a GPU that was idle for a second first gets them back (macOS 15 and later)."""


def n_cheap(architecture: str) -> int:
    """Return the `Engine.n_cheap` of a device whose architecture MLX calls so.

    From Apple's M3 on ("applegpu_g15" and a letter) MLX reads the weights once for up to 8 tokens;
    before, a pass of two tokens takes as long as one of 64.
    """
    if apple := re.match(r"applegpu_g(\d+)", architecture):
        return 8 if int(apple[1]) >= 15 else 1
    return 16 if architecture.startswith("sm_") else 4


def padded(n: int, sizes: Sequence[int]) -> int:
    """Return the smallest of the ascending `sizes` that is not below `n`; `n` if it exceeds all."""
    return next((size for size in sizes if size >= n), n)


def limit_memory(weights_bytes: int) -> None:
    """Bound what MLX takes in this process, and keep the weights resident where that is safe.

    Without a limit, MLX's cache of freed buffers grows with each new size of an array, up to all
    memory of a Mac.
    """
    mx.set_cache_limit(max(_CACHE_BYTES, weights_bytes // _CACHE_SHARE))
    mx.set_memory_limit(weights_bytes + _COMPUTING_BYTES)
    ram_bytes = int(mx.device_info().get("memory_size", 0)) if mx.metal.is_available() else 0
    if weights_bytes * _WIRED_SHARE <= ram_bytes:
        mx.set_wired_limit(weights_bytes)
