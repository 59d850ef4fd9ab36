"""Model files: their names, where they are, and how they are read.

`catalog` knows the names, `store` finds, downloads and removes the files, `formats` reads each kind
of them, and `model` checks what they say. `silence` is what stands for the silence after a sound.
"""

from streamd.models.dimensions import ModelDimensions, Weights

__all__ = ["ModelDimensions", "Weights"]
