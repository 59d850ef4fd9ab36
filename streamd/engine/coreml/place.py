"""Where built models lie in the cache folder, and how they get there.

The place follows from the content of the model's files and from the code that builds, so what is
found there is what building now would give. A model that was built before by other code goes.
"""

import hashlib
from functools import cache
from pathlib import Path

from streamd.disk import CACHE_VARIABLE, cache_folder, discard, prune, put_folder
from streamd.engine.coreml.build import Plan, Told, write
from streamd.engine.coreml.built import Built, open_built
from streamd.engine.coreml.package import META
from streamd.engine.prepared.identity import Identity, called
from streamd.engine.store import find, load_model
from streamd.engine.store.cache import places
from streamd.errors import ModelError

_FOLDER = "coreml"
_BUILDERS = (
    *("attention", "build", "compress", "decoder", "encoder", "held", "layers", "layout"),
    *("package", "program"),
)
"""Modules that decide what is built."""


def built_model(name: str) -> Built | None:
    """What was built of the model of that name, path or file; None if nothing was.

    Raises
    ------
    ModelError
        It is damaged.
    """
    place = _place(name)
    return open_built(place) if place and (place / META).exists() else None


def build_model(name: str, plan: Plan, told: Told, *, to: Path | None = None) -> Built:
    """Build the model, in the cache or in a new folder `to`; what breaks off leaves nothing behind.

    What was built of it before is in use until the new one is complete.

    Raises
    ------
    ModelError
        There is no such model, it cannot be built, or not be written.
    """
    place = to or _place(name)
    model = load_model(name)
    if place is None:
        raise ModelError(
            f"there is no cache folder; name one with {CACHE_VARIABLE}, or use --build-to"
        )

    def fill(folder: Path) -> None:
        write(folder, model, plan, told)
        if not to:
            discard(place)

    try:
        if to and to.exists():
            raise ModelError(f"{to} is there already; name a new folder")
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        put_folder(place, fill)
        if not to:
            prune(place.parent, keep=place, max_bytes=0)
    except OSError as error:
        raise ModelError(f"{place}: cannot be written ({error.strerror or error})") from error
    return open_built(place)


def _place(name: str) -> Path | None:
    """Where the model is, or would be; None without a model or a cache folder."""
    folder, path = cache_folder(), find(name, places())
    if folder is None or path is None:
        return None
    try:
        digest = Identity(path, folder).known.digest
    except (OSError, ModelError):  # the loader says best what is wrong
        return None
    parts = f"{digest}\n{called(name, path)}"
    return folder / _FOLDER / hashlib.sha256(parts.encode()).hexdigest()[:40] / _code()


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for module in _BUILDERS:
        digest.update((Path(__file__).parent / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]
