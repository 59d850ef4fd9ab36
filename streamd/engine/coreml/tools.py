"""The coremltools library: imported on demand, without its chatter, or an error with the cure."""

import logging
from functools import cache
from types import ModuleType

from streamd.errors import ModelError

LIBRARY = "coremltools"
"""The library that there is for Core ML."""


@cache
def coremltools() -> ModuleType:
    """Import coremltools; that takes a second, so only what needs it calls this.

    Raises
    ------
    ModelError
        It is not installed.
    """
    # Off a Mac it logs a line for each part of Core ML that it misses; building needs none of them.
    logging.getLogger(LIBRARY).setLevel(logging.ERROR)
    try:
        import coremltools
    except ImportError as error:
        raise ModelError(
            "Core ML packages need coremltools, which is not here: pip install coremltools, "
            "with Python 3.11 to 3.13 on macOS or on Linux (x86_64)"
        ) from error
    module: ModuleType = coremltools
    return module
