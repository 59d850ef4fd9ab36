"""Whisper on ONNX Runtime's CPU provider.

`onnx_engine` is the engine for one window at a time, `slots` its cache, `batch` runs passes of
several windows of a recording at once, `sessions` opens and runs ONNX Runtime's sessions, and
`files` builds, saves and opens engines. `graphs` writes the graphs, by means of `builder` and
`proto`.
"""

from streamd.engines.onnx.files import (
    FILES,
    OPTIONAL,
    build,
    make_silence_states,
    open_folder,
    save,
)
from streamd.engines.onnx.onnx_engine import OnnxEngine

__all__ = ["FILES", "OPTIONAL", "OnnxEngine", "build", "make_silence_states", "open_folder", "save"]
