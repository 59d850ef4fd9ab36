"""Whisper's encoder and decoder as ONNX graphs, in float32.

Plain ai.onnx operators, except ``MultiHeadAttention`` of ONNX Runtime in the encoder, which never
builds the (n_ctx, n_ctx) matrix. The arithmetic is openai/whisper's ``model.py``; the cache of
slots is streamd's own (streamd/search/__init__.py).
"""

from collections.abc import Sequence

from onnx import TensorProto

from streamd.engine import ModelDimensions
from streamd.engine.onnx.builder import CONTRIB, Graph, GraphBuilder, Shape
from streamd.engine.weights import OUTPUT


def encoder_graph(dims: ModelDimensions) -> Graph:
    """Log-mel in, cross-attention keys and values of every decoder layer out.

    Input ``mel`` (1, n_mels, 2 * n_ctx). Outputs ``cross_key_<layer>`` (n_head, d_head, n_ctx) and
    ``cross_value_<layer>`` (n_head, n_ctx, d_head): keys transposed, as the decoder multiplies.
    """
    g = GraphBuilder(dims)
    mel = g.input("mel", [1, dims.n_mels, "n_columns"])
    x = g.op("Gelu", [g.convolve(mel, "encoder.conv1", stride=1)])
    x = g.op("Gelu", [g.convolve(x, "encoder.conv2", stride=2)])
    x = g.op("Transpose", [g.op("Squeeze", [x, g.constant([0])])], {"perm": [1, 0]})
    n_ctx = g.op("Shape", [x], {"start": 0, "end": 1})
    positions = g.parameter("encoder.positional_embedding")
    x = g.add(x, g.op("Slice", [positions, g.constant([0]), n_ctx]))
    for layer in range(dims.n_audio_layer):
        x = _encoder_block(g, x, f"encoder.blocks.{layer}")
    encoded = g.layer_norm(x, "encoder.ln_post")
    n_head, d_head = dims.n_text_head, dims.n_text_state // dims.n_text_head
    for layer in range(dims.n_text_layer):
        cross = f"decoder.blocks.{layer}.cross_attn"
        key = g.split_heads(g.linear(encoded, f"{cross}.key"), last="n")
        value = g.split_heads(g.linear(encoded, f"{cross}.value"))
        g.output(f"cross_key_{layer}", key, [n_head, d_head, "n_ctx"])
        g.output(f"cross_value_{layer}", value, [n_head, "n_ctx", d_head])
    return g.graph()


def decoder_graph(
    dims: ModelDimensions, alignment_heads: Sequence[tuple[int, int]], *, tied: bool = True
) -> Graph:
    """One pass of k tokens against a pool of cached keys and values.

    Inputs: ``tokens``, ``positions`` (k,); ``want`` (m,), the rows to project to logits; ``mask``
    (k, n_pool + k), 0 where a query sees a slot of the pool or a token of its own pass, else -inf;
    per layer ``key_<layer>``, ``value_<layer>`` (n_head, n_pool, d_head) and the encoder's outputs.
    Outputs: ``logits`` (m, n_vocab); ``alignment`` (k, n_heads, n_ctx), heads in the order given,
    which must be sorted; ``new_keys``, ``new_values`` (n_layer, n_head, k, d_head), which the
    caller writes into the pool. `tied`: the token embedding is the output layer too.
    """
    g = GraphBuilder(dims)
    tokens = g.input("tokens", ["k"], TensorProto.INT64)
    positions = g.input("positions", ["k"], TensorProto.INT64)
    want = g.input("want", ["m"], TensorProto.INT64)
    mask = g.input("mask", ["k", "n_pool_and_k"])
    embedding = g.parameter("decoder.token_embedding.weight")
    place = g.op("Gather", [g.parameter("decoder.positional_embedding"), positions])
    x = g.add(g.op("Gather", [embedding, tokens]), place)
    keys, values, alignment = [], [], []
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        attended, key, value = _attend_to_text(g, g.layer_norm(x, f"{block}.attn_ln"), layer, mask)
        x = g.add(x, g.linear(attended, f"{block}.attn.out"))
        attended, scores = _attend_to_audio(g, g.layer_norm(x, f"{block}.cross_attn_ln"), layer)
        x = g.add(x, g.linear(attended, f"{block}.cross_attn.out"))
        x = g.add(x, g.feed_forward(x, block))
        keys.append(g.op("Unsqueeze", [key, g.constant([0])]))
        values.append(g.op("Unsqueeze", [value, g.constant([0])]))
        heads = [head for its_layer, head in alignment_heads if its_layer == layer]
        if heads:
            alignment.append(g.op("Gather", [scores, g.constant(heads)], {"axis": 0}))
    wanted = g.layer_norm(g.op("Gather", [x, want]), "decoder.ln")
    output = embedding if tied else g.parameter(OUTPUT)
    g.output("logits", g.op("Gemm", [wanted, output], {"transB": 1}), ["m", dims.n_vocab])
    scores = g.op("Transpose", [g.op("Concat", alignment, {"axis": 0})], {"perm": [1, 0, 2]})
    g.output("alignment", scores, ["k", len(alignment_heads), "n_ctx"])
    pool: Shape = [dims.n_text_layer, dims.n_text_head, "k", dims.n_text_state // dims.n_text_head]
    g.output("new_keys", g.op("Concat", keys, {"axis": 0}), pool)
    g.output("new_values", g.op("Concat", values, {"axis": 0}), pool)
    return g.graph()


def _encoder_block(g: GraphBuilder, x: str, block: str) -> str:
    y = g.layer_norm(x, f"{block}.attn_ln")
    batch_of_one = [
        g.op("Unsqueeze", [g.linear(y, f"{block}.attn.{name}"), g.constant([0])])
        for name in ("query", "key", "value")
    ]
    heads = {"num_heads": g.dims.n_audio_head}
    attended = g.op("MultiHeadAttention", batch_of_one, heads, domain=CONTRIB)
    attended = g.op("Squeeze", [attended, g.constant([0])])
    x = g.add(x, g.linear(attended, f"{block}.attn.out"))
    return g.add(x, g.feed_forward(x, block))


def _attend_to_text(g: GraphBuilder, x: str, layer: int, mask: str) -> tuple[str, str, str]:
    """Self-attention over the pool and over the pass itself, without copying the pool.

    Returns what was attended to (k, n_state), and the new keys and values (n_head, k, d_head).
    """
    name = f"decoder.blocks.{layer}.attn"
    n_head, d_head = g.dims.n_text_head, g.dims.n_text_state // g.dims.n_text_head
    old_key = g.input(f"key_{layer}", [n_head, "n_pool", d_head])
    old_value = g.input(f"value_{layer}", [n_head, "n_pool", d_head])
    query = g.query(x, name)
    key = g.split_heads(g.linear(x, f"{name}.key"))
    value = g.split_heads(g.linear(x, f"{name}.value"))
    scores = [
        g.op("MatMul", [query, g.op("Transpose", [keys], {"perm": [0, 2, 1]})])
        for keys in (old_key, key)
    ]
    both = g.add(g.op("Concat", scores, {"axis": -1}), mask)
    probabilities = g.op("Softmax", [both], {"axis": -1})
    n_pool = g.op("Shape", [old_key], {"start": 1, "end": 2})
    last_axis, zero, end = g.constant([2]), g.constant([0]), g.constant([2**31 - 1])
    to_old = g.op("Slice", [probabilities, zero, n_pool, last_axis])
    to_new = g.op("Slice", [probabilities, n_pool, end, last_axis])
    attended = g.add(g.op("MatMul", [to_old, old_value]), g.op("MatMul", [to_new, value]))
    return g.join_heads(attended), key, value


def _attend_to_audio(g: GraphBuilder, x: str, layer: int) -> tuple[str, str]:
    """Cross-attention; returns what was attended to and the scaled scores (n_head, k, n_ctx)."""
    n_head, d_head = g.dims.n_text_head, g.dims.n_text_state // g.dims.n_text_head
    key = g.input(f"cross_key_{layer}", [n_head, d_head, "n_ctx"])
    value = g.input(f"cross_value_{layer}", [n_head, "n_ctx", d_head])
    scores = g.op("MatMul", [g.query(x, f"decoder.blocks.{layer}.cross_attn"), key])
    probabilities = g.op("Softmax", [scores], {"axis": -1})
    return g.join_heads(g.op("MatMul", [probabilities, value])), scores
