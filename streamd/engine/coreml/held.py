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
        is_matrix = half.ndim > 1 and "embedding" not in name and name != OUTPUT
        held[name] = (_looked_up(half, meta.bits) if is_matrix else half).astype(np.float32) / scale
    table = weights.get(OUTPUT, weights[_TOKENS]).astype(np.float16)
    n, n_each = logit_chunks(len(table))
    chunks = []
    for start in range(0, n * n_each, n_each):
        rows = table[start : start + n_each]
        padded = np.pad(rows, ((0, n_each - len(rows)), (0, 0)))
        chunks.append(_looked_up(padded, meta.bits))
    return {**held, OUTPUT: np.concatenate(chunks)[: len(table)].astype(np.float32)}


def _looked_up(half: NDArray[np.float16], bits: int) -> NDArray[np.float16]:
    if bits == 16 or not is_worth_it(half):
        return half
    found = palette(half, bits)
    return found.colours[found.indices]
