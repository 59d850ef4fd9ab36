"""Finds a model by name, folder or file and loads it whole, or says in one line what is wrong.

A name is looked for among the files and folders at hand, the imported models, those downloaded from
the hub and the bundled one, in this order. What lies on the disk decides which reader of
`formats` gets it. Nothing is downloaded here: that is `download`'s, when the user wants it. Knows
nothing of engines.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from streamd.assets import asset
from streamd.disk import expanded
from streamd.engine.catalog import CATALOG, Size, entry, languages, quality, suits
from streamd.engine.model import Model
from streamd.engine.store import cache, imports
from streamd.engine.store.cache import StorePaths, places
from streamd.engine.store.layouts import layout_of
from streamd.engine.store.repository import Repository, repository_of
from streamd.errors import ModelError

BUNDLED = ("tiny.en",)
"""Models that ship with streamd."""


def load_model(name: str) -> Model:
    """Load a model by its name, or by its folder or file.

    A folder is Hugging Face's, CTranslate2's or MLX's; a file openai-whisper's or whisper.cpp's.
    Raises `ModelError` if there is no such model here, or its files are missing, damaged or of
    another architecture.
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


def find(name: str, here: StorePaths) -> Path | None:
    """The folder or file of a model, if it is on this machine."""
    path = expanded(name)
    # Unlike those of Path, these say no of a path that is too long or may not be looked at.
    if name and (os.path.isdir(path) or os.path.isfile(path)):
        return path
    repository = repository_of(name)
    downloaded = cache.find(here.cache, repository) if repository else None
    bundled = asset(name) if name in BUNDLED else None
    return imports.find(here.imported, name) or downloaded or bundled


def is_bundled(name: str, here: StorePaths) -> bool:
    """Whether that is what the name stands for; imported and downloaded models come before it."""
    return name in BUNDLED and find(name, here) == asset(name)


def best(here: StorePaths, *, language: str, translate: bool) -> str | None:
    """The model to use when none is named: the best one here that can do it, whoever made it.

    Of two that are alike, an imported one comes before a downloaded and a bundled one. Downloaded
    models are only those of the catalog: other programs put whatever they need into the cache.
    """
    candidates = (*_imported(here), *_downloaded(here), *_bundled())
    possible = [
        (quality(size, n_languages), name)
        for name, size, n_languages in candidates
        if suits(size, n_languages, language=language, translate=translate)
    ]
    return max(possible, key=itemgetter(0))[1] if possible else None


_Candidate = tuple[str, Size, int]
"""A model's name, its size, and how many languages it knows."""


def _imported(here: StorePaths) -> Iterator[_Candidate]:
    for name, path in imports.every(here.imported):
        with suppress(ModelError):
            outline = layout_of(path).outline(path)
            yield name, Size.of(outline), languages(outline)


def _downloaded(here: StorePaths) -> Iterator[_Candidate]:
    for each in CATALOG:
        if cache.find(here.cache, Repository(each.repository)):
            name = each.repository if imports.find(here.imported, each.name) else each.name
            yield name, each.size, each.n_languages


def _bundled() -> Iterator[_Candidate]:
    for each in CATALOG:
        if each.name in BUNDLED:
            yield each.name, each.size, each.n_languages


def _label(path: Path) -> str:
    """What a model is called whose folder or file was named."""
    if path.is_file():
        return path.stem
    folder = path.resolve()
    return cache.name_of(folder) or folder.name
