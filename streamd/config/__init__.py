"""The configuration: every option once, from wherever it is set, checked and frozen.

`table` says which options there are, from the dataclasses of `streamd.options`, and how their
values are written. `loading` reads them from the command line, the environment and a TOML file. The
daemon hands each part its own dataclass of the `Config`; no part sees the whole.
"""

from streamd.config.loading import (
    SET,
    as_toml,
    has_several_tokens,
    load,
    of_options,
    read_token,
    read_tokens,
    value_of,
    without_source,
)
from streamd.config.removed import refuse_old
from streamd.config.table import OPTIONS, SECTIONS, SETTINGS, Config, suggestion

__all__ = [
    "OPTIONS",
    "SECTIONS",
    "SET",
    "SETTINGS",
    "Config",
    "as_toml",
    "has_several_tokens",
    "load",
    "of_options",
    "read_token",
    "read_tokens",
    "refuse_old",
    "suggestion",
    "value_of",
    "without_source",
]
