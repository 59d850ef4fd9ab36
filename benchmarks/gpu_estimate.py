"""Estimates what a live step takes on GPUs that nobody has measured: arithmetic only.

Peaks are the makers' (float16; of NVIDIA with float32 sums). `shares` are the least and the largest
part of the peak that matrix products reach: Apple's follow from published times of encoders of 30 s
(29 to 37 % in whisper.cpp 1.8.0; MLX on an M1 Air 47 % and more), less what 138 rows lose in tiles
of 64; NVIDIA's are guesses. Each operation costs time of its own for Python and its launch.
"""

from dataclasses import dataclass

import numpy as np

from streamd.models import ModelDimensions
from streamd.models.catalog import dimensions
from streamd.models.silence import extend, kept_positions

SIZES = ("base", "small", "large-v3-turbo", "medium", "large-v3")
BYTES = {"float16": 2.0, "8 bits": 1.0625}
"""Of a weight, with its part of the scale and offset of 64."""
STEP_FRAMES, REUSED_FRAMES = 250, 150
"""A window of 5 s, of which the encoder computes the last 100 frames and the margin."""
PASSES = (12, 2, 2)
"""Tokens of the decoder's passes in a usual step (streamd/engines/precision.py)."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A processor: its peaks, the shares of them that are reached, and what an operation costs.

    `few` is the share of the memory's speed in products of 2 to 15 rows (one row: 0.8). Before
    Apple's M3, weights of 8 bits are read once for each row (mlx#3661, #3764, #3888).
    """

    name: str
    tflops: float
    gb_s: float
    shares: tuple[float, float]
    operation_us: float
    few: float
    reads_each_row: bool = False


CHIPS = (
    Chip("M1 Air, 7 cores", 2.29, 68, (0.33, 0.6), 12, 0.28, reads_each_row=True),
    Chip("M2 Pro, 19 cores", 6.8, 200, (0.33, 0.6), 11, 0.28, reads_each_row=True),
    Chip("M4, 10 cores", 4.4, 120, (0.33, 0.6), 9, 0.6),
    Chip("RTX 4070", 58.0, 504, (0.25, 0.5), 10, 0.7),
    Chip("H100", 989.0, 3350, (0.1, 0.25), 10, 0.7),
)


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations, weights that are read, and operations that are launched."""

    flop: float
    weights: float
    operations: int


def encoder(dims: ModelDimensions, n: int, n_keys: int) -> Work:
    """What `n` positions take that attend to `n_keys`, with their keys and values for the text."""
    width, layers = dims.n_audio_state, dims.n_audio_layer
    weights = layers * 12 * width**2 + 3 * width * (width + dims.n_mels)
    weights += 2 * dims.n_text_layer * width**2
    flop = 2 * n * weights + layers * 4 * n * n_keys * width
    return Work(flop, weights, 30 + 22 * layers)


def decoder(dims: ModelDimensions, rows: int, n_keys: int) -> Work:
    """What a pass of so many tokens takes."""
    width, layers = dims.n_text_state, dims.n_text_layer
    weights = layers * 14 * width**2 + dims.n_vocab * width
    flop = 2 * rows * weights + layers * 4 * rows * (n_keys + 64) * width
    return Work(flop, weights + layers * 2 * n_keys * width, 20 + 36 * layers)


def ms(chip: Chip, work: Work, form: str, rows: int) -> np.ndarray:
    """The least and the longest time of it."""
    share, n_reads = 0.8 if rows == 1 or rows > 64 else chip.few, 1
    if form != "float16" and chip.reads_each_row:
        share, n_reads = 0.8, min(rows, 10)
    memory_s = n_reads * work.weights * BYTES[form] / (share * chip.gb_s * 1e9)
    compute_s = work.flop / (chip.tflops * 1e12 * np.array(chip.shares[::-1]))
    return 1000 * np.maximum(compute_s, memory_s) + work.operations * chip.operation_us / 1000


def extent(dims: ModelDimensions) -> tuple[int, int]:
    """Positions that a step computes, and those that they attend to, silence included."""
    mel = np.zeros((dims.n_mels, 2 * STEP_FRAMES), np.float32)
    _, found = extend(mel, dims, has_silence=True)
    n_silence = max(0, len(kept_positions(dims.n_audio_ctx)) - found.first)
    return found.n - REUSED_FRAMES, found.n + n_silence


def main() -> None:
    """Print a table for each size."""
    for size in SIZES:
        dims = dimensions(size)
        n, n_keys = extent(dims)
        step = encoder(dims, n, n_keys)
        whole = encoder(dims, 1500, 1500)
        print(f"\n{size}: a step computes {n} positions that attend to {n_keys}:", end=" ")
        print(f"{step.flop / 1e9:.0f} GFLOP; 30 s {whole.flop / 1e9:.0f}")
        print("| | encoder, ms | token, float16 | 8 bits | **a step of 500 ms** |")
        print("|---|---|---|---|---|")
        for chip in CHIPS:
            encodes = ms(chip, step, "float16", n)
            one = [ms(chip, decoder(dims, 1, n_keys), form, 1)[1] for form in BYTES]
            passes = sum(ms(chip, decoder(dims, k, n_keys), "8 bits", k) for k in PASSES)
            low, high = encodes + passes
            print(f"| {chip.name} | {encodes[0]:.0f} to {encodes[1]:.0f}", end="")
            print(f" | {one[0]:.1f} | {one[1]:.1f} | **{low:.0f} to {high:.0f} ms** |")


if __name__ == "__main__":
    main()
