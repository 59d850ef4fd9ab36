"""Finds models in the cache of the huggingface_hub package, adds and removes them.

Each repository has a folder: ``blobs/DIGEST`` have the content of files, ``snapshots/COMMIT/`` the
files' names as links to it, ``refs/REVISION`` the commit of a branch or tag. Other programs share
the cache; the tests compare layout and environment variables with the package itself. Sources:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache and
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamd.errors import ModelError
from streamd.models.catalog import entry
from streamd.models.families import family_entry
from streamd.models.formats import safetensors
from streamd.models.formats.huggingface import CONFIG, vocabularies
from streamd.models.store.layouts import imported_files, layout_of
from streamd.system.disk import expanded, put_file, user_folder

VARIABLE = "STREAMD_STORE"
"""The environment variable with the folder of imported models."""
_PREFIX = "models--"
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_GGUF = re.compile(r"[\w.-]{1,200}\.gguf", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Repository:
    """``owner/name``, and a branch, tag or commit."""

    id: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.id if self.revision == "main" else f"{self.id}@{self.revision}"


def repository_of(name: str) -> Repository | None:
    """Parse a model's name: one of the catalog, ``owner/name``, or ``owner/name@revision``."""
    if known := entry(name) or family_entry(name):
        return Repository(known.repository)
    owner_name, at, revision = name.partition("@")
    if not _ID.fullmatch(owner_name) or "--" in owner_name or ".." in owner_name:
        return None
    if not at:
        return Repository(owner_name)
    fine = _REVISION.fullmatch(revision) and ".." not in revision and len(revision) < 200
    return Repository(owner_name, revision) if fine else None


def is_commit(text: str) -> bool:
    """Return whether the text is a complete commit hash."""
    return _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Folders of imported and of downloaded models, and the hub's address.

    If `offline` is set, nothing may be downloaded.
    """

    imported: Path
    cache: Path
    endpoint: str
    offline: bool

    @property
    def site(self) -> str:
        """The hub's address for messages, without a password."""
        return re.sub(r"//[^/]*@", "//", self.endpoint)

    @property
    def host(self) -> str:
        """The hub's name for messages."""
        return self.site.partition("://")[2].partition("/")[0] or self.site


def places(environ: Mapping[str, str] = os.environ) -> StorePaths:
    """Return what the environment variables demand."""
    cache = environ.get("HUGGINGFACE_HUB_CACHE", str(_home(environ) / "hub"))
    imported = environ.get(VARIABLE)
    return StorePaths(
        imported=_path(imported) if imported else user_folder("data", environ) / "models",
        cache=_path(environ.get("HF_HUB_CACHE", cache)),
        endpoint=environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
        offline=_is_true(environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE")),
    )


def access_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the user's token for the hub, from the environment or from ``hf auth login``.

    Raises `ModelError` if the file of ``hf auth login`` cannot be read.
    """
    if _is_true(environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return None
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not _one_line(token):
        path = _path(environ.get("HF_TOKEN_PATH", str(_home(environ) / "token")))
        try:
            token = path.read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    return _one_line(token) or None


def _one_line(text: str) -> str:
    return text.replace("\n", "").replace("\r", "").strip()


def _home(environ: Mapping[str, str]) -> Path:
    default = _path(environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return _path(environ.get("HF_HOME", str(default)))


def _is_true(text: str | None) -> bool:
    return (text or "").upper() in ("1", "ON", "YES", "TRUE")


def _path(text: str) -> Path:
    return expanded(os.path.expandvars(text))


def storage(cache: Path, repository: Repository) -> Path:
    """Return the repository's folder."""
    return cache / (_PREFIX + repository.id.replace("/", "--"))


def find(cache: Path, repository: Repository) -> Path | None:
    """Return the folder of a complete model, or None if its files or its revision are not here.

    Of a model that is one file, GGUF or ggml, it is that file.
    """
    folder = storage(cache, repository)
    commit = repository.revision
    if not is_commit(commit):
        try:
            commit = (folder / "refs" / repository.revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
    snapshot = folder / "snapshots" / commit
    if not is_commit(commit):
        return None
    if _is_whole(snapshot):
        return snapshot
    other = imported_files([path.name for path in snapshot.glob("*")])
    if other is None or not all((snapshot / name).is_file() for name in other[0]):
        return _gguf(snapshot, repository)
    return snapshot if len(other[0]) > 1 else snapshot / other[0][0]


def _gguf(snapshot: Path, repository: Repository) -> Path | None:
    """Return the file that streamd downloads of a repository, if its content is here."""
    if (snapshot / CONFIG).exists():
        return None
    name = chosen_gguf(repository, [path.name for path in snapshot.glob("*.gguf")])
    return snapshot / name if name and (snapshot / name).is_file() else None


def chosen_gguf(repository: Repository, names: Iterable[str]) -> str | None:
    """Return which GGUF file of a repository is used, or None if it has none.

    It is the one that the catalog names, or else one in Q8_0, or else the first.
    """
    found = sorted(name for name in names if _GGUF.fullmatch(name))
    if known := family_entry(repository.id):
        return known.file if known.file in found else None
    return next((name for name in found if "Q8_0" in name.upper()), found[0] if found else None)


def _is_whole(folder: Path) -> bool:
    """Return whether no file that the loader needs is missing, nor the content of a link."""
    try:
        weights = safetensors.files(folder)
    except ModelError:  # their index is damaged
        return False
    files = [folder / CONFIG, *weights]
    return bool(vocabularies(folder)) and all(path.is_file() for path in files)


def whispers(cache: Path) -> Iterator[tuple[Repository, Path]]:
    """Yield every complete Whisper model, at each branch or tag that is known."""
    for repository, path in _complete(cache):
        if path.suffix == ".gguf":
            continue
        with suppress(ModelError):
            layout_of(path).outline(path)  # raises for a model of another architecture
            yield repository, path


def ggufs(cache: Path) -> Iterator[tuple[Repository, Path]]:
    """Yield the GGUF file of every repository that has one and that the catalog does not name."""
    for repository, file in _complete(cache):
        named = family_entry(repository.id) and repository.revision == "main"
        if file.suffix == ".gguf" and not named:
            yield repository, file


def _complete(cache: Path) -> Iterator[tuple[Repository, Path]]:
    for reference in sorted(cache.glob(_PREFIX + "*--*/refs/**/*")):
        _, folder, _, *revision = reference.relative_to(cache.parent).parts
        repository = repository_of(f"{_id(folder)}@{'/'.join(revision)}")
        if repository and (found := find(cache, repository)):
            yield repository, found


def name_of(snapshot: Path) -> str | None:
    """Return ``owner/name`` of a folder that is a snapshot in a cache, else None."""
    folder = snapshot.parent.parent.name
    in_cache = snapshot.parent.name == "snapshots" and folder.startswith(_PREFIX)
    return _id(folder) if in_cache else None


def _id(folder: str) -> str:
    return folder.removeprefix(_PREFIX).replace("--", "/", 1)


def put(cache: Path, repository: Repository, commit: str, blobs: Mapping[str, str]) -> Path:
    """Make a snapshot, and let the revision refer to it; `blobs` are digests by files' names.

    The content is all there. Weights come last: nobody sees a model without them.
    """
    folder = storage(cache, repository)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    for name, digest in blobs.items():
        path = snapshot / name
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        os.symlink(f"../../blobs/{digest}", new)
        new.replace(path)
    if not is_commit(repository.revision):
        reference = folder / "refs" / repository.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        put_file(reference, commit.encode())
    return snapshot


def n_bytes(cache: Path, repository: Repository) -> int:
    """Return how much of the disk the repository takes, with incomplete downloads."""
    blobs = (storage(cache, repository) / "blobs").glob("*")
    return sum(path.stat().st_size for path in blobs if path.is_file())


def remove(cache: Path, repository: Repository) -> None:
    """Delete the repository with all its revisions and incomplete downloads."""
    folder = storage(cache, repository)
    shared = [blob.resolve() for blob in (folder / "blobs").glob("*") if blob.is_symlink()]
    shutil.rmtree(folder)
    shutil.rmtree(cache / ".locks" / folder.name, ignore_errors=True)
    for content in shared:
        if content.parent.parent == (cache / "blobs").resolve():
            _remove_unused(cache, content)


def _remove_unused(cache: Path, content: Path) -> None:
    """Delete content that several repositories shared, if none uses it any more.

    It is in ``blobs/XX/DIGEST`` of the cache; each line of ``DIGEST.refs`` names a symbolic link to
    it, relative to the cache. As in huggingface_hub (``utils/_shared_blobs.py``, version 2.4),
    content whose list cannot be read is kept.
    """
    references = content.with_name(f"{content.name}.refs")
    with (
        suppress(OSError, UnicodeDecodeError),
        content.with_name(f"{content.name}.lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be adding a reference
        links = [cache / line for line in references.read_text().splitlines()]
        if not any(link.is_symlink() and link.resolve() == content for link in links):
            content.unlink()
            references.unlink()
