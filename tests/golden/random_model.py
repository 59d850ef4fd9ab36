"""A tiny Whisper with random weights, the same for openai-whisper and for us; numpy only.

So that parity does not hang on tiny.en alone, it differs from it wherever it can: 128 mel bands,
heads of 24 (their scale is no power of two), other encoder and decoder depths, a vocabulary of 300
tokens, several alignment heads, and the prompt layout of a multilingual model.
"""

import numpy as np

N_TEXT_TOKENS = 300
"""The first of GPT-2's vocabulary: all bytes and the first merges."""
DIMS = {
    "n_mels": 128,
    "n_audio_ctx": 1500,
    "n_audio_state": 48,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_vocab": N_TEXT_TOKENS + 1608,
    "n_text_ctx": 96,
    "n_text_state": 48,
    "n_text_head": 2,
    "n_text_layer": 3,
}
ALIGNMENT_HEADS = [(1, 1), (2, 0), (2, 1)]


def random_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Uniform weights of about unit gain, from PCG64's raw bits: numpy promises these for good."""
    bits = np.random.PCG64(20)
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        raw = bits.random_raw(int(np.prod(shape))).reshape(shape) >> np.uint64(40)
        uniform = raw.astype(np.float32) / np.float32(2**23) - np.float32(1)
        weights[name] = _offset(name) + uniform * np.float32(_gain(name, shape))
    return weights


def _offset(name: str) -> np.float32:
    """Layer norms scale by about one."""
    is_scale = name.endswith(("_ln.weight", ".ln.weight", ".ln_post.weight"))
    return np.float32(1 if is_scale else 0)


def _gain(name: str, shape: tuple[int, ...]) -> float:
    if len(shape) == 1:
        return 0.2
    if "embedding" in name:
        # small token embeddings: they are the output layer too, and would repeat the last token
        return 0.3 if "token" in name else 1.0
    # 1.7 = sqrt(3): a uniform weight of this width has the variance 1 / n_in
    gain = 1.7 / np.prod(shape[1:]) ** 0.5
    # sharper attention than usual, or every query would see the same average
    return float(3 * gain if ".query." in name else gain)


def thinned(
    encoded: np.ndarray, logits: np.ndarray, alignment: np.ndarray
) -> dict[str, np.ndarray]:
    """The part of a forward pass that golden.npz keeps, spread over all rows, heads and columns.

    `encoded` (n_ctx, d), `logits` (k, n_vocab), `alignment` (k, n_heads, n_ctx).
    """
    return {
        "encoded": encoded[::75, ::3],
        "logits": logits[:, :: logits.shape[1] // 250],
        "alignment": alignment[..., ::50],
    }
