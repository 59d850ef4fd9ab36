"""Whisper's encoder as Core ML functions, one for each part of its layers and each context."""

from collections.abc import Mapping

import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Var
from numpy.typing import NDArray

from streamd.engine.coreml.attention import by_heads, query_scale
from streamd.engine.coreml.layers import Layers, gelu
from streamd.engine.coreml.package import Function, Meta


def encode(
    function: Function, meta: Meta, layers: Layers, inputs: Mapping[str, Var]
) -> dict[str, Var]:
    """The layers of one part; the first begins with the log-mel, the last ends with a layer norm.

    A position that the mask hides gets numbers too, which nobody attends to.
    """
    part = meta.layers[function.part]
    scale = query_scale(meta.dims.n_audio_state, meta.dims.n_audio_head)
    x = _front(layers, inputs["mel"]) if function.part == 0 else inputs["hidden"]
    for layer in part:
        block = f"encoder.blocks.{layer}"
        y = layers.layer_norm(x, f"{block}.attn_ln")
        attended = by_heads(
            layers.linear(y, f"{block}.attn.query", scale=scale),
            layers.linear(y, f"{block}.attn.key"),
            layers.linear(y, f"{block}.attn.value"),
            n_head=meta.dims.n_audio_head,
            mask=inputs["mask"],
        )
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.attn.out"))
        x = mb.add(x=x, y=layers.feed_forward(x, block))
    if part.stop == meta.dims.n_audio_layer:
        x = layers.layer_norm(x, "encoder.ln_post")
    return {"encoded": x}


def _front(layers: Layers, mel: Var) -> Var:
    """Two convolutions, of which the second halves the rate, and the place of each position."""
    x = gelu(layers.convolution(mel, "encoder.conv1", stride=1))
    x = gelu(layers.convolution(x, "encoder.conv2", stride=2))
    n = x.shape[3]
    places = _places(layers.parameter("encoder.positional_embedding"), n)
    return mb.add(x=x, y=layers.constant(f"encoder.positional_embedding.{n}", places))


def _places(table: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """(1, n_state, 1, n); positions beyond the trained context have no place, and are masked."""
    known = table[:n]
    return np.pad(known, ((0, n - len(known)), (0, 0))).T[None, :, None, :]
