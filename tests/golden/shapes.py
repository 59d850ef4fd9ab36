"""Whispers of true shapes with random weights, the same for openai-whisper and for us; numpy only.

The widths, depths and vocabularies are those that people have on disk; the weights come from a
seed, so nothing large is kept. Left alone, random weights would write one token for ever: what is
tilted here makes them write, end, mark times and hesitate, differently for each sound.
"""

from dataclasses import dataclass

import numpy as np

from tests.golden.random_model import random_weights

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shape:
    """openai-whisper's `ModelDimensions`, in order, and what tilts the weights."""

    dims: tuple[int, ...]
    eot_bias: float
    """Raises the logit of the end of text, so that some texts end."""
    timestamp_bias: float = -7.0
    """Lowers those of the timestamps, of which there are many, so that some are text."""

    @property
    def n_text_tokens(self) -> int:
        """All that are no special tokens, of which large-v3 has one more than the others."""
        n_vocab = self.dims[5]
        return n_vocab - (1609 if n_vocab == 51_866 else 1608)


SHAPES = {
    "tiny.en": Shape((80, 1500, 384, 6, 4, 51_864, 448, 384, 6, 4), 1.5, -5.5),
    "tiny": Shape((80, 1500, 384, 6, 4, 51_865, 448, 384, 6, 4), 3.5),
    # large-v3's bands and vocabulary (Cantonese is its 100th language) at tiny's width
    "v3": Shape((128, 1500, 384, 6, 2, 51_866, 448, 384, 6, 2), 2.5),
    # distil-whisper's: a deep encoder, two layers of decoder
    "distil": Shape((80, 1500, 384, 6, 6, 51_864, 448, 384, 6, 2), 8.5),
}
GAINS = {
    ".mlp.2.weight": 2,
    ".attn.query.weight": 2,
    ".cross_attn.query.weight": 3,
    ".cross_attn.out.weight": 3,
}
"""Of the decoder: let it look sharply, and say what it hears rather than where it is."""
N_TIMESTAMPS = 1501


def shaped_weights(shape: Shape, shapes: dict[str, tuple[int, ...]]) -> Weights:
    """The weights of a model, such as one of `SHAPES`; `shapes` are those of its parameters."""
    weights = random_weights(shapes)
    for key, values in weights.items():
        if key.startswith("decoder.blocks"):
            if key.endswith(".bias"):
                values[:] = 0  # what is the same everywhere would be written everywhere
            for part, gain in GAINS.items():
                if key.endswith(part):
                    values *= np.float32(gain)
    weights["decoder.positional_embedding"] *= np.float32(0.4)
    # The first feature of the last layer norm is constant, so that each token has a bias there.
    weights["decoder.ln.weight"] *= np.float32(4)
    weights["decoder.ln.weight"][0] = 0
    weights["decoder.ln.bias"][0] = 8
    # Small embeddings, or every token would be followed by itself: they are the output layer too.
    weights["decoder.token_embedding.weight"] *= np.float32(0.2)
    weights["decoder.token_embedding.weight"][:, 0] = _biases(shape) / np.float32(8)
    return weights


def _biases(shape: Shape) -> np.ndarray:
    """What is added to each token's logit: early tokens are frequent, as in a real vocabulary."""
    n_vocab, eot = shape.dims[5], shape.n_text_tokens
    biases = np.full(n_vocab, -12, np.float32)
    biases[:eot] = [-0.5 * token.bit_length() for token in range(eot)]
    biases[eot] = shape.eot_bias
    timestamp_begin = n_vocab - N_TIMESTAMPS
    biases[timestamp_begin - 2] = 0  # nospeech
    biases[timestamp_begin:] = shape.timestamp_bias
    return biases
