"""Where models lie on this machine, and where they come from.

What was downloaded lies in the cache of huggingface_hub, which other programs share; what was
imported lies in a folder of our own. The layout and the variables are those that `huggingface_hub`_
documents; the tests compare them with the package itself.

.. _huggingface_hub: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamd.disk import expanded, user_folder
from streamd.errors import ModelError

VARIABLE = "STREAMD_STORE"
"""Names the folder of imported models."""
_TRUE = {"1", "ON", "YES", "TRUE"}
_TIMEOUT_S = 10


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
    cache = environ.get("HUGGINGFACE_HUB_CACHE", str(_home(environ) / "hub"))
    cache = environ.get("HF_HUB_CACHE", cache)
    offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return Places(
        imported=_imported(environ),
        cache=_path(cache),
        endpoint=environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
        offline=_is_true(offline),
    )


def access_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the user's token for the hub: that of the environment, or of ``hf auth login``.

    Raises
    ------
    ModelError
        The file of ``hf auth login`` cannot be read.
    """
    if _is_true(environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")):
        return None
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if token := _one_line(token):
        return token
    path = _path(environ.get("HF_TOKEN_PATH", str(_home(environ) / "token")))
    try:
        return _one_line(path.read_text(errors="replace")) or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def _one_line(text: str) -> str:
    return text.replace("\n", "").replace("\r", "").strip()


def timeout_s(environ: Mapping[str, str] = os.environ) -> int:
    """Return for how many seconds the hub may be silent.

    Raises
    ------
    ModelError
        HF_HUB_DOWNLOAD_TIMEOUT is not a number.
    """
    text = environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    try:
        return int(text or _TIMEOUT_S) or _TIMEOUT_S
    except ValueError as error:
        raise ModelError(f"HF_HUB_DOWNLOAD_TIMEOUT={text}: not a number of seconds") from error


def _home(environ: Mapping[str, str]) -> Path:
    default = _path(environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return _path(environ.get("HF_HOME", str(default)))


def _is_true(text: str) -> bool:
    return text.upper() in _TRUE


def _imported(environ: Mapping[str, str]) -> Path:
    if named := environ.get(VARIABLE):
        return _path(named)
    return user_folder("data", environ) / "models"


def _path(text: str) -> Path:
    return expanded(os.path.expandvars(text))
