"""Whisper on MLX: one engine for Apple's GPUs and NVIDIA's, whose code runs on a CPU in the tests.

`mlx_engine` is the engine, `layers` what it consists of, `device` what depends on the GPU.
Nothing is compiled with `mx.compile`: on a CPU that loads libraries from a temporary folder to
which other users may write, and on a GPU it keeps a program for each shape.
"""

import os

# MLX's CUDA back end keeps plans by the shapes of arrays, and raises an error after too many.
# There are few shapes (`device.padded`), but nobody's captions should end if there are more. MLX
# reads the variable when it first computes; Python runs this file before what imports MLX.
os.environ.setdefault("MLX_ENABLE_CACHE_THRASHING_CHECK", "0")
