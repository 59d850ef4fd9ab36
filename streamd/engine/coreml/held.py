"""A model's weights as its packages hold them: in half precision, or as palettes.

What a package computes can agree with the reference to the last digits only if that one computes
with the same weights.
"""

import numpy as np
from numpy.typing import NDArray

from streamd.engine import Weights
from streamd.engine.coreml.compress import is_worth_it, palette
from streamd.engine.coreml.package import Meta, logit_chunks
from streamd.engine.weights import OUTPUT

Array = NDArray[np.float32]

_TOKENS = "decoder.token_embedding.weight"


def weights_held(meta: Meta, weights: Weights) -> Weights:
    """The weights that a built model of these weights holds, as float32.

    Tokens are embedded by a table of the host's, which is never compressed; so the output layer may
    have weights of its own.
    """
    dims = meta.dims
    scales = {
        "encoder": np.float32((dims.n_audio_state // dims.n_audio_head) ** -0.5),
        "decoder": np.float32(meta.d_head**-0.5),
    }
    held: dict[str, Array] = {}
    for name, values in weights.items():
        # queries come scaled: with heads of an odd size, that rounds differently
        scale = scales[name.partition(".")[0]] if ".query." in name else np.float32(1)
        half = (values * scale).astype(np.float16)
        if half.ndim > 1 and "embedding" not in name and name != OUTPUT:
            half = _looked_up(half, meta.bits)
        found = half.astype(np.float32) / scale
        held[name] = values if np.array_equal(found, values) else found  # large ones only once
    if meta.bits < 16:
        held[OUTPUT] = _output(weights.get(OUTPUT, weights[_TOKENS]).astype(np.float16), meta.bits)
    return held


def _output(table: NDArray[np.float16], bits: int) -> Array:
    """The output layer, which is compressed chunk by chunk."""
    n, n_each = logit_chunks(len(table))
    padded = np.pad(table, ((0, n * n_each - len(table)), (0, 0)))
    chunks = [_looked_up(chunk, bits) for chunk in np.split(padded, n)]
    return np.concatenate(chunks)[: len(table)].astype(np.float32)


def _looked_up(half: NDArray[np.float16], bits: int) -> NDArray[np.float16]:
    if bits == 16 or not is_worth_it(half):
        return half
    found = palette(half, bits)
    return found.colours[found.indices]
