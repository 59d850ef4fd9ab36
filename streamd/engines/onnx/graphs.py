"""Whisper's encoder and decoder as ONNX graphs.

The arithmetic is openai/whisper's ``model.py``; the cache of slots is streamd's own
(streamd/whisper/engine.py). Two operators are ONNX Runtime's: ``MultiHeadAttention`` in the
encoder, which never builds the (n_ctx, n_ctx) matrix, and ``GroupQueryAttention`` in the decoder,
which writes keys and values into the caller's memory and reads them there. Only the linear layers
are quantised, and keys and values of the sound where windows are decoded together.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.engines import Precision
from streamd.engines.onnx.builder import (
    CONTRIB,
    Graph,
    GraphBuilder,
    Linear,
    Projection,
    row_offset,
)
from streamd.engines.onnx.proto import ElementType, Shape
from streamd.models import Weights
from streamd.models.model import OUTPUT, Model
from streamd.models.silence import bias, silence_shape

_END = np.iinfo(np.int64).max
_ENCODER: dict[Precision, Linear] = {"float32": Linear.FLOAT32, "int8": Linear.TENSOR}
"""An encoder's rows belong to one window and may depend on each other."""
_DECODER: dict[Precision, Linear] = {"float32": Linear.FLOAT32, "int8": Linear.ROWS}
_N_ROWS, _LEAST_WIDE = 512, 1024
"""Rows of a window that go through the encoder's feed-forward layers at a time, if it is so wide.
They have four times the width, so that 30 s of large-v3-turbo would need 62 MB more, and a tenth
more time. Of a shorter window, as live ones are, the first piece is all, and the others are empty.
"""


class Graphs(NamedTuple):
    """What builds each graph of an engine, which takes much memory."""

    encoder: Callable[[], Graph]
    decoder: Callable[[], Graph]
    many: Callable[[], Graph]
    cross: Callable[[], Graph]


def graphs(model: Model, precision: Precision) -> Graphs:
    """Return what builds the encoder, the decoder for one window and for many, `cross_graph`."""
    of_encoder, of_decoder = _ENCODER[precision], _DECODER[precision]
    return Graphs(
        partial(encoder_graph, model, of_encoder),
        partial(decoder_graph, model, of_decoder),
        partial(joint_decoder_graph, model, of_decoder),
        partial(cross_graph, model, of_encoder),
    )


def encoder_graph(model: Model, kind: Linear) -> Graph:
    """Build the encoder: from log-mel to the cross-attention keys and values of all layers.

    Inputs ``mel`` (1, n_mels, 2 * k) of the k positions to compute, one position more in front
    unless the first of them is the first of the context; ``first`` (1,) int64, their first one;
    ``rows`` (k, 2) int64, 0 and where each is written; per layer ``key_<layer>``, ``value_<layer>``
    (1, n_ctx, n_head * width) of the encoder's own attention and ``cross_key_<layer>``,
    ``cross_value_<layer>`` (1, n_ctx, n_text_state), which hold what is known of other positions,
    beside int8 in half precision, as the decoder reads them.
    Outputs ``new_<input>`` for each of these, which must be bound to the memory of the input. With
    states of silence, each head of ``key_<layer>`` has a column more: see `_attention_inputs`.
    """
    dims, biased = model.dims, model.silence is not None
    g = GraphBuilder(dims, model.weights, kind)
    x = _convolutions(g, g.input("mel", [1, dims.n_mels, "n_columns"]))
    start = g.input("first", [1], ElementType.INT64)
    g.input("rows", ["k", 2], ElementType.INT64)
    # What is before the first column is not known to the convolutions, but to the audio.
    x = g.op("Slice", [x, g.op("Min", [start, g.constant([1])]), g.constant([_END])])
    end = g.op("Add", [start, g.op("Shape", [x], {"start": 0, "end": 1})])
    positions = g.parameter("encoder.positional_embedding")
    x = g.add(x, g.op("Slice", [positions, start, end]))
    for layer in range(dims.n_audio_layer):
        x = _encoder_block(g, x, layer, biased=biased, stored=True)
    _write_cross(g, g.layer_norm(x, "encoder.ln_post"))
    return g.graph()


def cross_graph(model: Model, kind: Linear) -> Graph:
    """Build the end of the encoder alone: an encoder's output to cross-attention keys and values.

    Inputs ``encoded`` (k, n_state), and ``rows``, ``cross_key_<layer>``, ``cross_value_<layer>`` as
    those of `encoder_graph`; so are the outputs.
    """
    g = GraphBuilder(model.dims, model.weights, kind)
    encoded = g.input("encoded", ["k", model.dims.n_audio_state])
    g.input("rows", ["k", 2], ElementType.INT64)
    _write_cross(g, encoded)
    return g.graph()


def _write_cross(g: GraphBuilder, encoded: str) -> None:
    for layer, leaf in product(range(g.dims.n_text_layer), ("key", "value")):
        values = g.linear(encoded, f"decoder.blocks.{layer}.cross_attn.{leaf}")
        _write(g, values, f"cross_{leaf}_{layer}", g.dims.n_text_state)


def silence_rows(model: Model, precision: Precision) -> dict[str, NDArray[Any]]:
    """Return keys and values of silence by the names of the encoder's inputs, (n_positions, width).

    They are what the inputs are stored in. Without states of silence they have no rows.
    """
    dims, weights, silence = model.dims, model.weights, model.silence
    states = np.zeros(silence_shape(dims), np.float32)[:, :0]
    if silence is not None:
        states = silence.states.astype(np.float32)
    rows = {}
    for layer, kind in product(range(dims.n_audio_layer), ("key", "value")):
        projection = Projection.stacked(weights, [f"encoder.blocks.{layer}.attn.{kind}"])
        if kind == "key" and silence is not None:
            n_head = dims.n_audio_head
            heads = projection.widened(n_head, 0.0)(states[layer]).reshape(
                len(states[layer]), n_head, -1
            )
            added = bias(dims.n_audio_ctx)[:, None]
            heads[..., -1] = added * (dims.n_audio_state // n_head) ** 0.5
            rows[f"key_{layer}"] = heads.reshape(len(heads), -1)
        else:
            rows[f"{kind}_{layer}"] = projection(states[layer])
    for layer, kind in product(range(dims.n_text_layer), ("key", "value")):
        projection = Projection.stacked(weights, [f"decoder.blocks.{layer}.cross_attn.{kind}"])
        rows[f"cross_{kind}_{layer}"] = projection(states[-1])
    # half precision loses less than the rounding of activations to int8
    return rows if precision == "float32" else {n: r.astype(np.float16) for n, r in rows.items()}


def layer_graphs(model: Model, precision: Precision) -> Iterator[Graph]:
    """Yield an encoder for the full context in parts, whose outputs are of what it has of silence.

    The first part has the input ``mel`` (1, n_mels, 2 * n_audio_ctx) and the output ``next``
    (n_audio_ctx, n_state), which is the input ``x`` of the next part. Each block is a part, with
    outputs ``state``, the normalised input of its attention, and ``next``; the last part has only
    ``state``, the encoder's output. All are of this shape.
    """
    dims, weights = model.dims, model.weights
    shape: Shape = [dims.n_audio_ctx, dims.n_audio_state]
    g = GraphBuilder(dims, weights, _ENCODER[precision])
    x = _convolutions(g, g.input("mel", [1, dims.n_mels, 2 * dims.n_audio_ctx]))
    g.op("Add", [x, g.parameter("encoder.positional_embedding")], to=g.output("next", shape))
    yield g.graph()
    for layer in range(dims.n_audio_layer):
        g = GraphBuilder(dims, weights, _ENCODER[precision])
        x = g.input("x", shape)
        g.layer_norm(x, f"encoder.blocks.{layer}.attn_ln", to=g.output("state", shape))
        x = _encoder_block(g, x, layer, biased=False, stored=False)
        g.op("Identity", [x], to=g.output("next", shape))
        yield g.graph()
    g = GraphBuilder(dims, weights, _ENCODER[precision])
    g.layer_norm(g.input("x", shape), "encoder.ln_post", to=g.output("state", shape))
    yield g.graph()


def decoder_graph(model: Model, kind: Linear) -> Graph:
    """Build the decoder: a pass of k tokens, which are written to consecutive cache slots.

    Inputs: ``embedded`` (k, n_text_state), the tokens' rows of `embedding`; ``positions`` (k,);
    ``want`` (m,), the rows to project to logits; ``want_some`` (p,), those of which only some
    logits are wanted, and ``some`` (n, n_text_state), the rows of these in the output layer;
    ``last`` (1,) int32 and ``n_total`` (1,) int32, the last slot of the pass and the number of
    slots up to it; ``mask`` (1, 1, k, n_total), 0 where a query sees a slot, else -inf; per layer
    ``key_<layer>``, ``value_<layer>`` (1, n_head, n_pool, d_head) and what the encoder has written,
    ``cross_key_<layer>``, ``cross_value_<layer>`` (n_ctx, n_head, d_head), and ``cross_bias``
    (n_ctx,), which is added to the scores of the keys.
    Outputs: ``logits`` (m, n_vocab); ``some_logits`` (p, n), in int8 without the rounding of the
    others; ``alignment`` (k, n_heads, n_ctx), heads sorted by layer and head;
    ``new_key_<layer>``, ``new_value_<layer>``, which must be bound to the memory of the inputs
    ``key_<layer>``, ``value_<layer>``.
    """
    g, heads = GraphBuilder(model.dims, model.weights, kind), sorted(model.alignment_heads)
    x = _text(g)
    windows = _OneWindow(g)
    alignment = g.output("alignment", ["k", len(heads), "n_ctx"])
    x, found = _decoder_blocks(g, x, windows, heads)
    _project_to_logits(g, x)
    _project_to_some(g, x)
    g.transpose(g.op("Concat", found, {"axis": 0}), [1, 0, 2], to=alignment)
    return g.graph()


def joint_decoder_graph(model: Model, kind: Linear) -> Graph:
    """Build the decoder for passes of several windows, which read every weight once for all.

    Only attention tells the windows apart. It has the tokens of each in a row of places, of which
    those behind its last token are empty. Inputs ``embedded``, ``positions`` and ``want`` as those
    of `decoder_graph`, for the tokens of all windows; ``place`` (n_windows, n_most), the token in
    each place, any where it is empty; ``row`` (k,), the place of each token, windows one after the
    other; ``sizes``, ``last`` (n_windows,) int32, how many tokens each window has, and the last
    slot of its pass; ``n_total`` (1,) int32 and ``mask`` (n_windows, 1, n_most, n_total), as there;
    ``last_frame`` (n_windows,) int32, ``n_frames`` (1,) int32 and ``frames`` (n_windows, 1, n_most,
    n_frames), the same for the sound: its mask has the bias of each key, and -inf behind the last,
    where memory for as many keys as tokens must be. Per layer ``key_<layer>``, ``value_<layer>``
    (n_windows, n_head, n_pool, d_head), ``cross_key_<layer>``, ``cross_value_<layer>`` (n_windows,
    n_head, n_ctx, d_head), in int8 with ``cross_key_scale_<layer>``, ``cross_value_scale_<layer>``
    (n_windows, 1, n_text_state).
    Outputs ``logits`` as there, but for what all of a row have in common in int8, which a softmax
    does not depend on; ``alignment`` (n_windows, n_heads, n_most, n_frames), with the
    mask; ``new_<name>`` for all keys and values, which must be bound to the memory of the inputs.
    """
    g, heads = GraphBuilder(model.dims, model.weights, kind), sorted(model.alignment_heads)
    x = _text(g)
    windows = _JointWindows(g)
    alignment = g.output("alignment", ["n_windows", len(heads), "n_most", "n_frames"])
    x, found = _decoder_blocks(g, x, windows, heads)
    _project_to_logits(g, x, exact=False)
    g.op("Concat", found, {"axis": 1}, to=alignment)
    return g.graph()


class _Windows(Protocol):
    """How the tokens of a pass attend to their texts and to the sound."""

    heads_axis: int
    """The axis of the heads in what `attend_to_audio` gives."""

    def attend_to_text(self, packed: str, layer: int) -> str:
        """Add self-attention over the cache: (k, 3 * n_text_state), query, key and value of each.

        The keys and values of the pass are written into the cache. Returns (k, n_text_state).
        """
        ...

    def attend_to_audio(self, queries: str, layer: int, scores: str) -> str:
        """Add cross-attention of scaled queries; returns (k, n_text_state).

        The scores of all heads are called `scores`, unless that is empty.
        """
        ...


def _text(g: GraphBuilder) -> str:
    tokens = g.input("embedded", ["k", g.dims.n_text_state])
    positions = g.input("positions", ["k"], ElementType.INT64)
    return g.add(tokens, g.op("Gather", [g.parameter("decoder.positional_embedding"), positions]))


def _decoder_blocks(
    g: GraphBuilder, x: str, windows: _Windows, alignment_heads: Sequence[tuple[int, int]]
) -> tuple[str, list[str]]:
    """Add all blocks; return their output (k, n_text_state) and the scores of alignment heads."""
    alignment = []
    for layer in range(g.dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        x = g.add(x, _attend_to_text(g, g.layer_norm(x, f"{block}.attn_ln"), layer, windows))
        y = g.layer_norm(x, f"{block}.cross_attn_ln")
        heads = [head for its_layer, head in alignment_heads if its_layer == layer]
        scores = f"scores_{layer}" if heads else ""
        x = g.add(x, _attend_to_audio(g, y, layer, windows, scores))
        y = g.layer_norm(x, f"{block}.mlp_ln")
        x = g.add(x, g.feed_forward(y, block))
        if heads:
            chosen = [scores, g.constant(heads)]
            alignment.append(g.op("Gather", chosen, {"axis": windows.heads_axis}))
    return x, alignment


def embedding(weights: Weights, precision: Precision) -> NDArray[Any]:
    """Return the embeddings of all tokens, (n_vocab, n_text_state)."""
    return _stored(weights["decoder.token_embedding.weight"], precision)


def output(weights: Weights, precision: Precision) -> NDArray[Any] | None:
    """Return the output layer, (n_vocab, n_text_state), unless it is the embeddings."""
    rows = weights.get(OUTPUT)
    return None if rows is None else _stored(rows, precision)


def _stored(rows: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    # half precision, which most checkpoints have, loses nothing compared with int8
    return rows.astype(np.float16) if precision == "int8" else rows


class _OneWindow:
    """A pass of one window, whose keys and values are as the encoder has written them."""

    heads_axis = 0

    def __init__(self, g: GraphBuilder) -> None:
        self._g = g
        self._place = [
            g.input("last", [1], ElementType.INT32),
            g.input("n_total", [1], ElementType.INT32),
        ]
        self._mask = g.input("mask", [1, 1, "k", "n_total"])
        self._bias = g.input("cross_bias", ["n_ctx"])

    def attend_to_text(self, packed: str, layer: int) -> str:
        g = self._g
        cache = _cache(g, layer, 1)
        attended = _self_attention(g, g.batch_of_one(packed), cache, [*self._place, self._mask])
        return g.op("Squeeze", [attended, g.constant([0])])

    def attend_to_audio(self, queries: str, layer: int, scores: str) -> str:
        g = self._g
        n_head, d_head = _heads(g)
        keys, values = (
            g.cast(
                g.input(f"cross_{kind}_{layer}", ["n_ctx", n_head, d_head], g.stored),
                ElementType.FLOAT32,
            )
            for kind in ("key", "value")
        )
        queries = g.reshape(queries, [-1, n_head, d_head])
        # the heads are the second axis of all but the scores, where they are the first
        both = {"transBatchA": 1, "transBatchB": 1, "transB": 1}
        scores = g.op("FusedMatMul", [queries, keys], both, domain=CONTRIB, to=scores)
        weights = g.op("Softmax", [g.add(scores, self._bias)], {"axis": -1})
        attended = g.op("FusedMatMul", [weights, values], {"transBatchB": 1}, domain=CONTRIB)
        rows = g.transpose(attended, [1, 0, 2])
        return g.reshape(rows, [-1, g.dims.n_text_state])


class _JointWindows:
    """A pass of several windows, whose keys and values of the sound are in int8, or float32."""

    heads_axis = 1

    def __init__(self, g: GraphBuilder) -> None:
        self._g = g
        self._places = g.input("place", ["n_windows", "n_most"], ElementType.INT64)
        self._rows = g.input("row", ["k"], ElementType.INT64)
        self._sizes = g.input("sizes", ["n_windows"], ElementType.INT32)
        self._text, self._sound = (
            [
                g.input(last, ["n_windows"], ElementType.INT32),
                g.input(total, [1], ElementType.INT32),
                g.input(mask, ["n_windows", 1, "n_most", total]),
            ]
            for last, total, mask in (
                ("last", "n_total", "mask"),
                ("last_frame", "n_frames", "frames"),
            )
        )

    def attend_to_text(self, packed: str, layer: int) -> str:
        g = self._g
        cache = _cache(g, layer, "n_windows")
        packed = self._apart(packed)
        return self._together(_self_attention(g, packed, cache, self._text, sizes=self._sizes))

    def attend_to_audio(self, queries: str, layer: int, scores: str) -> str:
        g = self._g
        n_head, d_head = _heads(g)
        element = ElementType.FLOAT32 if g.kind is Linear.FLOAT32 else ElementType.INT8
        shape: Shape = ["n_windows", n_head, "n_ctx", d_head]
        names = [f"cross_{kind}_{layer}" for kind in ("key", "value")]
        cache = [g.input(each, shape, element) for each in names]
        written = [g.output(f"new_{each}", shape, element) for each in names]
        options: dict[str, Any] = {"num_heads": n_head, "kv_num_heads": n_head, "scale": 1.0}
        if scores:
            options["qk_output"] = 1  # before the softmax
        queries, scales = self._apart(queries), ["", ""]
        if element is ElementType.INT8:
            # A scale for each column of keys is one of the queries', of values one of the output's.
            queries = g.op("Mul", [queries, self._scale("key", layer)])
            scales = [g.constant(1.0)] * 2
            options |= {"kv_cache_bit_width": 8}
            options |= {f"{kind}_quant_type": "PER_TENSOR" for kind in ("k", "v")}
        last, total, mask = self._sound
        # The operator writes keys and values of the tokens behind those of the sound. Which ones
        # does not matter: they are masked.
        inputs = [queries, queries, queries, *cache, last, total, "", "", "", mask, ""]
        inputs += [*scales, "", "", self._sizes]
        more = [*written, scores] if scores else written
        attended = g.op("GroupQueryAttention", inputs, options, domain=CONTRIB, more=more)
        if element is ElementType.INT8:
            attended = g.op("Mul", [attended, self._scale("value", layer)])
        return self._together(attended)

    def _scale(self, kind: str, layer: int) -> str:
        g = self._g
        return g.input(f"cross_{kind}_scale_{layer}", ["n_windows", 1, g.dims.n_text_state])

    def _apart(self, rows: str) -> str:
        """Put rows (k, width) of tokens in their windows' places: (n_windows, n_most, width)."""
        return self._g.op("Gather", [rows, self._places])

    def _together(self, places: str) -> str:
        rows = self._g.reshape(places, [-1, self._g.dims.n_text_state])
        return self._g.op("Gather", [rows, self._rows])


def _heads(g: GraphBuilder) -> tuple[int, int]:
    return g.dims.n_text_head, g.dims.n_text_state // g.dims.n_text_head


def _cache(g: GraphBuilder, layer: int, n_windows: int | str) -> list[str]:
    n_head, d_head = _heads(g)
    shape: Shape = [n_windows, n_head, "n_pool", d_head]
    return [g.input(f"{kind}_{layer}", shape) for kind in ("key", "value")]


def _self_attention(
    g: GraphBuilder, packed: str, cache: Sequence[str], place: Sequence[str], sizes: str = ""
) -> str:
    """Add attention of (n_windows, n_most, 3 * n_text_state), which is written into the `cache`."""
    n_head, d_head = _heads(g)
    heads = {"num_heads": n_head, "kv_num_heads": n_head}
    shape: Shape = ["n_windows" if sizes else 1, n_head, "n_pool", d_head]
    written = [g.output(f"new_{each}", shape) for each in cache]
    last, n_total, mask = place
    # the empty inputs are rotary embeddings, sinks, scales and norms
    inputs = [packed, "", "", *cache, last, n_total, "", "", "", mask]
    if sizes:
        inputs += ["", "", "", "", "", sizes]
    return g.op("GroupQueryAttention", inputs, heads, domain=CONTRIB, more=written)


def _convolutions(g: GraphBuilder, mel: str) -> str:
    """Add both convolutions with their GELUs: (1, n_mels, 2 n) to (n, n_state).

    The second is a linear layer over three columns, which is faster and can be quantised.
    """
    kernel, bias = g.parameter("encoder.conv1.weight"), g.parameter("encoder.conv1.bias")
    x = g.op("Conv", [mel, kernel, bias], {"pads": [1, 1], "strides": [1]})
    n_state = g.dims.n_audio_state
    columns = g.transpose(g.op("Gelu", [x]), [0, 2, 1])
    pairs = g.reshape(columns, [-1, 2 * n_state])  # columns 2i and 2i + 1 side by side
    # before them column 2i - 1, the second half of the previous pair; zeros before the first
    second = g.op("Slice", [pairs, *map(g.constant, ([n_state], [2 * n_state], [1]))])
    first_row = g.constant([1, 0, -1, 0])  # pads: one row more in front, one less at the end
    before = g.op("Pad", [second, first_row])
    kernel_2 = g.weights["encoder.conv2.weight"]  # (n_out, n_in, 3)
    rows = np.ascontiguousarray(kernel_2.transpose(0, 2, 1)).reshape(n_state, 3 * n_state)
    triples = g.op("Concat", [before, pairs], {"axis": 1})
    convolution = Projection(rows, g.weights["encoder.conv2.bias"])
    return g.op("Gelu", [g.project(triples, "encoder.conv2", convolution)])


def _encoder_block(g: GraphBuilder, x: str, layer: int, *, biased: bool, stored: bool) -> str:
    block = f"encoder.blocks.{layer}"
    y = g.layer_norm(x, f"{block}.attn_ln")
    inputs = _attention_inputs(g, y, layer, biased=biased, stored=stored)
    n_head = g.dims.n_audio_head
    options = {"num_heads": n_head, "scale": (g.dims.n_audio_state // n_head) ** -0.5}
    attended = g.op("MultiHeadAttention", inputs, options, domain=CONTRIB)
    attended = g.op("Squeeze", [attended, g.constant([0])])
    x = g.add(x, g.linear(attended, f"{block}.attn.out"))
    y = g.layer_norm(x, f"{block}.mlp_ln")
    if g.dims.n_audio_state < _LEAST_WIDE:
        return g.add(x, g.feed_forward(y, block))
    bounds = pairwise([*range(0, g.dims.n_audio_ctx, _N_ROWS), _END])
    pieces = [g.op("Slice", [y, *map(g.constant, ([at], [end]))]) for at, end in bounds]
    done = [g.feed_forward(piece, block) for piece in pieces]
    return g.add(x, g.op("Concat", done, {"axis": 0}))


def _attention_inputs(
    g: GraphBuilder, y: str, layer: int, *, biased: bool, stored: bool
) -> tuple[str, str, str]:
    """Queries, keys and values of all heads, (1, n, n_head * width).

    If they are `stored`, keys and values are those of all positions that are known. A bias of their
    scores would keep ONNX Runtime from its fast attention. A column more in each head of queries
    and keys does the same: 1 in the queries; in the keys the bias, before scaling.
    """
    attn = f"encoder.blocks.{layer}.attn"
    query, key, value = (
        Projection.stacked(g.weights, [f"{attn}.{leaf}"]) for leaf in ("query", "key", "value")
    )
    n_head = g.dims.n_audio_head
    if biased:
        query, key = query.widened(n_head, 1.0), key.widened(n_head, 0.0)
    queries = g.batch_of_one(g.project(y, f"{attn}.query", query))
    keys = g.project(y, f"{attn}.key", key)
    values = g.project(y, f"{attn}.value", value)
    if not stored:
        return queries, g.batch_of_one(keys), g.batch_of_one(values)
    return (
        queries,
        g.cast(_write(g, keys, f"key_{layer}", len(key.weight)), ElementType.FLOAT32),
        g.cast(_write(g, values, f"value_{layer}", len(value.weight)), ElementType.FLOAT32),
    )


def _write(g: GraphBuilder, values: str, name: str, width: int) -> str:
    """Write `values` (k, width) into the ``rows`` of the input `name`; returns all of them."""
    shape: Shape = [1, "n_ctx", width]
    known, written = g.input(name, shape, g.stored), g.output(f"new_{name}", shape, g.stored)
    g.op("ScatterND", [known, "rows", g.cast(values, g.stored)], to=written)
    return written


def _project_to_logits(g: GraphBuilder, x: str, *, exact: bool = True) -> None:
    """Add the output layer for the rows ``want`` (m,): the output ``logits`` (m, n_vocab).

    Unless they are `exact`, a number that all of a row have in common is not added, which takes
    more than a quarter of this layer's time.
    """
    want = g.input("want", ["m"], ElementType.INT64)
    g.output("logits", ["m", g.dims.n_vocab])
    x = g.layer_norm(g.op("Gather", [x, want]), "decoder.ln")
    matrix = g.weights.get(OUTPUT, g.weights["decoder.token_embedding.weight"])
    if g.kind is Linear.FLOAT32:
        g.project(x, "output", Projection(matrix), to="logits")
        return
    # x @ matrix.T == x @ (matrix - offset).T + x @ offset, and the rows without their offset
    # keep more of their 8 bits for what tells one token from another
    offset = row_offset(matrix)
    projection = Projection(matrix, offset=offset)
    if not exact:
        g.project(x, "output", projection, to="logits")
        return
    product = g.project(x, "output", projection)
    shares = g.op("Mul", [x, g.tensor("output.offset", offset)])
    common = g.op("ReduceSum", [shares, g.constant([-1])], {"keepdims": 1})
    g.op("Add", [product, common], to="logits")


def _project_to_some(g: GraphBuilder, x: str) -> None:
    """Add the output ``some_logits``, for which the rows of the output layer are an input."""
    want = g.input("want_some", ["p"], ElementType.INT64)
    rows = g.input("some", ["n", g.dims.n_text_state])
    states = g.layer_norm(g.op("Gather", [x, want]), "decoder.ln")
    g.op("Gemm", [states, rows], {"transB": 1}, to=g.output("some_logits", ["p", "n"]))


def _attend_to_text(g: GraphBuilder, x: str, layer: int, windows: _Windows) -> str:
    """Add self-attention over the cache, into which the pass's keys and values are written."""
    name = f"decoder.blocks.{layer}.attn"
    packed = g.linear(x, f"{name}.query", f"{name}.key", f"{name}.value")
    return g.linear(windows.attend_to_text(packed, layer), f"{name}.out")


def _attend_to_audio(g: GraphBuilder, x: str, layer: int, windows: _Windows, scores: str) -> str:
    """Add cross-attention, whose scores are called `scores`, unless that is empty."""
    name = f"decoder.blocks.{layer}.cross_attn"
    weight, bias = (g.weights[f"{name}.query.{leaf}"] for leaf in ("weight", "bias"))
    scale = np.float32(_heads(g)[1] ** -0.5)
    queries = g.project(x, f"{name}.query", Projection(weight * scale, bias * scale))
    return g.linear(windows.attend_to_audio(queries, layer, scores), f"{name}.out")
