"""Imported models: for each a folder with copies of the files that the loader reads."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from streamd.errors import ModelError
from streamd.models.store.layouts import layout_of
from streamd.system.disk import flush, locked

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
# Models cannot have these names.
_LOCK, _DECLINED, _HALF_DONE = ".lock", ".declined", ".half-done"


def find(models: Path, name: str) -> Path | None:
    """Return the folder or the only file of the model imported under that name, or None."""
    folder = models / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        return None
    files = [path for path in folder.glob("[!.]*") if path.is_file()]
    return files[0] if len(files) == 1 else folder


def every(models: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of all imported models in alphabetical order."""
    for folder in sorted(models.glob("*")):
        if path := find(models, folder.name):
            yield folder.name, path


def add(models: Path, source: Path, name: str) -> None:
    """Copy the model at `source`, which the loader has accepted.

    Raises `ModelError` if the name is taken or invalid, or if the copy cannot be written; then no
    part of it is left.
    """
    if not _NAME.fullmatch(name):
        raise ModelError(
            f"{name!r} is not a valid name: use letters, digits, dots, dashes and underscores; "
            "streamd models import PATH NAME"
        )
    try:
        with locked(models / _LOCK, "importing a model"):
            folder, half_done = models / name, models / _HALF_DONE
            if os.path.lexists(folder):
                raise ModelError(
                    f"{name} is imported already; remove it first, or import as another name"
                )
            shutil.rmtree(half_done, ignore_errors=True)  # of a process that crashed
            half_done.mkdir()
            try:
                for path in layout_of(source).files(source):
                    copy = half_done / path.name.lstrip(".")
                    shutil.copyfile(path, copy)
                    flush(copy)
                half_done.rename(folder)
            finally:
                shutil.rmtree(half_done, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"{source} cannot be copied to {models} ({error.strerror or error})"
        ) from error


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
