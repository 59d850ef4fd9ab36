"""What runs a model's encoder and decoder: an implementation of `streamd.whisper.engine.Engine`.

`onnx` is for the CPU, and the default; `mlx` for the GPUs of Apple and NVIDIA; `coreml` has the
Neural Engine of a Mac encode what one of these decodes. `supervised` runs what may crash in a
process of its own, and goes back to the CPU when it fails. `reference` is float32 numpy, with which
the builder of Core ML packages and the tests compare; it is too slow for captions. `prepared` makes
a model ready for `onnx`, once per machine. `silero` runs the voice detector, which is no Whisper
model. `families` runs models of other families, which have a `recognize` of their own.
"""

import os
from typing import Literal

# ONNX Runtime 1.32 otherwise reports to Microsoft, and keeps an identifier and a database in
# ~/.cache/Microsoft. It reads the variable while it is imported, when its own
# disable_telemetry_events() would come too late; Python runs this file before any module of the
# package that imports it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

Precision = Literal["float32", "int8"]
