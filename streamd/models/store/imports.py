"""Imported models: for each a folder, in the one form that streamd reads.

What has another form when it is imported is read once and written anew. The folder remembers what
it was made from, so that a file that is named again is not read again.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamd.errors import ModelError, os_error_as
from streamd.models.formats import huggingface, own_form
from streamd.models.model import StoredWeights
from streamd.models.store import cache
from streamd.models.store.layouts import layout_of, opened
from streamd.system.disk import flush, locked

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
# Models cannot have these names.
_LOCK, _DECLINED, _HALF_DONE = ".lock", ".declined", ".half-done"
_SOURCE = ".source"
"""The file in a model's folder that says what it was made from."""


def find(models: Path, name: str) -> Path | None:
    """Return the folder of the model imported under that name, or None."""
    folder = models / name
    return folder if _NAME.fullmatch(name) and folder.is_dir() else None


def every(models: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of all imported models in alphabetical order."""
    for folder in sorted(models.glob("*")):
        if path := find(models, folder.name):
            yield folder.name, path


def add(models: Path, source: Path, name: str) -> Path:
    """Bring the model at `source` into the store under a name, and return its folder.

    Raises `ModelError` if the name is taken or invalid, the model is damaged or of another
    architecture, or it cannot be written; then no part of it is left.
    """
    if not _NAME.fullmatch(name):
        raise ModelError(
            f"{name!r} is not a valid name: use letters, digits, dots, dashes and underscores; "
            "streamd models import PATH NAME"
        )
    with _writing(models, source):
        return _add(models, source, name)


def imported(models: Path, source: Path, *, is_free: Callable[[str], bool]) -> str:
    """Return the name under which the model at `source` is imported, which is done if necessary.

    It is called after its file, unless that is taken or not `is_free`. Raises `ModelError` as
    `add` does.
    """
    about = _about(source)
    if found := _made_from(models, about):
        return found
    with _writing(models, source):
        if found := _made_from(models, about):  # by another process, meanwhile
            return found
        name = re.sub(r"[^\w.-]", "-", called(source), flags=re.ASCII)[:50].lstrip("._-") or "model"
        if not is_free(name) or os.path.lexists(models / name):
            name += f"-{hashlib.sha256(about).hexdigest()[:8]}"
        log.info("%s: reading it once; it is kept as %s in %s", source, name, models)
        _add(models, source, name)
        return name


def called(source: Path) -> str:
    """Return what a file or folder is called, or ``owner/name`` of a snapshot in a hub's cache.

    A symbolic link's own name counts: in that cache it leads to a file that is called by its hash.
    """
    path = Path(os.path.abspath(source))
    return (cache.name_of(path) or path.name) if path.is_dir() else path.stem


@contextmanager
def _writing(models: Path, source: Path) -> Iterator[None]:
    try:
        with locked(models / _LOCK, "importing a model"):
            yield
    except OSError as error:
        raise ModelError(
            f"{source} cannot be copied to {models} ({error.strerror or error})"
        ) from error


def _add(models: Path, source: Path, name: str) -> Path:
    folder = models / name
    if os.path.lexists(folder):
        raise ModelError(f"{name} is imported already; remove it first, or import as another name")
    with _filled(models, source) as half_done:
        half_done.rename(folder)
    return folder


@contextmanager
def _filled(models: Path, source: Path) -> Iterator[Path]:
    """Give a folder with the model in the one form, to be renamed in the block."""
    half_done = models / _HALF_DONE
    shutil.rmtree(half_done, ignore_errors=True)  # of a process that crashed
    half_done.mkdir()
    try:
        about = _about(source)
        _fill(half_done, source)
        if _about(source) != about:
            raise ModelError(f"{source} changed while it was read; try again when it is complete")
        (half_done / _SOURCE).write_bytes(about)
        for path in half_done.iterdir():
            flush(path)
        yield half_done
    finally:
        shutil.rmtree(half_done, ignore_errors=True)


def _fill(folder: Path, source: Path) -> None:
    layout = layout_of(source)
    with opened(source, called(source), layout) as model:
        assert isinstance(model.weights, StoredWeights)
        if layout is not huggingface:
            # Here, because the reader of a zip file would take it for damage of that.
            with os_error_as(ModelError, f"{folder} cannot be written"):
                own_form.write(folder, model, model.weights)
            return
        for weight in model.weights:
            model.weights[weight]  # raises if it is damaged
    for path in layout.files(source):
        shutil.copyfile(path, folder / path.name)


def _about(source: Path) -> bytes:
    """Return what tells a file or folder from others, and from itself after a change."""
    parts = [os.fsencode(source.resolve())]
    for path in sorted(layout_of(source).files(source)):
        with suppress(OSError):  # it is missing, which its reader says
            status = path.stat()
            parts.append(b"%d %d" % (status.st_size, status.st_mtime_ns))
    return b"\n".join(parts)


def _made_from(models: Path, about: bytes) -> str | None:
    for name, folder in every(models):
        with suppress(OSError):  # a folder that was put there by hand has no such file
            if (folder / _SOURCE).read_bytes() == about:
                return name
    return None


def remove(models: Path, name: str) -> None:
    """Delete an imported model. Raises `OSError`."""
    shutil.rmtree(models / name)


def was_declined(models: Path) -> bool:
    """Return whether the user declined to download a first model."""
    return (models / _DECLINED).exists()


def decline(models: Path) -> None:
    """Remember that the user declined, if the folder can be written."""
    with suppress(OSError):
        models.mkdir(parents=True, exist_ok=True)
        (models / _DECLINED).touch()
