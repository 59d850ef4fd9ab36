"""Finds and loads a model by name or folder.

A name is looked for among files and folders, the imported models, those downloaded from the hub and
the bundled one, in this order.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from streamd.errors import ModelError
from streamd.models.catalog import CATALOG, entry, quality, suits
from streamd.models.families import FAMILY_MODELS, has_library, suits_family
from streamd.models.formats import gguf, huggingface
from streamd.models.model import Model, Outline
from streamd.models.store import cache, imports
from streamd.models.store.cache import Repository, StorePaths, places, repository_of
from streamd.models.store.layouts import layout_of, opened, outline
from streamd.options import ModelOptions
from streamd.system.disk import asset, expanded

BUNDLED = ("tiny.en",)
"""Models that ship with streamd."""


def load_model(name: str) -> Model:
    """Load a model by its name or folder.

    Raises `ModelError` if there is no such model here, it has to be imported, or its files are
    missing, damaged or of another architecture.
    """
    with opened_model(name) as model:
        return replace(model, weights=dict(model.weights))


def opened_model(name: str) -> AbstractContextManager[Model]:
    """Open a model as `load_model` does, but read each of its weights when it is asked for.

    Raises `ModelError` as `load_model` does, on entering the block or in it.
    """
    return opened(*_place(name))


def _place(name: str) -> tuple[Path, str]:
    """Return where a model is, and what to call it. Raises `ModelError` if it is not here."""
    path = find(name, places())
    if path is None:
        raise not_here(name)
    label = name
    if path == expanded(name):
        folder = path.resolve()
        label = cache.name_of(folder) or folder.name
    return path, label


def not_here(name: str) -> ModelError:
    """Return the error for a name that no model on this machine has."""
    if repository_of(name):
        return ModelError(f"model {name} is not downloaded; run: streamd models get {name}")
    known = [each.name for each in CATALOG] + [each.name for each in FAMILY_MODELS]
    if close := get_close_matches(name.removeprefix("whisper-"), known, n=1):
        return ModelError(f"model {name!r} not found; did you mean {close[0]}?")
    return ModelError(
        f"model {name!r} not found: name a model's folder or file, owner/name on the hub, or one "
        "that streamd models list shows"
    )


def find(name: str, here: StorePaths) -> Path | None:
    """Return the folder or file of a model, or None if it is not on this machine."""
    path = expanded(name)
    # Unlike Path's methods, these do not raise for a path that is too long or not accessible.
    if name and (os.path.isdir(path) or os.path.isfile(path)):
        return path
    repository = repository_of(name)
    downloaded = cache.find(here.cache, repository) if repository else None
    bundled = asset(name) if name in BUNDLED else None
    return imports.find(here.imported, name) or downloaded or bundled


def told(name: str) -> str:
    """Return the name by which clients know a model: of a path, only its last part."""
    path = expanded(name)
    return path.name if os.path.exists(path) else name


def is_family(name: str, here: StorePaths) -> bool:
    """Return whether a name means a model of another family than Whisper that is here: a GGUF file.

    Raises `ModelError` if it is one, but damaged or no model of speech.
    """
    path = find(name, here)
    if path is None or not path.is_file() or not gguf.is_one(path):
        return False
    gguf.speech_family(path)
    return True


def in_one_form(name: str, here: StorePaths) -> str:
    """Return a model's name, or if it is a file or folder of another form, that of its import.

    It is imported if it was not yet. Raises `ModelError` if that is not possible.
    """
    found = find(name, here)
    if not name or not found or is_family(name, here) or layout_of(found) is huggingface:
        return name
    return imports.imported(here.imported, found.absolute(), is_free=lambda each: not entry(each))


def known_language(name: str) -> str | None:
    """Return the one language that a model knows, by its files without the weights.

    It is None if the model knows several, or is not here or damaged, which `load_model` reports.
    """
    with suppress(OSError, ModelError):
        if path := find(name, places()):
            if is_family(name, places()):
                known = gguf.read_header(path).languages
                return known[0] if len(known) == 1 else None
            return outline(path).language
    return None


def is_bundled(name: str, here: StorePaths) -> bool:
    """Return whether the name means a bundled model, not an imported or downloaded one."""
    return name in BUNDLED and find(name, here) == asset(name)


def best(
    here: StorePaths,
    wanted: ModelOptions,
    *,
    keeps_up: Callable[[Outline], bool] = lambda outline: True,
    among: Callable[[str, Outline], bool] = lambda name, outline: True,
) -> str | None:
    """Return the name of the best model on this machine that can do the task, or None.

    It is the best one `among` them that `keeps_up`, or else the smallest. Of two equal ones, an
    imported one is preferred to a downloaded and a bundled one. Downloaded models that are not in
    the catalog are ignored: other programs share the cache.
    """
    possible = [each for each in installed(here) if suits(each[1], wanted) and among(*each)]
    while possible:
        name, outline = max(possible, key=lambda each: quality(each[1]))
        smaller = [each for each in possible if quality(each[1]) < quality(outline)]
        if not smaller or keeps_up(outline):
            return name
        possible = smaller
    return None


def best_family(
    here: StorePaths, wanted: ModelOptions, most_wrong: float, *, keeps_up: Callable[[str], bool]
) -> str | None:
    """Return the best model made for streaming that is here and has fewer errors than `most_wrong`.

    `keeps_up` is asked about the size of Whisper that costs as much.
    """
    possible = (
        each
        for each in FAMILY_MODELS
        if each.streams and each.wer < most_wrong and suits_family(each, wanted)
    )
    present = (each for each in possible if has_library() and find(each.name, here))
    return next((each.name for each in present if keeps_up(each.like)), None)


def installed(here: StorePaths) -> Iterator[tuple[str, Outline]]:
    """Yield names and outlines of all Whispers that are here, the preferred ones first."""
    for name, path in imports.every(here.imported):
        with suppress(ModelError):
            yield name, layout_of(path).outline(path)
    for each in CATALOG:
        if cache.find(here.cache, Repository(each.repository)):
            name = each.repository if imports.find(here.imported, each.name) else each.name
            yield name, each.outline
    for each in CATALOG:
        if each.name in BUNDLED:
            yield each.name, each.outline
