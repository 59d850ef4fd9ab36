"""Finds a model by name, folder or file and loads it whole, or says in one line what is wrong.

A name is looked for among the files and folders at hand, the imported models, those downloaded from
the hub and the bundled one, in this order. What lies on the disk decides which reader of
`formats` gets it. Nothing is downloaded here: that is `download`'s, when the user wants it. Knows
nothing of engines.
"""

import os
from dataclasses import replace
from pathlib import Path

from streamd.assets import asset
from streamd.engine.catalog import CATALOG, entry, suits
from streamd.engine.model import Model
from streamd.engine.store import cache, imports
from streamd.engine.store.layouts import layout_of
from streamd.engine.store.places import Places, expanded, places
from streamd.engine.store.repository import Repository, repository_of
from streamd.errors import ModelError

BUNDLED = ("tiny.en",)
"""Models that ship with streamd."""


def load_model(name: str) -> Model:
    """Load a model by its name, or by its folder or file.

    A folder is Hugging Face's, CTranslate2's or MLX's; a file openai-whisper's or whisper.cpp's.

    Raises
    ------
    ModelError
        There is no such model here, or its files are missing, damaged or of another architecture.
    """
    path = find(name, places())
    if path is None:
        raise not_here(name)
    label = name if path != expanded(name) else _label(path)
    model = layout_of(path).load(path, label)
    known = entry(name)
    if known and known.min_audio_ctx:
        return replace(model, min_audio_ctx=known.min_audio_ctx)
    return model


def not_here(name: str) -> ModelError:
    """What to say of a name under which no model is on this machine."""
    if repository_of(name):
        return ModelError(f"model {name} is not downloaded; run: streamd models get {name}")
    return ModelError(
        f"model {name!r} not found: name a model's folder or file, owner/name on the hub, or one "
        "that streamd models list shows"
    )


def find(name: str, here: Places) -> Path | None:
    """The folder or file of a model, if it is on this machine."""
    path = expanded(name)
    # Unlike those of Path, these say no of a path that is too long or may not be looked at.
    if name and (os.path.isdir(path) or os.path.isfile(path)):
        return path
    repository = repository_of(name)
    downloaded = cache.find(here.cache, repository) if repository else None
    bundled = asset(name) if name in BUNDLED else None
    return imports.find(here.imported, name) or downloaded or bundled


def best(here: Places, *, language: str, translate: bool) -> str | None:
    """The model to use when none is named: the catalog's first that is here and can do it.

    Without one, the first of the imported models; None where nothing was imported either.
    """
    for each in CATALOG:
        possible = suits(each, language=language, translate=translate)
        if possible and cache.find(here.cache, Repository(each.repository)):
            return each.name
    return next((name for name, _ in imports.every(here.imported)), None)


def _label(path: Path) -> str:
    """What a model is called whose folder or file was named."""
    if path.is_file():
        return path.stem
    folder = path.resolve()
    return cache.name_of(folder) or folder.name
