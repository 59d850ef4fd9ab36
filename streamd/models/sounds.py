"""Where YAMNet is kept, and how it comes here: from Google, or from a file that somebody has.

Google publishes it for MediaPipe under the Apache licence 2.0, with the digest in MediaPipe's list
of files (third_party/external_files.bzl).
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from streamd.errors import ModelError, os_error_as
from streamd.models.store.cache import places
from streamd.system.disk import put_file

NAME = "sounds"
"""What it is called in ``streamd models get``."""
ADDRESS = (
    "https://storage.googleapis.com/mediapipe-assets/tasks/testdata/audio/"
    "yamnet_audio_classifier_with_metadata.tflite"
)
SHA256 = "10c95ea3eb9a7bb4cb8bddf6feb023250381008177ac162ce169694d05c317de"
LICENCE = "Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0"
ENDING = ".tflite"
_MOST_BYTES = 20 << 20
"""It has 4 MB, and as floats, as others export it, 15 MB."""
_HOST = ADDRESS.split("/")[2]


def kept_at(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the network is kept, whether it is here or not."""
    return places(environ).imported / ".sounds" / f"yamnet{ENDING}"


def network(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file of the network, or None if it is not on this machine."""
    path = kept_at(environ)
    return path if path.is_file() else None


def fetch() -> Path:
    """Download the network, and return where it is. Raises `ModelError`."""
    from streamd.models.store.download import content_at  # takes long to import

    content = b"".join(content_at(ADDRESS, places(), most=_MOST_BYTES))
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ModelError(f"{NAME}: {_HOST} sends another file than this release of streamd knows")
    return _put(content)


def keep(source: Path) -> Path:
    """Keep a copy of a network that somebody has. Raises `ModelError`."""
    with os_error_as(ModelError, f"{source}: cannot be read"):
        if source.stat().st_size > _MOST_BYTES:
            raise ModelError(f"{source}: larger than YAMNet")
        return _put(source.read_bytes())


def remove() -> None:
    """Delete the network. Raises `ModelError` if that is not possible."""
    if network() is None:
        raise ModelError(f"{NAME} is not here")
    with os_error_as(ModelError, f"{kept_at()}: cannot be removed"):
        kept_at().unlink()


def _put(content: bytes) -> Path:
    path = kept_at()
    with os_error_as(ModelError, f"{path}: cannot be written"):
        put_file(path, content)
    return path
