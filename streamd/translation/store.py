"""The models of translations on this machine, a folder for each direction; where they come from.

The folder has what Mozilla publishes, unpacked: the model, a shortlist of words, and one vocabulary
or two. They are downloaded from Mozilla's own registry, which lists the SHA-256 of each file, and
only if the user says so. fxtranslate could download them from the service of Firefox, which is not
meant for other programs.
"""

import hashlib
import logging
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from streamd.errors import EngineError, ModelError, StreamdError, how_to_install, os_error_as
from streamd.models.store.cache import StorePaths
from streamd.system.disk import locked, put_folder
from streamd.translation.translator import OneWay

REGISTRY = (
    "https://storage.googleapis.com/moz-fx-translations-data--303e-prod-translations-data"
    "/db/models.json"
)
"""Where Mozilla says which models there are: https://mozilla.github.io/translations/firefox-models/
shows the same."""
LICENCE = "MPL-2.0, by Mozilla"
PREFIX = "translate:"
"""Of the names of these models on the command line."""
_FOLDER = ".translate"  # no speech model can be called so
_NAME = re.compile(r"translate:([a-z]{2,3})-([a-z]{2,3})")
_MOST_BYTES = 300 << 20
"""Of a file; the largest model has 60 MB."""

log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], object]
"""Called with the bytes that are here, and all bytes."""


def direction_of(name: str) -> tuple[str, str] | None:
    """Return the languages of ``translate:en-pt``; None for other models."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2]) if found else None


def directions(here: StorePaths) -> list[tuple[str, str]]:
    """Return the directions of which a model is here, in alphabetical order."""
    named = (direction_of(PREFIX + path.name) for path in (here.imported / _FOLDER).glob("*"))
    return sorted(each for each in named if each)


def folder(here: StorePaths, source: str, target: str) -> Path:
    """Return where the model of a direction is, or would be."""
    return here.imported / _FOLDER / f"{source}-{target}"


@contextmanager
def _panics_as(kind: type[StreamdError], problem: str) -> Iterator[None]:
    # Firefox's library panics rather than raises where its files are wrong.
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(f"{problem} ({error})") from error


def open_model(here: StorePaths, source: str, target: str) -> OneWay:
    """Open the model of a direction; raises `ModelError` if it is missing or damaged."""
    path = folder(here, source, target)
    found = _files(path)
    try:
        from fxtranslate import Translator
    except ImportError as error:
        needs = f"translating needs a library: {how_to_install('translate')}"
        raise ModelError(needs) from error
    with os_error_as(ModelError, f"{path}: cannot be read"):
        model, shortlist, own, other = (each.read_bytes() for each in found)
    with _panics_as(ModelError, f"{path}: the model is damaged"):
        opened = Translator(model, own, other, shortlist)

    def translate(text: str) -> str:
        with _panics_as(EngineError, f"{path}: the model failed"):
            return opened.translate(text)

    return translate


def _files(path: Path) -> list[Path]:
    """Return model, shortlist, and the vocabularies of both languages, which may be one file.

    Raises `ModelError` if one is missing.
    """
    if not path.is_dir():
        name = path.name
        raise ModelError(f"no model {name} is here; run: streamd models get {PREFIX}{name}")
    is_shared = any(path.glob("vocab.*.spm"))
    source, target = ("vocab", "vocab") if is_shared else ("srcvocab", "trgvocab")
    files = []
    for what, pattern in (
        ("model", "model.*.bin"),
        ("shortlist", "lex.*.bin"),
        ("vocabulary", f"{source}.*.spm"),
        ("vocabulary", f"{target}.*.spm"),
    ):
        found = sorted(path.glob(pattern))
        if len(found) != 1:
            raise ModelError(
                f"{path}: expected one {what} ({pattern}), found {len(found)}; a model has "
                "model.*.bin, lex.*.bin, and vocab.*.spm, or srcvocab.*.spm and trgvocab.*.spm"
            )
        files += found
    return files


def add(here: StorePaths, path: Path, source: str, target: str) -> Path:
    """Copy a model's folder into the store, after it was opened; raises `ModelError`."""
    found, goal = _files(path), folder(here, source, target)
    if goal.exists():
        raise ModelError(
            f"{PREFIX}{goal.name} is here already; run: streamd models remove {PREFIX}{goal.name}"
        )

    def fill(new: Path) -> None:
        for each in dict.fromkeys(found):
            shutil.copyfile(each, new / each.name)

    with os_error_as(ModelError, f"{path} cannot be copied to {goal}"):
        goal.parent.mkdir(parents=True, exist_ok=True)
        put_folder(goal, fill)
    try:
        open_model(here, source, target)
    except ModelError:
        shutil.rmtree(goal)
        raise
    return goal


def remove(here: StorePaths, source: str, target: str) -> bool:
    """Delete a model; return whether it was here. Raises `ModelError`."""
    path = folder(here, source, target)
    if not path.exists():
        return False
    with os_error_as(ModelError, f"{path} cannot be removed"):
        shutil.rmtree(path)
    return True


class _Listed(msgspec.Struct, frozen=True, rename="camel"):
    """A file in Mozilla's registry: packed with gzip, and what it is when unpacked."""

    path: Annotated[str, msgspec.Meta(pattern=r"\A[\w./-]{1,300}\Z")]
    uncompressed_hash: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    uncompressed_size: Annotated[int, msgspec.Meta(ge=1, le=_MOST_BYTES)] = 0

    @property
    def name(self) -> str:
        """What it is called here; never a path."""
        return self.path.rpartition("/")[2].removesuffix(".gz")


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    """A model in Mozilla's registry, of one of several architectures."""

    architecture: str
    release_status: str
    files: dict[str, msgspec.Raw]


class _Registry(msgspec.Struct, frozen=True, rename="camel"):
    base_url: Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[^\s]+\Z")]
    models: dict[str, list[_Entry]]


@dataclass(frozen=True, slots=True)
class Published:
    """A model that can be downloaded: its languages, its architecture, and its files."""

    source: str
    target: str
    architecture: str
    base: str
    files: tuple[_Listed, ...]

    @property
    def n_bytes(self) -> int:
        """The size of all files together, unpacked, as far as the registry says it."""
        return sum(file.uncompressed_size for file in self.files)


_FILES = ("model", "lexicalshortlist", "vocab", "srcvocab", "trgvocab")
_ORDER = ("base-memory", "tiny", "base")
"""Firefox's own preference: the first is the best that a phone has room for."""


def look_up(here: StorePaths, source: str, target: str) -> Published:
    """Ask Mozilla's registry for the model of a direction.

    Raises `ModelError` if it cannot be reached, is damaged, or has none.
    """
    pair = f"{source}-{target}"
    try:
        known = msgspec.json.decode(b"".join(_content(here, REGISTRY)), type=_Registry)
        released = [
            entry
            for entry in known.models.get(pair, ())
            if entry.release_status.lower().startswith("release") and entry.architecture in _ORDER
        ]
        if not released:
            raise ModelError(
                f"{PREFIX}{pair}: Mozilla has no such model; most languages have one from and "
                "into English (en)"
            )
        best = min(released, key=lambda entry: _ORDER.index(entry.architecture))
        files = [
            msgspec.json.decode(about, type=_Listed)
            for name, about in best.files.items()
            if name.lower() in _FILES
        ]
    except msgspec.DecodeError as error:
        raise ModelError(f"{PREFIX}{pair}: Mozilla's registry is damaged ({error})") from error
    return Published(source, target, best.architecture, known.base_url.rstrip("/"), tuple(files))


def fetch(
    here: StorePaths, offer: Published, *, on_progress: OnProgress = lambda n_here, n_all: None
) -> Path:
    """Download a model and verify the SHA-256 of all its files; return its folder.

    Raises `ModelError` if that fails; then nothing of it is left.
    """
    goal = folder(here, offer.source, offer.target)

    def fill(new: Path) -> None:
        n_before = 0
        for file in offer.files:
            _get(here, f"{offer.base}/{file.path}", file, new / file.name)
            n_before += file.uncompressed_size
            on_progress(n_before, offer.n_bytes)
        _files(new)

    with (
        os_error_as(ModelError, f"{goal} cannot be written"),
        locked(here.imported / ".lock", f"downloading {PREFIX}{goal.name}"),
    ):
        goal.parent.mkdir(exist_ok=True)
        shutil.rmtree(goal, ignore_errors=True)
        put_folder(goal, fill)
    return goal


def _get(here: StorePaths, address: str, file: _Listed, path: Path) -> None:
    """Download a file, unpack it and compare its hash."""
    digest, most = hashlib.sha256(), file.uncompressed_size or _MOST_BYTES
    try:
        with path.open("wb") as out:
            for part in _unpacked(_content(here, address), most):
                out.write(part)
                digest.update(part)
    except zlib.error as error:
        raise ModelError(f"{address} is corrupt ({error}); try again") from error
    if digest.hexdigest() != file.uncompressed_hash:
        raise ModelError(f"{address} is corrupt: checksum mismatch; nothing was kept, try again")


def _unpacked(chunks: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Yield what was packed with gzip, or already unpacked on its way; a byte over `most` at most.

    A few bytes may stand for gigabytes.
    """
    unpacker, n_bytes = None, 0
    for i, chunk in enumerate(chunks):
        if i == 0 and chunk.startswith(b"\x1f\x8b"):
            unpacker = zlib.decompressobj(wbits=31)
        left = most + 1 - n_bytes
        part = unpacker.decompress(chunk, left) if unpacker else chunk[:left]
        n_bytes += len(part)
        yield part
        if n_bytes > most:
            return


def _content(here: StorePaths, address: str) -> Iterator[bytes]:
    # Imported here because httpx2 takes long to import, and most starts need no download.
    from streamd.models.store.download import content_at

    return content_at(address, here, most=_MOST_BYTES)
