"""Whisper's encoder and decoder as ONNX graphs.

The arithmetic is openai/whisper's ``model.py``; the cache of slots is streamd's own
(streamd/whisper/engine.py). Two operators are ONNX Runtime's: ``MultiHeadAttention`` in the
encoder, which never builds the (n_ctx, n_ctx) matrix, and ``GroupQueryAttention`` in the decoder,
which writes keys and values into the caller's memory and reads them there. Only the linear layers
are quantised.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engines import Precision
from streamd.engines.onnx import PARTS
from streamd.engines.onnx.builder import (
    CONTRIB,
    Graph,
    GraphBuilder,
    Linear,
    Projection,
    row_offset,
)
from streamd.engines.onnx.proto import ElementType, Shape
from streamd.models import ModelDimensions, Weights
from streamd.models.model import OUTPUT
from streamd.models.silence import SilenceStates, bias, silence_shape

_END = np.iinfo(np.int64).max
_ENCODER: dict[Precision, Linear] = {"float32": Linear.FLOAT32, "int8": Linear.TENSOR}
"""An encoder's rows belong to one window and may depend on each other."""


def graphs(
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    silence: SilenceStates | None,
    precision: Precision,
) -> Iterator[Graph]:
    """Yield the encoder's graph, then the decoder's; not both at once, to save memory."""
    yield encoder_graph(dims, weights, _ENCODER[precision], biased=silence is not None)
    yield decoders(dims, weights, alignment_heads=alignment_heads, precision=precision, n=1)


def decoders(
    dims: ModelDimensions,
    weights: Weights,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    precision: Precision,
    n: int,
) -> Graph:
    """Build the decoder's graph for `n` windows at a time."""
    heads = sorted(alignment_heads)
    kind = Linear.ROWS if precision == "int8" else Linear.FLOAT32
    return decoder_graph(dims, weights, kind, alignment_heads=heads, n_windows=n)


def encoder_graph(dims: ModelDimensions, weights: Weights, kind: Linear, *, biased: bool) -> Graph:
    """Build the encoder: from log-mel to the cross-attention keys and values of all layers.

    Inputs ``mel`` (1, n_mels, 2 * k) of the k positions to compute, one position more in front
    unless the first of them is the first of the context; ``first`` (1,) int64, their first one;
    ``rows`` (k, 2) int64, 0 and where each is written; per layer ``key_<layer>``, ``value_<layer>``
    (1, n_ctx, n_head * width) of the encoder's own attention and ``cross_key_<layer>``,
    ``cross_value_<layer>`` (1, n_ctx, n_text_state), which hold what is known of other positions,
    beside int8 in half precision, as the decoder reads them.
    Outputs ``new_<input>`` for each of these, which must be bound to the memory of the input. If
    `biased`, each head of ``key_<layer>`` has a column more: see `_attention_inputs`.
    """
    g = GraphBuilder(dims, weights, kind)
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
    encoded = g.layer_norm(x, "encoder.ln_post")
    for layer, leaf in product(range(dims.n_text_layer), ("key", "value")):
        values = g.linear(encoded, f"decoder.blocks.{layer}.cross_attn.{leaf}")
        _write(g, values, f"cross_{leaf}_{layer}", dims.n_text_state)
    return g.graph()


def silence_rows(
    dims: ModelDimensions, weights: Weights, silence: SilenceStates | None, precision: Precision
) -> dict[str, NDArray[Any]]:
    """Return keys and values of silence by the names of the encoder's inputs, (n_positions, width).

    They are what the inputs are stored in. Without `silence` they have no rows.
    """
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


def states_graph(dims: ModelDimensions, weights: Weights, precision: Precision) -> Graph:
    """Build an encoder whose outputs are what `SilenceStates` are averaged over.

    Input ``mel`` (1, n_mels, 2 * n_audio_ctx); outputs ``state_<layer>`` (n_audio_ctx, n_state),
    the normalised input of each block's attention, then the encoder's output.
    """
    g = GraphBuilder(dims, weights, _ENCODER[precision])
    x = _convolutions(g, g.input("mel", [1, dims.n_mels, 2 * dims.n_audio_ctx]))
    x = g.add(x, g.parameter("encoder.positional_embedding"))
    names = [f"encoder.blocks.{layer}.attn_ln" for layer in range(dims.n_audio_layer)]
    for layer, name in enumerate((*names, "encoder.ln_post")):
        state = g.output(f"state_{layer}", [dims.n_audio_ctx, dims.n_audio_state])
        g.layer_norm(x, name, to=state)
        if layer < dims.n_audio_layer:
            x = _encoder_block(g, x, layer, biased=False, stored=False)
    return g.graph()


def decoder_graph(
    dims: ModelDimensions,
    weights: Weights,
    kind: Linear,
    *,
    alignment_heads: Sequence[tuple[int, int]],
    n_windows: int = 1,
) -> Graph:
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
    others; ``alignment`` (k, n_heads, n_ctx), heads in the order given, which must be sorted;
    ``new_key_<layer>``, ``new_value_<layer>``, which must be bound to the memory of the inputs
    ``key_<layer>``, ``value_<layer>``.

    With several windows, each has its own cache and features, and all inputs and outputs but
    ``embedded``, ``positions``, ``want``, ``logits`` once, with a suffix (`suffixes`); there is no
    ``want_some``, ``some`` and ``some_logits``. ``sizes`` (n_windows,) int64 says how many tokens
    each has, at least one; they come window by window. Every weight is read once for all. Cross
    keys and values come in `PARTS`, whose sizes are ``parts`` (2,) int64.
    """
    g = GraphBuilder(dims, weights, kind)
    tokens = g.input("embedded", ["k", dims.n_text_state])
    positions = g.input("positions", ["k"], ElementType.INT64)
    want = g.input("want", ["m"], ElementType.INT64)
    windows = _Windows(g, n_windows)
    g.output("logits", ["m", dims.n_vocab])
    n_heads = len(alignment_heads)
    outputs = [
        g.output(f"alignment{end}", [f"k{end}", n_heads, f"n_ctx{end}"])
        for end in suffixes(n_windows)
    ]
    x = g.add(tokens, g.op("Gather", [g.parameter("decoder.positional_embedding"), positions]))
    alignment: list[list[str]] = [[] for _ in range(n_windows)]
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        x = g.add(x, _attend_to_text(g, g.layer_norm(x, f"{block}.attn_ln"), layer, windows))
        y = g.layer_norm(x, f"{block}.cross_attn_ln")
        attended, scores = _attend_to_audio(g, y, layer, windows)
        x = g.add(x, attended)
        x = g.add(x, g.feed_forward(x, block))
        heads = [head for its_layer, head in alignment_heads if its_layer == layer]
        if heads:
            for found, its_scores in zip(alignment, scores, strict=True):
                found.append(g.op("Gather", [its_scores, g.constant(heads)], {"axis": 0}))
    wanted = g.layer_norm(g.op("Gather", [x, want]), "decoder.ln")
    _project_to_logits(g, wanted)
    if n_windows == 1:
        _project_to_some(g, x)
    for name, found in zip(outputs, alignment, strict=True):
        g.transpose(g.op("Concat", found, {"axis": 0}), [1, 0, 2], to=name)
    return g.graph()


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


def suffixes(n_windows: int) -> list[str]:
    """Return what the names of each window's inputs and outputs end in; for one: nothing."""
    return [f".{at}" for at in range(n_windows)] if n_windows > 1 else [""]


@dataclass(frozen=True, slots=True)
class _JointWindow:
    """The names of a window's inputs, but for keys and values.

    `parts` are the sizes of the parts that its features come in, if there are several.
    """

    suffix: str
    place: tuple[str, str, str]
    cross_bias: str
    parts: str

    def features(self, g: GraphBuilder, name: str, shape: Shape) -> list[str]:
        """Add inputs for keys or values of its sound, converted to float32."""
        names = [f"{name}{self.suffix}{part}" for part in (PARTS if self.parts else [""])]
        inputs = [g.input(each, [f"n{each}", *shape], g.stored) for each in names]
        return [g.cast(each, ElementType.FLOAT32) for each in inputs]

    def apart(self, g: GraphBuilder, weights: str) -> list[str]:
        """Cut the weights of all positions into those of each part."""
        if not self.parts:
            return [weights]
        names = [f"{weights}{part}" for part in PARTS]
        g.op("Split", [weights, self.parts], {"axis": 2}, to=names[0], more=names[1:])
        return names


class _Windows:
    """The windows of a decoder's graph, and how their rows are taken apart and put together."""

    def __init__(self, g: GraphBuilder, n: int) -> None:
        self._g = g
        self._sizes = g.input("sizes", [n], ElementType.INT64) if n > 1 else ""
        self.each = [
            _JointWindow(
                suffix,
                place=(
                    g.input(f"last{suffix}", [1], ElementType.INT32),
                    g.input(f"n_total{suffix}", [1], ElementType.INT32),
                    g.input(f"mask{suffix}", [1, 1, f"k{suffix}", f"n_total{suffix}"]),
                ),
                cross_bias=g.input(f"cross_bias{suffix}", [f"n_ctx{suffix}"]),
                parts=g.input(f"parts{suffix}", [2], ElementType.INT64) if n > 1 else "",
            )
            for suffix in suffixes(n)
        ]

    def apart(self, rows: str, *, axis: int) -> list[str]:
        """Cut rows of all windows, which are an axis, into those of each."""
        if not self._sizes:
            return [rows]
        names = [f"{rows}{window.suffix}" for window in self.each]
        self._g.op("Split", [rows, self._sizes], {"axis": axis}, to=names[0], more=names[1:])
        return names

    def together(self, rows: Sequence[str]) -> str:
        """Put rows of the windows, the second axis, one after another."""
        return self._g.op("Concat", rows, {"axis": 1}) if self._sizes else rows[0]


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
    return g.add(x, g.feed_forward(x, block))


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


def _project_to_logits(g: GraphBuilder, x: str) -> None:
    """Add the output layer: (m, n_state) to the output ``logits`` (m, n_vocab)."""
    matrix = g.weights.get(OUTPUT, g.weights["decoder.token_embedding.weight"])
    if g.kind is Linear.FLOAT32:
        g.project(x, "output", Projection(matrix), to="logits")
        return
    # x @ matrix.T == x @ (matrix - offset).T + x @ offset, and the rows without their offset
    # keep more of their 8 bits for what tells one token from another
    offset = row_offset(matrix)
    product = g.project(x, "output", Projection(matrix, offset=offset))
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
    n_head, d_head = g.dims.n_text_head, g.dims.n_text_state // g.dims.n_text_head
    heads = {"num_heads": n_head, "kv_num_heads": n_head}
    # query, key and value of a row come packed
    packed = g.batch_of_one(g.linear(x, f"{name}.query", f"{name}.key", f"{name}.value"))
    attended = []
    for rows, window in zip(windows.apart(packed, axis=1), windows.each, strict=True):
        shape: Shape = [1, n_head, f"n_pool{window.suffix}", d_head]
        names = [f"{kind}_{layer}{window.suffix}" for kind in ("key", "value")]
        cache = [g.input(each, shape) for each in names]
        written = [g.output(f"new_{each}", shape) for each in names]
        last, n_total, mask = window.place
        # the three empty inputs are rotary embeddings
        inputs = [rows, "", "", *cache, last, n_total, "", "", "", mask]
        found = g.op("GroupQueryAttention", inputs, heads, domain=CONTRIB, more=written)
        attended.append(found)
    all_rows = g.op("Squeeze", [windows.together(attended), g.constant([0])])
    return g.linear(all_rows, f"{name}.out")


def _attend_to_audio(
    g: GraphBuilder, x: str, layer: int, windows: _Windows
) -> tuple[str, list[str]]:
    """Add cross-attention; returns its output and scores (n_head, k, n_ctx) without bias."""
    name = f"decoder.blocks.{layer}.cross_attn"
    n_head, d_head = g.dims.n_text_head, g.dims.n_text_state // g.dims.n_text_head
    weight, bias = (g.weights[f"{name}.query.{leaf}"] for leaf in ("weight", "bias"))
    scale = np.float32(d_head**-0.5)
    queries = g.project(x, f"{name}.query", Projection(weight * scale, bias * scale))
    queries = g.reshape(queries, [-1, n_head, d_head])
    # the heads are the second axis of all but the scores, where they are the first
    both = {"transBatchA": 1, "transBatchB": 1, "transB": 1}
    attended, all_scores = [], []
    for query, window in zip(windows.apart(queries, axis=0), windows.each, strict=True):
        shape: Shape = [n_head, d_head]
        found = [
            g.op("FusedMatMul", [query, key], both, domain=CONTRIB)
            for key in window.features(g, f"cross_key_{layer}", shape)
        ]
        scores = g.op("Concat", found, {"axis": 2}) if window.parts else found[0]
        all_scores.append(scores)
        weights = g.op("Softmax", [g.add(scores, window.cross_bias)], {"axis": -1})
        values = window.features(g, f"cross_value_{layer}", shape)
        found = [
            g.op("FusedMatMul", [part, value], {"transBatchB": 1}, domain=CONTRIB)
            for part, value in zip(window.apart(g, weights), values, strict=True)
        ]
        attended.append(g.op("Sum", found) if window.parts else found[0])
    rows = g.transpose(windows.together(attended), [1, 0, 2])
    rows = g.reshape(rows, [-1, g.dims.n_text_state])
    return g.linear(rows, f"{name}.out"), all_scores
