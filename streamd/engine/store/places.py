"""Where models lie on this machine, and where they come from.

What was downloaded lies in the cache of huggingface_hub, which other programs share; what was
imported lies in a folder of our own. The variables are those of the `huggingface_hub`_, read here
because importing that library takes longer than all else that a start does before the model loads.

.. _huggingface_hub: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "STREAMD_STORE"
"""Names the folder of imported models."""
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class Places:
    """`imported`: our own folder; `cache`: the library's; `endpoint`: the hub's address.

    With `offline` nothing may be downloaded.
    """

    imported: Path
    cache: Path
    endpoint: str
    offline: bool

    @property
    def site(self) -> str:
        """The hub's address, for people: without the password that may stand in it."""
        return re.sub(r"//[^/]*@", "//", self.endpoint)

    @property
    def host(self) -> str:
        """The hub's name, for people."""
        return self.site.partition("://")[2].partition("/")[0] or self.site


def places(environ: Mapping[str, str] = os.environ) -> Places:
    """What the environment says."""
    home = _path(environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    home = _path(environ.get("HF_HOME", str(home)))
    cache = environ.get("HF_HUB_CACHE", environ.get("HUGGINGFACE_HUB_CACHE", str(home / "hub")))
    offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return Places(
        imported=_imported(environ),
        cache=_path(cache),
        endpoint=environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
        offline=offline.upper() in _TRUE,
    )


def _imported(environ: Mapping[str, str]) -> Path:
    if named := environ.get(VARIABLE):
        return _path(named)
    if sys.platform == "darwin":
        return _path("~/Library/Application Support/streamd/models")
    data = environ.get("XDG_DATA_HOME", "")
    # The XDG specification wants relative paths to be ignored.
    return (Path(data) if data.startswith("/") else _path("~/.local/share")) / "streamd" / "models"


def _path(text: str) -> Path:
    return expanded(os.path.expandvars(text))


def expanded(text: str) -> Path:
    """The path that a user wrote; `Path.expanduser` would raise for ``~`` and no user's name."""
    return Path(os.path.expanduser(text))
