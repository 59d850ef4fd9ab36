"""How much memory a model takes on the CPU, by arithmetic, and what that allows."""

import math

from streamd.engines import Precision
from streamd.models import ModelDimensions
from streamd.models.model import parameter_shapes
from streamd.models.silence import kept_positions
from streamd.system.processor import memory_bytes

_PROCESS_BYTES = 150_000_000
"""Python, its libraries and the voice detector."""
_WINDOWS = 1.5
"""Windows in memory at a time: one, and what the encoder needs besides."""
_MOST = 0.75
"""Share of the machine's memory that a model may take; the rest is for the system and others."""
_MOST_SEATS = 1 / 8
"""Share that windows of recordings may take which are decoded at a time."""


N_TOGETHER = 16
"""Windows in one pass of the decoder for several, if there is memory for so many."""


def live_bytes(dims: ModelDimensions, precision: Precision) -> int:
    """Estimate the memory of live captions with a window of 30 s.

    large-v3-turbo in int8 took 1.36 GB in all; by this it is 1.44.
    """
    n_parameters = sum(map(math.prod, parameter_shapes(dims).values()))
    weight, state = (1, 2) if precision == "int8" else (4, 4)
    n_rows = len(kept_positions(dims.n_audio_ctx)) + dims.n_audio_ctx
    columns = (
        2 * dims.n_audio_layer * dims.n_audio_state + 2 * dims.n_text_layer * dims.n_text_state
    )
    window = n_rows * columns * state
    return _PROCESS_BYTES + n_parameters * weight + round(_WINDOWS * window)


def fits(dims: ModelDimensions, precision: Precision) -> bool:
    """Whether this machine has enough memory for it."""
    return has_room(live_bytes(dims, precision))


def has_room(*n_bytes: int) -> bool:
    """Whether this machine has enough memory for models that take so many bytes."""
    return sum(n_bytes) <= _MOST * memory_bytes()


def n_together(dims: ModelDimensions, *, n_positions: int, is_int8: bool) -> int:
    """Return how many windows of a recording are decoded at a time.

    Each has the keys and values of its sound, of `n_positions`, and at most those of a whole text.
    """
    columns = 2 * dims.n_text_layer * dims.n_text_state
    sound = (n_positions + dims.n_text_ctx) * columns * (1 if is_int8 else 4)
    seat = sound + 4 * dims.n_text_ctx * columns
    return max(1, min(N_TOGETHER, int(_MOST_SEATS * memory_bytes()) // seat))
