"""A tiny model that is unlike the others wherever the builder has a choice.

Its encoder comes in two parts and has its own states of silence, its longest context in two chunks
of queries.
"""

from functools import cache

import numpy as np

from streamd.models import ModelDimensions
from streamd.models.model import Model, parameter_shapes
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.text_tokens import TextTokens
from streamd.types import FRAME, Mel
from streamd.whisper.mel import log_mel
from tests.golden.load import samples
from tests.golden.random_model import random_weights

DIMS = ModelDimensions(
    n_mels=80,
    n_audio_ctx=530,
    n_audio_state=64,
    n_audio_head=2,
    n_audio_layer=13,
    n_vocab=2608,
    n_text_ctx=32,
    n_text_state=64,
    n_text_head=2,
    n_text_layer=1,
)


@cache
def model() -> Model:
    """Weights that float16 holds exactly."""
    shapes = parameter_shapes(DIMS)
    states = np.random.default_rng(5).standard_normal(silence_shape(DIMS))
    return Model(
        name="odd",
        dims=DIMS,
        weights={
            name: values.astype(np.float16).astype(np.float32)
            for name, values in random_weights(shapes).items()
        },
        vocabulary=TextTokens(str(i).encode() for i in range(DIMS.n_vocab - 1608)),
        alignment_heads=((0, 0),),
        language="en",
        silence=SilenceStates(states.astype(np.float16)),
    )


def mel() -> Mel:
    """A clip at the full context."""
    return log_mel(samples("digits", 600)[: DIMS.n_audio_ctx * FRAME], DIMS.n_mels)
