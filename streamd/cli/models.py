"""``streamd models``: what there is, what can be had; get, import and remove."""

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamd.assets import asset
from streamd.cli.choosing import best_here
from streamd.cli.downloading import download
from streamd.config import Config
from streamd.engine import store
from streamd.engine.catalog import CATALOG, Entry, entry, megabytes
from streamd.engine.store import cache, imports
from streamd.engine.store.download import look_up
from streamd.engine.store.places import Places, expanded, places
from streamd.engine.store.repository import repository_of
from streamd.errors import ModelError

log = logging.getLogger(__name__)

_HEAD = ("NAME", "SIZE", "LANGUAGES", "HERE", "FROM")
_WIDTHS = (16, 7, 9, 10)


def get(config: Config, name: str) -> None:
    """Download a model, or what of it is new or missing; what is here already is proved.

    Raises
    ------
    ModelError : no model has that name, or the download failed
    """
    here = places()
    if repository := repository_of(name):
        download(name, look_up(repository, here), here, config.output)
    elif store.find(name, here) is None:
        raise store.not_here(name)
    log.info("%s is here; use it with --model %s", name, name)


def add(path: str, name: str = "") -> None:
    """Copy a model from anywhere on this machine into the store, once the loader accepted it.

    Raises
    ------
    ModelError : it is no model, or the name is taken or none
    """
    source = expanded(path).resolve()
    if not os.path.exists(source):  # Path.exists raises for a name that is too long
        raise ModelError(f"{path}: no such file or folder")
    name = name or imports.default_name(source)
    if name in store.BUNDLED or entry(name):
        raise ModelError(f"{name} is another model's name; streamd models import PATH NAME")
    store.load_model(str(source))
    imports.add(places().imported, source, name)
    log.info("%s, %s, is imported; use it with --model %s", name, _size(source), name)


def remove(name: str) -> None:
    """Delete a downloaded or imported model from this machine.

    Raises
    ------
    ModelError : it is not here, not in the store, or cannot be deleted
    """
    try:
        size = _removed(name, places())
    except OSError as error:
        raise ModelError(f"{name} cannot be removed ({error.strerror or error})") from error
    log.info("removed %s, %s", name, size)


def _removed(name: str, here: Places) -> str:
    """How large it was."""
    if imported := imports.find(here.imported, name):
        size = _size(imported)
        imports.remove(here.imported, name)
    elif (repository := repository_of(name)) and cache.storage(here.cache, repository).exists():
        if repository.revision != "main":  # they share files
            raise ModelError(f"revisions go together; run: streamd models remove {repository.id}")
        size = megabytes(cache.n_bytes(here.cache, repository))
        cache.remove(here.cache, repository)
    elif store.find(name, here):
        raise ModelError(f"{name} is not in the store, so it is not streamd's to remove")
    else:
        raise ModelError(f"{name} is not here; streamd models list shows what is")
    return size


@dataclass(frozen=True, slots=True)
class Row:
    """A model as the list shows it; `default` if it is used when none is named."""

    name: str
    size: str
    languages: str
    state: str
    origin: str
    default: bool = False


def table(config: Config) -> str:
    """All models, those that are here first; a star marks what is used when none is named."""
    here = places()
    default = best_here(config, here) or store.BUNDLED[0]
    rows = sorted(_rows(here, default), key=lambda row: not row.state)
    lines = [
        f"  {_line(_HEAD)}",
        *(f"{'*' if r.default else ' '} {_line(_cells(r))}" for r in rows),
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (row.name, row.size, row.languages, row.state, row.origin)


def _line(cells: Iterable[str]) -> str:
    name, size, *others, origin = cells
    padded = (f"{cell:<{width}}" for cell, width in zip(others, _WIDTHS[2:], strict=True))
    return " ".join((f"{name:<{_WIDTHS[0]}}", f"{size:>{_WIDTHS[1]}}", *padded, origin))


def _rows(here: Places, default: str) -> Iterator[Row]:
    for name in store.BUNDLED:
        size = _size(asset(name))
        yield Row(name, size, "English", "bundled", "ships with streamd", name == default)
    for name, path in imports.every(here.imported):
        yield Row(name, _size(path), "", "imported", "", name == default)
    downloaded = {str(repository): snapshot for repository, snapshot in cache.whispers(here.cache)}
    for each in CATALOG:
        snapshot = downloaded.pop(each.repository, None)
        size = _size(snapshot) if snapshot else megabytes(each.n_bytes)
        state = "downloaded" if snapshot else ""
        languages = _languages(each)
        yield Row(each.name, size, languages, state, each.repository, each.name == default)
    for name, snapshot in downloaded.items():
        yield Row(name, _size(snapshot), "", "downloaded", here.host)


def _languages(each: Entry) -> str:
    return "English" if each.n_languages == 1 else str(each.n_languages)


def _size(model: Path) -> str:
    """Of what the loader reads."""
    try:
        return megabytes(sum(path.stat().st_size for path in imports.needed(model)))
    except ModelError:
        return "damaged"
