"""The files that ship with the code, the user's folders, and how they are written: whole or not.

Source of the user's folders: the XDG base directory specification; on macOS, Apple's file system
programming guide.
"""

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from streamd.errors import StreamdError

log = logging.getLogger(__name__)

CACHE_VARIABLE = "STREAMD_CACHE"
"""The environment variable with the cache folder."""
_XDG = {
    "cache": ("XDG_CACHE_HOME", "~/.cache"),
    "data": ("XDG_DATA_HOME", "~/.local/share"),
    "state": ("XDG_STATE_HOME", "~/.local/state"),
}
_MACOS = {"cache": "~/Library/Caches", "data": "~/Library/Application Support"}
_NEW = ".new-"
"""Prefix of files and folders that are still being written."""
_SPARE_BYTES, _SPARE_SHARE = 64 << 20, 20
"""What stays free on a disk, or of a small one a twentieth: the finals of twelve sessions take as
much in almost two hours."""
_ABANDONED_S = 3600
"""Age from which such a file or folder is taken for a remnant of a crashed process."""

_IN_CHECKOUT = {
    "tiny.en": "models/tiny.en",
    "smart-turn": "models/smart-turn",
    "community-1": "models/community-1",
    "golden": "tests/golden",
    "speech": "tests/speech",
    "web": "clients/web",
}
"""Asset -> folder in the repository; in the wheel it is ``streamd/_<asset>`` (pyproject.toml)."""


def asset(name: str) -> Path:
    """Return the folder of a bundled asset; `name` is a key of `_IN_CHECKOUT`.

    Raises `StreamdError` if the installation lacks it.
    """
    package = Path(__file__).parents[1]
    for folder in (package / f"_{name}", package.parent / _IN_CHECKOUT[name]):
        if folder.is_dir():
            return folder
    raise StreamdError(f"this installation lacks the bundled {name} files: install streamd again")


def user_folder(
    kind: Literal["cache", "data", "state"], environ: Mapping[str, str] = os.environ
) -> Path:
    """Return the folder for streamd's files of this kind; it need not exist."""
    if sys.platform == "darwin" and kind in _MACOS:
        return expanded(_MACOS[kind]) / "streamd"
    variable, default = _XDG[kind]
    base = environ.get(variable, "")
    # The XDG specification demands that relative paths be ignored.
    return (Path(base) if base.startswith("/") else expanded(default)) / "streamd"


def expanded(text: str) -> Path:
    """Return the path that a user wrote, without raising where ``~`` names no user."""
    return Path(os.path.expanduser(text))


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the cache folder and create it if necessary.

    Returns None if it cannot be created or if other users may write to it: streamd trusts what it
    finds there.
    """
    named = environ.get(CACHE_VARIABLE)
    folder = expanded(named) if named else user_folder("cache", environ)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if is_ours(folder) else None
    except OSError:
        return None


def is_ours(path: Path) -> bool:
    """Return whether `path` is no link, belongs to this user, and only this user can change it."""
    status = path.lstat()
    of_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not of_others and not stat.S_ISLNK(status.st_mode)


def warn_of_writers(option: str, folder: Path) -> None:
    """Log that other users may write into the folder of an option, if it exists and they may."""
    with suppress(OSError):
        if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            cure = f"chmod go-w {shlex.quote(str(folder))}"
            log.warning("%s: others may write into %s; forbid it: %s", option, folder, cure)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write all of it to a file, which may take more than one call; raises `OSError`."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def is_nearly_full(folder: Path) -> bool:
    """Return whether the disk of a folder, which need not exist yet, has room only for what runs.

    Raises `OSError`.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    return usage.free < min(_SPARE_BYTES, usage.total // _SPARE_SHARE)


def put_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write or replace a file, completely or not at all. Raises `OSError` if that fails."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        os.replace(new, path)
    except OSError:
        Path(new).unlink(missing_ok=True)
        raise


def put_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write the files of a folder, which appears with all of them or not at all.

    An existing folder is left as it is, since another process may be reading it; `discard` it first
    if it is damaged. Raises `OSError` if the folder cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=path.parent, prefix=_NEW))
    try:
        fill(new)
        for file in new.rglob("*"):
            flush(file)
        new.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file's content is on the disk.

    Without that, a power failure after a rename may leave the name with a content of zeros.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def force(descriptor: int) -> None:
    """Wait until an open file is on the disk; on macOS, fsync lets it stay in the disk's cache."""
    if sys.platform == "darwin":
        with suppress(OSError):  # a file system that cannot do it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def discard(path: Path) -> None:
    """Remove a folder in one step, so that no process sees a part of it."""
    if path.exists():
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=_NEW))
        with suppress(OSError):  # another process is removing it, too
            path.rename(old / path.name)
        shutil.rmtree(old, ignore_errors=True)


def prune(folder: Path, *, keep: Path, max_bytes: int) -> None:
    """Remove the least recently used folders in `folder` until `max_bytes` are left.

    `keep` stays, whatever its size. Remnants of crashed processes are removed as well.
    """
    used: list[tuple[float, int, Path]] = []
    for entry in list(folder.iterdir()):
        with suppress(OSError):  # another process may be removing it
            age_s = time.time() - entry.stat().st_mtime
            if entry.name.startswith(_NEW):
                if age_s > _ABANDONED_S:
                    shutil.rmtree(entry, ignore_errors=True)
            elif entry != keep:
                used.append((age_s, size_of(entry), entry))
    n_bytes = size_of(keep)
    for _, size, entry in sorted(used):
        n_bytes += size
        if n_bytes > max_bytes:
            discard(entry)


def sha256(path: Path) -> bytes:
    """Return a file's SHA-256. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def size_of(folder: Path) -> int:
    """Return how many bytes the files in a folder have, without the overhead of the disk."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def megabytes(n_bytes: int) -> str:
    """Return a size for people: ``75 MB``, ``1.62 GB``."""
    if n_bytes >= 999_500_000:
        return f"{n_bytes / 1e9:.2f} GB"
    return f"{n_bytes / 1e6:.{1 if n_bytes < 9_950_000 else 0}f} MB"


def lock_file(path: Path, *, wait: bool = False) -> int:
    """Lock a file, which is created if necessary and stays.

    Returns a descriptor; the lock ends when it is closed. Raises `BlockingIOError` if another
    process has the lock and `wait` is false, `OSError` if the file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(path: Path, activity: str) -> Iterator[None]:
    """Hold the lock of the file `path` inside the block; wait for it if necessary.

    `activity` is what the log says that the other process is doing. Raises `OSError` if the file
    cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = lock_file(path)
    except BlockingIOError:
        log.info("another process is %s; waiting for it", activity)
        descriptor = lock_file(path, wait=True)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def in_utf8(path: Path) -> Iterator[str]:
    """Give a name of the file that is text, for libraries that take no other bytes.

    Its folder may be called anything, as old home folders are. Linux has another name for each open
    folder; on macOS, all names are UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            yield f"/proc/self/fd/{folder}/{path.name}"
        finally:
            os.close(folder)
    else:
        yield str(path)
