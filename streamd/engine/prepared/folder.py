"""The folder for what can be made again: where it is, whether it is ours, how things get into it.

What lies there is believed, so it must be of nobody else's making.
"""

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "STREAMD_CACHE"
"""Names the folder."""
_NEW = ".new-"
_ABANDONED_S = 3600
"""What was begun so long ago is nobody's work any more."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder, made if need be; None if there can be none, or if others could write into it."""
    folder = _named(environ)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if is_ours(folder) else None
    except OSError:
        return None


def _named(environ: Mapping[str, str]) -> Path:
    if named := environ.get(VARIABLE):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/streamd").expanduser()
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification wants relative paths to be ignored.
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "streamd"


def is_ours(path: Path) -> bool:
    """Whether it belongs to the user who runs this, and only he can change it."""
    status = path.lstat()
    of_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not of_others and not stat.S_ISLNK(status.st_mode)


def put_file(path: Path, content: bytes) -> None:
    """Write a file, which appears whole or not at all.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(new, path)
    except OSError:
        Path(new).unlink(missing_ok=True)
        raise


def put_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Have `fill` write a folder's files; it appears with all of them or not at all.

    What is there of that name stays: another process was faster, and may be reading it. Whoever
    finds it damaged takes it away first (`discard`).

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=path.parent, prefix=_NEW))
    try:
        fill(new)
        for entry in new.rglob("*"):
            _on_disk(entry)
        new.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def discard(path: Path) -> None:
    """Take a folder away at once: nobody sees a part of it."""
    if path.exists():
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=_NEW))
        with suppress(OSError):  # another process does the same
            path.rename(old / path.name)
        shutil.rmtree(old, ignore_errors=True)


def prune(folder: Path, *, keep: Path, max_bytes: int) -> None:
    """Of the folders in `folder` take away those not used for longest, beyond `max_bytes`.

    `keep` stays, whatever its size. Also removes what crashed processes left behind.
    """
    used: list[tuple[float, int, Path]] = []
    for entry in list(folder.iterdir()):
        with suppress(OSError):  # others may be at it, too
            age_s = time.time() - entry.stat().st_mtime
            if entry.name.startswith(_NEW):
                if age_s > _ABANDONED_S:
                    shutil.rmtree(entry, ignore_errors=True)
            elif entry != keep:
                used.append((age_s, _n_bytes(entry), entry))
    n_bytes = _n_bytes(keep)
    for _, size, entry in sorted(used):
        n_bytes += size
        if n_bytes > max_bytes:
            discard(entry)


def _n_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())


def _on_disk(entry: Path) -> None:
    """Wait until the content has reached the disk: a crash must not leave a file of zeros."""
    descriptor = os.open(entry, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
