"""Models with the dimensions of OpenAI's and random weights: the cost of a size without its files.

Random weights take as long as trained ones. They write noise, so measurements fix how many tokens
there are.
"""

from pathlib import Path

import numpy as np

from streamd.models.catalog import dimensions, usual_heads
from streamd.models.model import Model, only_language, openai_vocabulary, parameter_shapes


def random_model(name: str, seed: int = 0) -> Model:
    """Make a model with the dimensions of OpenAI's of that name; a seed gives the same weights.

    Raises
    ------
    ConfigError : OpenAI has no such model
    """
    dims = dimensions(name)
    rng = np.random.default_rng(seed)
    weights = {}
    for parameter, shape in parameter_shapes(dims).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            values = np.float32(0.02) * values + np.float32(
                parameter.endswith(("ln.weight", "ln_post.weight"))
            )
        else:
            values *= np.float32(np.prod(shape[1:]) ** -0.5)
        weights[parameter] = values
    return Model(
        name=f"{name} (random)",
        dims=dims,
        weights=weights,
        vocabulary=openai_vocabulary(Path(name), dims.n_vocab),
        alignment_heads=usual_heads(Path(name), dims),
        language=only_language(dims),
    )
