"""A repository of the hub: its name, its list of files, and which of them a model needs.

The list is not trusted: only files with the names below are downloaded, none of which is a path.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from streamd.engine.catalog import entry
from streamd.engine.formats import MAX_BYTES
from streamd.engine.formats.huggingface import CONFIG, GENERATION, VOCABULARIES
from streamd.engine.formats.safetensors import INDEX, SINGLE
from streamd.errors import ModelError

_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
_MAX_FILES = 20_000

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
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
    if known := entry(name):
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


_Sha1 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class _Lfs(msgspec.Struct, frozen=True):
    sha256: _Sha256


_THEIRS = {"name": "rfilename", "n_bytes": "size", "blob_id": "blobId"}


class RemoteFile(msgspec.Struct, frozen=True, rename=_THEIRS):
    """A file on the hub."""

    name: str
    n_bytes: _Size
    blob_id: _Sha1
    lfs: _Lfs | None = None

    @property
    def digest(self) -> str:
        """The file's SHA-256 (64 digits), or git's SHA-1 (40)."""
        return self.lfs.sha256 if self.lfs else self.blob_id


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that a model needs: ``config.json`` first, weights last."""

    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.n_bytes for file in self.files)


class _Info(msgspec.Struct):
    """The hub's answer to ``/api/models/ID/revision/REVISION?blobs=true``."""

    sha: _Sha1
    siblings: Annotated[list[RemoteFile], msgspec.Meta(max_length=_MAX_FILES)]


def read_listing(repository: Repository, answer: bytes) -> Listing:
    """Return the files of a repository that is a model.

    Raises `ModelError` if the listing is damaged or hostile, or what a model needs is not there.
    """
    try:
        info = msgspec.json.decode(answer, type=_Info)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{repository}: the hub's list of files is damaged ({error})") from error
    return Listing(info.sha, _needed(repository, {file.name: file for file in info.siblings}))


def _needed(repository: Repository, files: Mapping[str, RemoteFile]) -> tuple[RemoteFile, ...]:
    vocabularies = list(filter(files.__contains__, VOCABULARIES))
    if CONFIG not in files or not vocabularies:
        missing = " or ".join(VOCABULARIES) if CONFIG in files else CONFIG
        raise ModelError(f"{repository}: not a Whisper model: {missing} is missing")
    generation = [GENERATION] if GENERATION in files else []
    small = [CONFIG, *generation, vocabularies[0]]
    weights = [SINGLE]
    if SINGLE not in files:
        small.append(INDEX)
        weights = sorted(filter(_SHARD.fullmatch, files))
        if INDEX not in files or not weights:
            raise ModelError(
                f"{repository}: {SINGLE} is missing; weights in any other form are not downloaded"
            )
    if large := [name for name in small if files[name].n_bytes > MAX_BYTES]:
        raise ModelError(f"{repository}: {large[0]} is larger than any model's; not downloaded")
    return tuple(files[name] for name in (*small, *weights))
