"""Finds models in the cache of the huggingface_hub package, adds and removes them.

The package's layout, for each repository: ``blobs/DIGEST`` hold the content of files,
``snapshots/COMMIT/`` links to them under the files' names, ``refs/REVISION`` the commit of a branch
or tag. Other programs share the cache, so its layout and the environment variables are those that
the package documents; the tests compare them with the package itself. Sources:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache and
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamd.disk import expanded, user_folder
from streamd.engine.formats.safetensors import shards
from streamd.engine.formats.untrusted import read_json
from streamd.engine.store.repository import (
    CONFIG,
    INDEX,
    VOCABULARIES,
    WEIGHTS,
    Listing,
    Repository,
    is_commit,
    repository_of,
)
from streamd.errors import ModelError

VARIABLE = "STREAMD_STORE"
"""Names the folder of imported models."""
_TRUE = {"1", "ON", "YES", "TRUE"}
_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class StorePaths:
    """`imported`: our own folder; `cache`: the library's; `endpoint`: the hub's address.

    With `offline` nothing may be downloaded.
    """

    imported: Path
    cache: Path
    endpoint: str
    offline: bool

    @property
    def site(self) -> str:
        """The hub's address, for people: without the password that may stand in it."""
        return re.sub(r"//[^/]*@", "//", self.endpoint)

    @property
    def host(self) -> str:
        """The hub's name, for people."""
        return self.site.partition("://")[2].partition("/")[0] or self.site


def places(environ: Mapping[str, str] = os.environ) -> StorePaths:
    """What the environment says."""
    cache = environ.get("HUGGINGFACE_HUB_CACHE", str(_home(environ) / "hub"))
    cache = environ.get("HF_HUB_CACHE", cache)
    offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return StorePaths(
        imported=_imported(environ),
        cache=_path(cache),
        endpoint=environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
        offline=_is_true(offline),
    )


def access_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the user's token for the hub: that of the environment, or of ``hf auth login``.

    Raises `ModelError` if the file of ``hf auth login`` cannot be read.
    """
    if _is_true(environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")):
        return None
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if token := _one_line(token):
        return token
    path = _path(environ.get("HF_TOKEN_PATH", str(_home(environ) / "token")))
    try:
        return _one_line(path.read_text(errors="replace")) or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def _one_line(text: str) -> str:
    return text.replace("\n", "").replace("\r", "").strip()


def timeout_s(environ: Mapping[str, str] = os.environ) -> int:
    """Return for how many seconds the hub may be silent.

    Raises `ModelError` if HF_HUB_DOWNLOAD_TIMEOUT is not a number.
    """
    text = environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    try:
        return int(text or _TIMEOUT_S) or _TIMEOUT_S
    except ValueError as error:
        raise ModelError(f"HF_HUB_DOWNLOAD_TIMEOUT={text}: not a number of seconds") from error


def _home(environ: Mapping[str, str]) -> Path:
    default = _path(environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return _path(environ.get("HF_HOME", str(default)))


def _is_true(text: str) -> bool:
    return text.upper() in _TRUE


def _imported(environ: Mapping[str, str]) -> Path:
    if named := environ.get(VARIABLE):
        return _path(named)
    return user_folder("data", environ) / "models"


def _path(text: str) -> Path:
    return expanded(os.path.expandvars(text))


_PREFIX = "models--"


class _Type(msgspec.Struct):
    model_type: str = ""


def storage(cache: Path, repository: Repository) -> Path:
    """The repository's folder."""
    return cache / (_PREFIX + repository.id.replace("/", "--"))


def blob(cache: Path, repository: Repository, digest: str) -> Path:
    """Where a file of that content is, or would be."""
    return storage(cache, repository) / "blobs" / digest


def find(cache: Path, repository: Repository) -> Path | None:
    """The folder with all files of a model, as far as this machine knows its revision."""
    folder = storage(cache, repository)
    commit = repository.revision
    if not is_commit(commit):
        try:
            commit = (folder / "refs" / repository.revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
    snapshot = folder / "snapshots" / commit
    return snapshot if is_commit(commit) and _is_whole(snapshot) else None


def _is_whole(folder: Path) -> bool:
    """Whether nothing that the loader needs is missing. Links to lacking blobs do not exist."""
    if not (folder / CONFIG).is_file() or not any((folder / v).is_file() for v in VOCABULARIES):
        return False
    if (folder / WEIGHTS).is_file():
        return True
    try:
        return all((folder / name).is_file() for name in shards(folder / INDEX))
    except ModelError:
        return False


def whispers(cache: Path) -> Iterator[tuple[Repository, Path]]:
    """Every Whisper model that is there whole, at each branch or tag that is known."""
    for reference in sorted(cache.glob(_PREFIX + "*--*/refs/**/*")):
        _, folder, _, *revision = reference.relative_to(cache.parent).parts
        name = folder.removeprefix(_PREFIX).replace("--", "/", 1)
        repository = repository_of(f"{name}@{'/'.join(revision)}")
        snapshot = repository and find(cache, repository)
        if repository and snapshot:
            with suppress(ModelError):
                if read_json(snapshot / CONFIG, _Type).model_type == "whisper":
                    yield repository, snapshot


def name_of(snapshot: Path) -> str | None:
    """``owner/name`` of a folder that is a snapshot in such a cache, else None."""
    folder = snapshot.parent.parent
    if snapshot.parent.name == "snapshots" and folder.name.startswith(_PREFIX):
        return folder.name.removeprefix(_PREFIX).replace("--", "/", 1)
    return None


def put(cache: Path, repository: Repository, listing: Listing) -> Path:
    """Make the snapshot of files whose blobs are there; the revision refers to it from now on.

    The weights are the last to appear in it, so that a model is never seen without them.
    """
    folder = storage(cache, repository)
    snapshot = folder / "snapshots" / listing.commit
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in listing.files:
        _link(f"../../blobs/{file.digest}", snapshot / file.name)
    if not is_commit(repository.revision):
        reference = folder / "refs" / repository.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        new = reference.with_name(f"{reference.name}.new")
        new.write_text(listing.commit)
        new.replace(reference)
    return snapshot


def _link(target: str, path: Path) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    os.symlink(target, new)
    new.replace(path)


def n_bytes(cache: Path, repository: Repository) -> int:
    """What all that is there of the repository takes on the disk."""
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
    """Delete content that huggingface_hub shared between repositories, if none uses it any more.

    It lies in ``blobs/XX/DIGEST`` of the cache; each line of ``DIGEST.refs`` names a symbolic link
    to it, relative to the cache. As the package does, keep content whose list cannot be read
    (``utils/_shared_blobs.py``, version 2.4).
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
