"""What layer norms multiply their inputs by, and the reference that computes as the packages do.

LN(x, e) = LN(s x, s² e) for any s. With s a power of two no digit changes, but the sum of squares,
which half precision may not hold, and epsilon, which it may take for zero, change by s².
"""

import math
from collections.abc import Sequence

import numpy as np

from streamd.engine import Weights
from streamd.engine.coreml.golden import GoldenWindow, run_window, start_of
from streamd.engine.coreml.package import Meta, NormScale
from streamd.engine.coreml.palettes import weights_held
from streamd.engine.model import Model
from streamd.engine.padding import Bank
from streamd.engine.reference import Array, Notice, ReferenceEngine, layer_norm

_MOST = 2.0**14
"""The largest sum of squares of a scaled input, a quarter of what float16 holds: other speech than
what was measured may be louder."""
_NTH = 8
"""Logits of so few special tokens are computed: those of all take much memory."""
_LARGEST = 16.0
"""The largest scale; more helps nobody."""
_SMALLEST_NORMAL = 2.0**-14
_EPSILON = 1e-5


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
    engine = ReferenceEngine(model.dims, model.weights, alignment_heads=heads, bank=model.bank)
    engine.norm = measured
    for window in windows:
        list(run_window(engine, window))
    _run_special(engine, model, windows[0])
    return {name: _scale(largest) for name, largest in sums.items()}


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


def _scale(largest: float) -> NormScale:
    if not 0 < largest < math.inf:
        return NormScale(1.0, 0.0)  # float16 cannot hold the weights, as the builder will say
    scale = min(_LARGEST, 2.0 ** math.floor(math.log2(_MOST / largest) / 2))
    epsilon = float(np.float16(_EPSILON * scale**2))
    # Where it would be subnormal the input is so large that epsilon means nothing: the smallest
    # variances of such norms are 0.03 in tiny.en and base, which it would change by 0.03 %.
    return NormScale(scale, epsilon if epsilon >= _SMALLEST_NORMAL else 0.0)


def held_reference(
    meta: Meta, weights: Weights, bank: Bank | None, *, notice: Notice = lambda where, values: None
) -> ReferenceEngine:
    """Return the reference with the weights and epsilons that the packages hold.

    So packages are judged without the error of rounding or compressing weights.
    """
    engine = ReferenceEngine(
        meta.dims,
        weights_held(meta, weights),
        alignment_heads=meta.alignment_heads,
        bank=bank,
        notice=notice,
    )

    def held(x: Array, weights: Weights, name: str) -> Array:
        norm = meta.norms[name]
        return layer_norm(x, weights, name, epsilon=norm.epsilon / norm.scale**2)

    engine.norm = held
    return engine
