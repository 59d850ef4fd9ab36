"""The configuration: every option once, from wherever it is set, checked and frozen.

Whoever wires the stations reads a `Config` and hands each one the numbers that it needs; no
station sees a `Config`.
"""

from streamd.config.decoding import Decoding
from streamd.config.load import OPTIONS, as_toml, load, read_token
from streamd.config.option import Option, suggestion
from streamd.config.output import Output
from streamd.config.schema import (
    Config,
    Input,
    Streaming,
    Vad,
)
from streamd.config.serving import Server

__all__ = [
    "OPTIONS",
    "Config",
    "Decoding",
    "Input",
    "Option",
    "Output",
    "Server",
    "Streaming",
    "Vad",
    "as_toml",
    "load",
    "read_token",
    "suggestion",
]
