"""How weights and layer norms are rounded for packages, and the reference that computes the same.

Weights are held in half precision, or as palettes of 2**bits values. A palette is chosen for each
tensor by one-dimensional k-means (Lloyd 1982). A float16 tensor has at most 65536 different values,
so k-means runs on their histogram, and a large tensor costs no more than a small one.

LN(x, e) = LN(s x, s² e) for any s. With s a power of two no digit changes, but the sum of squares,
which half precision may not hold, and epsilon, which it may take for zero, change by s².
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.golden import GoldenWindow, run_window, start_of
from streamd.engines.coreml.package import Meta, NormScale, logit_chunks
from streamd.engines.reference import Array, Notice, ReferenceEngine, layer_norm
from streamd.models import Weights
from streamd.models.model import OUTPUT, Model
from streamd.models.silence import SilenceStates

_N_ROUNDS = 50
_LEAST_SIZE = 2048
"""Smaller tensors are not compressed; coremltools' own limit."""
_TOKENS = "decoder.token_embedding.weight"

_MOST = 2.0**14
"""The largest sum of squares of a scaled input, a quarter of what float16 holds: other speech than
what was measured may be louder."""
_NTH = 8
"""Special tokens whose logits are computed: those of all take much memory."""
_LARGEST = 16.0
"""The largest scale; more helps nobody."""
_SMALLEST_NORMAL = 2.0**-14
_EPSILON = 1e-5


def is_compressible(weight: NDArray[np.float16]) -> bool:
    """Whether a tensor is large enough to be compressed."""
    return weight.size > _LEAST_SIZE


def palette(
    weight: NDArray[np.float16], bits: int
) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """Return the palette of a finite tensor for `bits` bits per weight, at most 8.

    It consists of colours (2**bits,), ascending, and of indices into them, in the tensor's shape.
    """
    codes = (weight + np.float16(0)).view(np.uint16)  # adding 0 turns -0 into +0
    counts = np.bincount(codes.ravel(), minlength=1 << 16)
    used = np.flatnonzero(counts).astype(np.uint16)
    values = used.view(np.float16).astype(np.float64)
    order = np.argsort(values, kind="stable")
    used, values = used[order], values[order]
    centres = _centres(values, counts[used].astype(np.float64), 1 << bits)
    colours = centres.astype(np.float16)
    lookup = np.zeros(1 << 16, np.uint8)
    lookup[used] = np.searchsorted(_borders(colours.astype(np.float64)), values)
    return colours, lookup[codes]


def _centres(
    values: NDArray[np.float64], counts: NDArray[np.float64], n: int
) -> NDArray[np.float64]:
    """Return `n` ascending centres of ascending values; the last is repeated if n is too many."""
    if len(values) <= n:
        return np.pad(values, (0, n - len(values)), mode="edge")
    mass = np.concatenate([[0.0], np.cumsum(counts)])
    moment = np.concatenate([[0.0], np.cumsum(counts * values)])
    # At first each centre stands for an equal part of the cube root of the density, which is the
    # optimum for many centres (Panter and Dite 1951), so few rounds are needed.
    share = np.cumsum(np.cbrt(counts * np.gradient(values) ** 2))
    centres: NDArray[np.float64] = values[
        np.searchsorted(share, share[-1] * (np.arange(n) + 0.5) / n)
    ]
    for _ in range(_N_ROUNDS):
        cuts = np.concatenate([[0], np.searchsorted(values, _borders(centres)), [len(values)]])
        inside = np.diff(mass[cuts])
        moved = centres.copy()
        np.divide(np.diff(moment[cuts]), inside, out=moved, where=inside > 0)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _borders(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    borders: NDArray[np.float64] = (centres[1:] + centres[:-1]) / 2
    return borders


def weights_held(meta: Meta, weights: Weights) -> Weights:
    """Return the weights that the packages of a built model hold, as float32.

    A package agrees with the reference to the last digits only if the reference computes with the
    same weights. The host's table embeds the tokens and is never compressed, so the output layer
    may have weights of its own.
    """
    dims = meta.dims
    scales = {
        "encoder": np.float32((dims.n_audio_state // dims.n_audio_head) ** -0.5),
        "decoder": np.float32(meta.d_head**-0.5),
    }
    held: dict[str, NDArray[np.float32]] = {}
    for name, values in weights.items():
        # Queries are stored scaled. Where the scale is no power of two, that rounds differently.
        scale = scales[name.partition(".")[0]] if ".query." in name else np.float32(1)
        half = (values * scale).astype(np.float16)
        if half.ndim > 1 and "embedding" not in name and name != OUTPUT:
            half = _looked_up(half, meta.bits)
        found = half.astype(np.float32) / scale
        held[name] = values if np.array_equal(found, values) else found  # keep no second copy
    if meta.bits < 16:
        held[OUTPUT] = _output(weights.get(OUTPUT, weights[_TOKENS]).astype(np.float16), meta.bits)
    return held


def _output(table: NDArray[np.float16], bits: int) -> NDArray[np.float32]:
    """Return the output layer, which is compressed chunk by chunk."""
    n, n_each = logit_chunks(len(table))
    rows = np.pad(table, ((0, n * n_each - len(table)), (0, 0)))
    chunks = [_looked_up(chunk, bits) for chunk in np.split(rows, n)]
    return np.concatenate(chunks)[: len(table)].astype(np.float32)


def _looked_up(half: NDArray[np.float16], bits: int) -> NDArray[np.float16]:
    if bits == 16 or not is_compressible(half):
        return half
    colours, indices = palette(half, bits)
    return colours[indices]


# -- layer norms ----------------------------------------------------------------------------------


def norm_scales(model: Model, windows: Sequence[GoldenWindow]) -> dict[str, NormScale]:
    """Return the scale of each layer norm, from its inputs in the golden windows.

    All special tokens are measured, too: some have values a hundred times as large as text.
    """
    sums: dict[str, float] = {}

    def measured(x: Array, weights: Weights, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        largest = float(np.square(centred).sum(axis=-1).max(initial=0))
        sums[name] = max(sums.get(name, 0.0), largest)
        return layer_norm(x, weights, name)

    heads = model.alignment_heads
    engine = ReferenceEngine(
        model.dims, model.weights, alignment_heads=heads, silence=model.silence
    )
    engine.norm = measured
    for window in windows:
        list(run_window(engine, window))
    _run_special(engine, model, min(windows, key=lambda window: window.mel.shape[1]))
    return {name: norm_scale(largest) for name, largest in sums.items()}


def _run_special(engine: ReferenceEngine, model: Model, window: GoldenWindow) -> None:
    """Run each special token at the beginning, and behind the start of a transcript."""
    special = np.arange(len(model.vocabulary), model.dims.n_vocab)
    features = engine.encode(window.mel, audio_ctx=window.audio_ctx)
    for n in (0, len(start_of(model)) - 1):
        every = np.concatenate([window.tokens[:n], special])
        order = np.arange(len(every))
        visible = np.eye(len(every), dtype=np.bool_)
        visible[:, :n] = np.arange(n) <= order[:, None]
        want = order[::_NTH]
        engine.decoder(features, len(every)).step(every, np.minimum(order, n), order, visible, want)


def norm_scale(largest: float) -> NormScale:
    """Return the scale of a layer norm, from the largest sum of squares of its centred inputs."""
    if not 0 < largest < math.inf:
        return NormScale(1.0, 0.0)  # float16 cannot hold the weights, as the builder will say
    scale = min(_LARGEST, 2.0 ** math.floor(math.log2(_MOST / largest) / 2))
    epsilon = float(np.float16(_EPSILON * scale**2))
    # Where it would be subnormal the input is so large that epsilon means nothing: the smallest
    # variances of such norms are 0.03 in tiny.en and base, which it would change by 0.03 %.
    return NormScale(scale, epsilon if epsilon >= _SMALLEST_NORMAL else 0.0)


def held_reference(
    meta: Meta,
    weights: Weights,
    silence: SilenceStates | None,
    *,
    notice: Notice = lambda where, values: None,
) -> ReferenceEngine:
    """Return the reference with the weights and epsilons that the packages hold.

    So packages are judged without the error of rounding or compressing weights.
    """
    engine = ReferenceEngine(
        meta.dims,
        weights_held(meta, weights),
        alignment_heads=meta.alignment_heads,
        silence=silence,
        notice=notice,
    )

    def held(x: Array, weights: Weights, name: str) -> Array:
        norm = meta.norms[name]
        return layer_norm(x, weights, name, epsilon=norm.epsilon / norm.scale**2)

    engine.norm = held
    return engine
