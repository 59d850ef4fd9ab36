"""The configuration: every option once, from wherever it is set, checked and frozen.

The daemon hands each part its own dataclass of the `Config`; no part sees the whole.
"""

from streamd.config.load import SET, as_toml, load, of_options, read_token, value_of
from streamd.config.option import Option, suggestion
from streamd.config.table import COMMON, OPTIONS, SECTIONS, SETTINGS, Config, successor

__all__ = [
    "COMMON",
    "OPTIONS",
    "SECTIONS",
    "SET",
    "SETTINGS",
    "Config",
    "Option",
    "as_toml",
    "load",
    "of_options",
    "read_token",
    "successor",
    "suggestion",
    "value_of",
]
