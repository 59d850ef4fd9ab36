"""Which model some files are, by their content, which is read only if the files are new.

Files that the kernel says are unchanged (place, inode, size, times) are; ``ctime`` cannot be set
back. What was changed within the last seconds may change again without a trace, and is read anew.
"""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from streamd.disk import put_file
from streamd.engine import ModelDimensions
from streamd.engine.store.layouts import layout_of

_SETTLED_NS = 2_000_000_000
"""Age from which a file's times tell it from an earlier state: coarse clocks tick each second."""
_SEEN = "seen"


class Known(msgspec.Struct, frozen=True):
    """What is known of some content: its digest, and the dimensions of the model in it."""

    digest: str
    dims: ModelDimensions | None = None


class Identity:
    """A model's files, and what the cache in `folder` remembers of them."""

    def __init__(self, path: Path, folder: Path) -> None:
        """`path`: the model's folder or file.

        Raises
        ------
        OSError, ModelError
            It cannot be read, or is no model.
        """
        self._path = path
        self._seen = folder / _SEEN
        self._stamp, self._settled = _stamp(path)
        known = _recall(self._seen / self._stamp)
        if known is None:
            digest = _digest(path)
            known = _recall(self._seen / digest) or Known(digest)
        self.known = known

    def remember(self, dims: ModelDimensions) -> bool:
        """Remember that the model in the files has these dimensions.

        Returns whether the files are still those that were identified: what was loaded from them
        since then is of that content.
        """
        if _stamp(self._path)[0] != self._stamp:
            return False
        self.known = Known(self.known.digest, dims)
        content = msgspec.json.encode(self.known)
        with suppress(OSError):  # then they are read again next time
            put_file(self._seen / self.known.digest, content)
            if self._settled:
                put_file(self._seen / self._stamp, content)
        return True


def called(name: str, path: Path) -> str:
    """What a model is called, and its files: what they do not say follows from it."""
    return f"{'' if Path(name).expanduser() == path else name} {path.resolve().name}"


def _files(path: Path) -> list[Path]:
    return sorted(layout_of(path).files(path))


def _stamp(path: Path) -> tuple[str, bool]:
    """A name for the state of the files, and whether a change would give another."""
    parts, newest = [str(path.resolve())], 0
    for file in _files(path):
        s = os.stat(file)
        newest = max(newest, s.st_ctime_ns, s.st_mtime_ns)
        state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        parts.append(f"{file.name} {state}")
    stamp = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"stamp-{stamp}", newest < time.time_ns() - _SETTLED_NS


def _digest(path: Path) -> str:
    """Of names and content; a single file's name does not count."""
    whole = hashlib.sha256()
    for file in _files(path):
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        whole.update(f"{'' if file == path else file.name} {digest}\n".encode())
    return whole.hexdigest()


def _recall(path: Path) -> Known | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError):
        return None
