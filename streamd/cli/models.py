"""``streamd models``: lists, downloads, imports and removes models."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streamd.assets import asset
from streamd.cli.choosing import best_here, download
from streamd.config import Config
from streamd.disk import expanded, megabytes
from streamd.engine import store
from streamd.engine.catalog import CATALOG, entry, languages
from streamd.engine.model import Outline
from streamd.engine.store import cache, imports
from streamd.engine.store.cache import StorePaths, places
from streamd.engine.store.download import look_up
from streamd.engine.store.layouts import layout_of
from streamd.engine.store.repository import repository_of
from streamd.errors import ModelError

log = logging.getLogger(__name__)


def get(config: Config, name: str) -> None:
    """Download a model's missing or changed files, and verify the others.

    Raises `ModelError` if no model has that name, or the download fails.
    """
    here = places()
    repository = repository_of(name)
    if repository and imports.find(here.imported, name):
        raise ModelError(f"{name} is imported; streamd models get {repository} downloads that one")
    if repository:
        download(name, look_up(repository, here), here, config.output)
    elif store.find(name, here) is None:
        raise store.not_here(name)
    log.info("%s is here; use it with --model %s", name, name)


def add(config: Config, path: str, name: str = "") -> None:
    """Copy a model on this machine into the store after loading it as a check.

    Raises `ModelError` if it is no model, or the name is taken or invalid.
    """
    source = expanded(path).resolve()
    if not os.path.exists(source):  # Path.exists raises for a name that is too long
        raise ModelError(f"{path}: no such file or folder")
    name = name or (source.name if source.is_dir() else source.stem)
    store.load_model(str(source))
    imports.add(places().imported, source, name)
    log.info("%s, %s, is imported; use it with --model %s", name, _size(source), name)
    if other := entry(name):
        log.info("%s means this one from now on; the hub's is %s", name, other.repository)


def remove(config: Config, name: str) -> None:
    """Delete a downloaded or imported model.

    Raises `ModelError` if it is not here, not in the store, or cannot be deleted.
    """
    here, repository = places(), repository_of(name)
    try:
        if imported := imports.find(here.imported, name):
            size = _size(imported)
            imports.remove(here.imported, name)
        elif repository and cache.storage(here.cache, repository).exists():
            if repository.revision != "main":  # they share files
                command = f"streamd models remove {repository.id}"
                raise ModelError(f"revisions go together; run: {command}")
            size = megabytes(cache.n_bytes(here.cache, repository))
            cache.remove(here.cache, repository)
        elif store.find(name, here):
            raise ModelError(f"{name} is not in the store, so it is not streamd's to remove")
        else:
            raise ModelError(f"{name} is not here; streamd models list shows what is")
    except OSError as error:
        raise ModelError(f"{name} cannot be removed ({error.strerror or error})") from error
    log.info("removed %s, %s", name, size)


class Row(NamedTuple):
    """A line of the list."""

    name: str
    size: str
    languages: str
    state: str
    origin: str


def table(config: Config) -> Iterator[str]:
    """Yield the lines of the list, the models that are here first, with a star at the default."""
    here = places()
    default = best_here(config, here) or store.BUNDLED[0]
    rows = sorted(_rows(here), key=lambda row: not row.state)
    for row in (Row("NAME", "SIZE", "LANGUAGES", "HERE", "FROM"), *rows):
        star = "*" if row.name == default else " "
        cells = f"{row.name:16} {row.size:>7} {row.languages:9} {row.state:10} {row.origin}"
        yield f"{star} {cells}".rstrip()


def _rows(here: StorePaths) -> Iterator[Row]:
    """Yield each name once, for the model that `find` returns for it."""
    imported = dict(imports.every(here.imported))
    downloaded = {str(repository): snapshot for repository, snapshot in cache.whispers(here.cache)}
    for name in store.BUNDLED:
        listed = entry(name)
        if name not in imported and not (listed and listed.repository in downloaded):
            files = asset(name)
            yield Row(name, _size(files), _known(files), "bundled", "ships with streamd")
    for name, files in imported.items():
        yield Row(name, _size(files), _known(files), "imported", "")
    for each in CATALOG:
        n_languages, origin = _languages(each.outline), each.repository
        if path := downloaded.pop(origin, None):
            name = origin if each.name in imported else each.name
            yield Row(name, _size(path), n_languages, "downloaded", origin)
        elif each.name not in {*imported, *store.BUNDLED}:
            yield Row(each.name, megabytes(each.n_bytes), n_languages, "", origin)
    for name, files in downloaded.items():
        yield Row(name, _size(files), _known(files), "downloaded", here.host)


def _known(model: Path) -> str:
    """Return the languages of a model on this machine, or nothing if it is damaged."""
    try:
        return _languages(layout_of(model).outline(model))
    except ModelError:
        return ""


def _languages(outline: Outline) -> str:
    n_languages = languages(outline)
    return "English" if n_languages == 1 else str(n_languages)


def _size(model: Path) -> str:
    """Return the size of the files that the loader reads."""
    try:
        return megabytes(sum(path.stat().st_size for path in layout_of(model).files(model)))
    except (ModelError, OSError):  # OSError: one of the files is gone
        return "damaged"
