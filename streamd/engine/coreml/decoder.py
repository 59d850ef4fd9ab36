"""Whisper's decoder as Core ML functions, and what makes cross-attention's keys and values.

There is neither gather nor scatter, and all shapes are static: the host looks up embeddings, a
product with a one-hot matrix puts new keys into their slots, and masks say who sees whom. Which
tensors a function has is `Function`'s to say; here is how they depend on each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Var

from streamd.engine.coreml.attention import all_heads, heads_of, query_scale
from streamd.engine.coreml.layers import Layers, concat, cut
from streamd.engine.coreml.package import Function, Meta, logit_chunks, padded
from streamd.engine.weights import OUTPUT

_CROSS = ("cross_k", "cross_v")
_SELF = ("self_k", "self_v")


def cross(
    function: Function, meta: Meta, layers: Layers, inputs: Mapping[str, Var]
) -> dict[str, Var]:
    """Keys and values of all layers for what the encoder returned."""
    keys_values = _projected(meta, layers, inputs["encoded"])
    return {name: concat(each, axis=0) for name, each in zip(_CROSS, keys_values, strict=True)}


def load(
    function: Function, meta: Meta, layers: Layers, inputs: Mapping[str, Var]
) -> dict[str, Var]:
    """The same into the states, with zeros behind; zeros into the self-attention's, too."""
    encoded = inputs["encoded"]
    n_more = meta.n_keys - encoded.shape[3]
    for name, each in zip(_CROSS, _projected(meta, layers, encoded), strict=True):
        value = concat(each, axis=0)
        if n_more:
            value = mb.pad(x=value, pad=[0] * 7 + [n_more], constant_val=np.float16(0))
        mb.coreml_update_state(state=inputs[name], value=value)
    for name in _SELF:
        empty = mb.mul(x=mb.read_state(input=inputs[name]), y=np.float16(0))
        mb.coreml_update_state(state=inputs[name], value=empty)
    return {"loaded": cut(cut(encoded, 1, 0, 1), 3, 0, 32)}


def _projected(meta: Meta, layers: Layers, encoded: Var) -> tuple[list[Var], list[Var]]:
    names = [f"decoder.blocks.{layer}.cross_attn" for layer in range(meta.dims.n_text_layer)]
    n_head = meta.dims.n_text_head
    keys, values = (
        [heads_of(layers.linear(encoded, f"{name}.{which}"), n_head) for name in names]
        for which in ("key", "value")
    )
    return keys, values


def step(
    function: Function, meta: Meta, layers: Layers, inputs: Mapping[str, Var]
) -> dict[str, Var]:
    """Run k tokens through all layers; logits only if the function has them."""
    states = {state.name for state in function.states}
    caches = {
        name: mb.read_state(input=inputs[name]) if name in states else inputs[name]
        for name in (*_SELF, *_CROSS)
    }
    slots = _InGraph(inputs["put"]) if "put" in inputs else _OnHost(function.k)
    x, scores = inputs["x"], []
    for layer in range(meta.dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        own = {name: cut(cache, 0, layer, layer + 1) for name, cache in caches.items()}
        x = mb.add(x=x, y=_self_attention(x, block, layers, own, slots=slots, mask=inputs["mask"]))
        y = layers.layer_norm(x, f"{block}.cross_attn_ln")
        query = _scaled_query(y, f"{block}.cross_attn", layers)
        attended, found = all_heads(
            query, own["cross_k"], own["cross_v"], mask=inputs["cross_mask"]
        )
        x = mb.add(x=x, y=layers.linear(attended, f"{block}.cross_attn.out"))
        x = mb.add(x=x, y=layers.feed_forward(x, block))
        scores += _alignment(found, [head for at, head in meta.alignment_heads if at == layer])
    outputs: dict[str, Var] = {}
    if function.kind == "step":
        outputs |= _logits(layers.layer_norm(x, "decoder.ln"), layers)
    outputs["alignment"] = concat(scores, axis=1)
    for name, kept in zip(_SELF, (slots.keys, slots.values), strict=True):
        value = concat(kept, axis=0)
        if "put" in inputs:
            mb.coreml_update_state(state=inputs[name], value=value)
        else:
            outputs[name.replace("self", "new")] = value
    return outputs


@dataclass(slots=True)
class _InGraph:
    """The cache is a state: what is new takes the place of what was in its slot."""

    put: Var
    keys: list[Var] = field(default_factory=list)
    values: list[Var] = field(default_factory=list)
    _kept: Var | None = None

    def join(self, cache: Var, new: Var, kept: list[Var]) -> Var:
        """A layer's (1, n_head, d_head, T) with new (1, n_state, 1, k); goes to `kept`."""
        if self._kept is None:
            used = mb.reduce_sum(x=self.put, axes=[2], keep_dims=True)
            self._kept = mb.sub(x=np.float16(1), y=used)
        _, n_state, _, k = new.shape
        rows = mb.reshape(x=new, shape=[1, 1, n_state, k])
        placed = mb.reshape(x=mb.matmul(x=rows, y=self.put), shape=cache.shape)
        joined = mb.add(x=mb.mul(x=cache, y=self._kept), y=placed)
        kept.append(joined)
        return joined


@dataclass(slots=True)
class _OnHost:
    """The cache is an input: what is new stands behind it, and goes out."""

    k: int
    keys: list[Var] = field(default_factory=list)
    values: list[Var] = field(default_factory=list)

    def join(self, cache: Var, new: Var, kept: list[Var]) -> Var:
        """(1, n_head, d_head, T + 32) of the same; the new alone goes to `kept`."""
        new = heads_of(new, cache.shape[1])
        kept.append(new)
        n_more = padded(self.k) - self.k
        if not n_more:
            return concat([cache, new], axis=3)
        nothing = np.zeros((*new.shape[:3], n_more), np.float16)
        return concat([cache, new, mb.const(val=nothing)], axis=3)


def _self_attention(
    x: Var,
    block: str,
    layers: Layers,
    own: Mapping[str, Var],
    *,
    slots: "_InGraph | _OnHost",
    mask: Var,
) -> Var:
    y = layers.layer_norm(x, f"{block}.attn_ln")
    query = _scaled_query(y, f"{block}.attn", layers)
    keys = slots.join(own["self_k"], layers.linear(y, f"{block}.attn.key"), slots.keys)
    values = slots.join(own["self_v"], layers.linear(y, f"{block}.attn.value"), slots.values)
    attended, _ = all_heads(query, keys, values, mask=mask)
    return layers.linear(attended, f"{block}.attn.out")


def _scaled_query(y: Var, name: str, layers: Layers) -> Var:
    n_head = layers.dims.n_text_head
    scale = query_scale(layers.dims.n_text_state, n_head)
    return heads_of(layers.linear(y, f"{name}.query", scale=scale), n_head)


def _alignment(scores: Var, heads: Sequence[int]) -> list[Var]:
    """The scores (1, n_head, k, S) of ascending heads; neighbours are cut out together."""
    runs: list[list[int]] = []
    for head in heads:
        if runs and runs[-1][-1] + 1 == head:
            runs[-1].append(head)
        else:
            runs.append([head])
    return [cut(scores, 1, run[0], run[-1] + 1) for run in runs]


def _logits(x: Var, layers: Layers) -> dict[str, Var]:
    """(1, k, 1, v) each: a token's logits lie next to each other."""
    name = OUTPUT if layers.has(OUTPUT) else "decoder.token_embedding.weight"
    table = layers.parameter(name)
    n, n_each = logit_chunks(len(table))
    outputs = {}
    for i in range(n):
        rows = table[i * n_each : (i + 1) * n_each]
        rows = np.pad(rows, ((0, n_each - len(rows)), (0, 0)))[:, :, None, None]
        chunk = mb.conv(x=x, weight=layers.weight(f"{name}.{i}", rows), pad_type="valid")
        outputs[f"logits{i}"] = mb.transpose(x=chunk, perm=[0, 3, 2, 1])
    return outputs
