"""Golden vectors of a built model: a short decode as the float32 reference computed it.

They lie beside the packages, so that an engine can be judged on a machine that has neither the
checkpoint nor the time to run it: on a Mac, each time a part of the model moves to another
processor.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engine import Engine
from streamd.engine.check import Numerics, forward, numerics
from streamd.engine.coreml.built import Built
from streamd.engine.coreml.package import GOLDEN
from streamd.errors import ModelError
from streamd.types import Mel

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Golden:
    """What goes in, and what comes out: the arrays of `package.GOLDEN`."""

    mel: Mel
    tokens: NDArray[np.int64]
    logits: Array
    alignment: Array

    @property
    def n_ctx(self) -> int:
        """Positions of the encoder."""
        return int(self.mel.shape[1]) // 2


def golden_vectors(built: Built) -> Golden:
    """The golden vectors of a built model.

    Raises
    ------
    ModelError
        They are damaged.
    """
    try:
        with np.load(built.folder / GOLDEN) as file:
            return Golden(file["mel"], file["tokens"], file["logits"], file["alignment"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{built.folder / GOLDEN}: damaged ({error}); build it again: "
            "streamd models build NAME --engine coreml"
        ) from error


def against_golden(engine: Engine[Any], golden: Golden) -> Numerics:
    """Run the golden vectors through an engine; NaN stands where it computes one.

    Rounding to half precision is worth 1e-3 of the logits; what was rounded or compressed of the
    weights is in the golden vectors, too.
    """
    found = forward(engine, golden.mel, golden.tokens.tolist())
    return numerics((golden.logits, golden.alignment), found)
