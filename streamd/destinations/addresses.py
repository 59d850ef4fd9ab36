"""What ``--to`` names, and the destination that it means."""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from streamd.destinations.delivery import Destination
from streamd.destinations.hls import Hls
from streamd.destinations.ingestion import YouTube, YouTubePosts, Zoom
from streamd.destinations.obs import PASSWORD_VARIABLE, Obs, address_of
from streamd.destinations.webhook import SECRET_VARIABLE, Webhook, key_of
from streamd.errors import ConfigError, os_error_as
from streamd.options import CueLayout

log = logging.getLogger(__name__)


def opened(
    to: str,
    layout: CueLayout,
    names: Mapping[int, str],
    environ: Mapping[str, str] = os.environ,
) -> Callable[[], Destination[Any]]:
    """Return what makes the destination that `to` means, for each session; nothing is connected.

    Its passwords are in variables of `environ`, where no list of processes shows them. `layout` and
    `names` are those of cues and of speakers. Raises `ConfigError` if it cannot be.
    """
    kind, _, address = to.partition(":")
    if kind == "obs":
        return partial(Obs, address_of(address), environ.get(PASSWORD_VARIABLE, ""), names)
    if kind == "hls":
        return partial(Hls, _folder(address), layout, names)
    _check(kind, address)
    if kind == "youtube":
        return partial(YouTube, address, layout, names, YouTubePosts())
    if kind == "zoom":
        return partial(Zoom, address, layout, names)
    secret = environ.get(SECRET_VARIABLE, "").strip()
    if not secret:
        log.warning("--to webhook: not signed, since %s is not set", SECRET_VARIABLE)
    return partial(Webhook, address, key_of(secret) if secret else None)


def _check(kind: str, url: str) -> None:
    """Raise `ConfigError` without the address, which has a key."""
    try:
        parsed = urlsplit(url)
        is_good = bool(parsed.hostname) and (parsed.port is None or parsed.port > 0)
    except ValueError:
        is_good = False
    if not is_good or url != url.strip() or " " in url:
        raise ConfigError(f"--to {kind}: the address has no host, or characters that none has")


def _folder(name: str) -> Path:
    folder = Path(name).expanduser()
    with os_error_as(ConfigError, f"--to hls: {folder} cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--to hls: {folder} cannot be written")
    return folder
