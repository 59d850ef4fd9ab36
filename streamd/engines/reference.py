"""Whisper's encoder and decoder in plain float32 numpy, with which other backends are compared.

It is written to be read, not to be fast. Source: openai/whisper ``model.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.models import Weights
from streamd.models.model import OUTPUT, Model
from streamd.models.silence import Extent, bias, extend
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass, Reuse

Array = NDArray[np.float32]
Notice = Callable[[str, Array], object]
"""Called with the name and the values of a place inside the model."""
Norm = Callable[[Array, Weights, str], Array]
"""A layer norm: its input, all weights and its name give its output."""


@dataclass(frozen=True, slots=True)
class ReferenceFeatures:
    """Cross-attention inputs (n_text_layer, n_ctx, n_state), and what is added to their scores.

    `states` are (n_audio_layer + 1, n_ctx, n_state): the normalised input of each block's
    attention, then the encoder's output.
    """

    states: Array
    keys: Array
    values: Array
    bias: Array


class ReferenceEngine:
    """A Whisper model on numpy; an `Engine` (streamd/whisper/engine.py)."""

    def __init__(self, model: Model, notice: Notice = lambda where, values: None) -> None:
        """`notice` gets the output of each block and the hidden values of its feed-forward layers.

        The attribute `norm` computes all layer norms; another one can be put there.
        """
        self.norm: Norm = layer_norm
        self.dims = model.dims
        self.n_cheap = 4
        """As the engines for CPUs, so that the same passes are compared."""
        self.silence, self.weights = model.silence, model.weights
        self.notice = notice
        self.alignment_heads = sorted(model.alignment_heads)

    def encode(
        self, mel: Mel, reuse: Reuse[ReferenceFeatures] | None = None, *, audio_ctx: int = 0
    ) -> ReferenceFeatures:
        mel, extent = extend(
            mel, self.dims, has_silence=self.silence is not None, audio_ctx=audio_ctx
        )
        before = None if reuse is None else reuse.features.states[:, : reuse.n]
        states, weights = self.states(mel, extent, before), self.weights
        cross = [f"decoder.blocks.{i}.cross_attn" for i in range(self.dims.n_text_layer)]
        return ReferenceFeatures(
            states=states,
            keys=np.stack([linear(states[-1], weights, f"{name}.key") for name in cross]),
            values=np.stack([linear(states[-1], weights, f"{name}.value") for name in cross]),
            bias=self._bias(extent),
        )

    def states(self, mel: Mel, extent: Extent, before: Array | None = None) -> Array:
        """Run the encoder: `ReferenceFeatures.states` of a window as `extend` gives it.

        `before` are those of the first positions, which are known.
        """
        silent, added = self._silence(extent), self._bias(extent)
        before = silent[:, :0] if before is None else before
        start = before.shape[1]
        weights = self.weights
        x = gelu(convolve(mel, weights, "encoder.conv1", stride=1))
        x = gelu(convolve(x, weights, "encoder.conv2", stride=2)).T
        x = (x + weights["encoder.positional_embedding"][: extent.n])[start:]
        states = []
        for layer in range(self.dims.n_audio_layer):
            block = f"encoder.blocks.{layer}"
            y = self.norm(x, weights, f"{block}.attn_ln")
            context = np.concatenate([before[layer], y, silent[layer]])
            states.append(context)
            attended, _ = attention(
                linear(y, weights, f"{block}.attn.query"),
                linear(context, weights, f"{block}.attn.key"),
                linear(context, weights, f"{block}.attn.value"),
                n_head=self.dims.n_audio_head,
                mask=added,
            )
            x = x + linear(attended, weights, f"{block}.attn.out")
            y = self.norm(x, weights, f"{block}.mlp_ln")
            x = x + feed_forward(y, weights, block, notice=self.notice)
            self.notice(block, x)
        encoded = np.concatenate([before[-1], self.norm(x, weights, "encoder.ln_post"), silent[-1]])
        return np.stack([*states, encoded])

    def _bias(self, extent: Extent) -> Array:
        """What is added to the scores of the positions computed, then of silence."""
        biases = bias(self.dims.n_audio_ctx)[extent.first :]
        return np.concatenate([np.zeros(extent.n, np.float32), biases])

    def _silence(self, extent: Extent) -> Array:
        """The states of silence after the computed positions, (n_audio_layer + 1, n, n_state)."""
        if self.silence is None:
            shape = (self.dims.n_audio_layer + 1, 0, self.dims.n_audio_state)
            return np.zeros(shape, np.float32)
        return self.silence.states[:, extent.first :].astype(np.float32)

    def decoder(self, features: ReferenceFeatures, n_slots: int) -> "ReferenceDecoder":
        return ReferenceDecoder(self, features, n_slots)


class ReferenceDecoder:
    """A `Decoder` (streamd/whisper/engine.py).

    Its cache is two arrays, `keys` and `values`, (n_text_layer, n_slots, n_text_state).
    """

    def __init__(self, engine: ReferenceEngine, features: ReferenceFeatures, n_slots: int) -> None:
        dims = engine.dims
        self.n_vocab = dims.n_vocab
        self.n_text_ctx = dims.n_text_ctx
        self.n_slots = n_slots
        self._engine = engine
        self._features = features
        pool = (dims.n_text_layer, n_slots, dims.n_text_state)
        self.keys = np.zeros(pool, np.float32)
        self.values = np.zeros(pool, np.float32)

    def run(self, asked: Pass) -> Answer:
        _, tokens, positions, slots, visible, want, among = asked
        dims, weights, norm = self._engine.dims, self._engine.weights, self._engine.norm
        mask = np.where(visible, np.float32(0), np.float32(-np.inf))
        scores_of_layer = []
        embedding = weights["decoder.token_embedding.weight"]
        x = embedding[tokens] + weights["decoder.positional_embedding"][positions]
        for layer in range(dims.n_text_layer):
            block = f"decoder.blocks.{layer}"
            y = norm(x, weights, f"{block}.attn_ln")
            self.keys[layer, slots] = linear(y, weights, f"{block}.attn.key")
            self.values[layer, slots] = linear(y, weights, f"{block}.attn.value")
            attended, _ = attention(
                linear(y, weights, f"{block}.attn.query"),
                self.keys[layer],
                self.values[layer],
                n_head=dims.n_text_head,
                mask=mask,
            )
            x = x + linear(attended, weights, f"{block}.attn.out")
            y = norm(x, weights, f"{block}.cross_attn_ln")
            attended, scores = attention(
                linear(y, weights, f"{block}.cross_attn.query"),
                self._features.keys[layer],
                self._features.values[layer],
                n_head=dims.n_text_head,
                mask=self._features.bias,
            )
            x = x + linear(attended, weights, f"{block}.cross_attn.out")
            y = norm(x, weights, f"{block}.mlp_ln")
            x = x + feed_forward(y, weights, block, notice=self._engine.notice)
            self._engine.notice(block, x)
            scores_of_layer.append(scores)
        output = weights.get(OUTPUT, embedding)
        output = output if among is None else output[among]
        logits = norm(x[want], weights, "decoder.ln") @ output.T
        heads = [scores_of_layer[layer][head] for layer, head in self._engine.alignment_heads]
        return logits, np.stack(heads, axis=1)

    def adopt(self, before: Decoder, n: int) -> bool:
        if not isinstance(before, ReferenceDecoder):
            return False
        self.keys[:, :n], self.values[:, :n] = before.keys[:, :n], before.values[:, :n]
        return True


def linear(x: Array, weights: Weights, name: str) -> Array:
    """``x @ W.T + b``; the projections to keys have no bias."""
    y: Array = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def layer_norm(x: Array, weights: Weights, name: str, *, epsilon: float = 1e-5) -> Array:
    """Normalise the last axis to mean 0 and variance 1, then scale and shift."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    normal: Array = centred / np.sqrt(variance + np.float32(epsilon))
    return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def convolve(x: Array, weights: Weights, name: str, *, stride: int) -> Array:
    """Convolve (n_in, n) over time with kernel 3 and one column of padding at both ends."""
    kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    padded = np.pad(x, ((0, 0), (1, 1)))
    n = x.shape[1]
    taps = [kernel[:, :, i] @ padded[:, i : i + n : stride] for i in range(3)]
    convolved: Array = taps[0] + taps[1] + taps[2] + bias[:, None]
    return convolved


def feed_forward(x: Array, weights: Weights, block: str, *, notice: Notice) -> Array:
    """Apply two linear layers with a GELU between them."""
    y = linear(x, weights, f"{block}.mlp.0")
    notice(f"{block}.mlp", y)
    return linear(gelu(y), weights, f"{block}.mlp.2")


def attention(
    query: Array, key: Array, value: Array, *, n_head: int, mask: Array | None = None
) -> tuple[Array, Array]:
    """Apply scaled dot-product attention over `n_head` heads.

    `query` is (k, n_state), `key` and `value` (n, n_state). `mask`, (k, n) or (n,), is added to the
    scores: -inf where a query does not attend. Returns (k, n_state), and the scaled scores
    (n_head, k, n) without the mask.
    """
    d_head = query.shape[1] // n_head
    scaled: Array = query * np.float32(d_head**-0.5)
    q, k, v = (x.reshape(len(x), n_head, d_head).transpose(1, 0, 2) for x in (scaled, key, value))
    scores = q @ k.transpose(0, 2, 1)
    attended = np.empty_like(q)
    for head, of_head in enumerate(scores):  # of a long window, those of all take 180 MB
        e: Array = of_head.copy() if mask is None else of_head + mask
        e -= e.max(axis=-1, keepdims=True)
        np.exp(e, out=e)
        attended[head] = e @ v[head] / e.sum(axis=-1, keepdims=True)
    return attended.transpose(1, 0, 2).reshape(query.shape), scores


def gelu(x: Array) -> Array:
    """Compute the exact GELU, ``x * Phi(x)``; the tanh form is wrong by up to 5e-4."""
    return x * (0.5 + 0.5 * erf(x * 0.5**0.5)).astype(np.float32)


def erf(x: Array) -> NDArray[np.float64]:
    """Compute the error function to 1.5e-7 (Abramowitz and Stegun 7.1.26); numpy has none."""
    z = np.abs(x).astype(np.float64)
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    polynomial = np.zeros_like(t)
    for coefficient in reversed(series):
        polynomial = (polynomial + coefficient) * t
    magnitude: NDArray[np.float64] = 1.0 - polynomial * np.exp(-z * z)
    return np.copysign(magnitude, x)
