"""How an engine on MLX computes. This module does not import MLX."""

from dataclasses import dataclass
from typing import Literal

Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an engine computes.

    `floats` are those of weights and of what is computed; None: float16 on a GPU, float32 on a CPU.
    With `bits`, the decoder's matrices are rounded to so many, in groups of 64, and the embeddings
    to 8. `pads`: whether arrays are padded to few shapes; None: on a GPU.
    """

    floats: Literal["float16", "float32"] | None = None
    bits: Bits | None = None
    pads: bool | None = None

    def __str__(self) -> str:
        return (self.floats or "float16") + (f", decoder in {self.bits} bits" if self.bits else "")


AUTO = Arithmetic()
