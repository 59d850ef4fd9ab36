"""A repository of the hub: what it is called, what it lists, and which files of it a model needs.

What a hub lists is of unknown origin. A file is asked for only under one of the names below, so no
listing can make us write anywhere else; one that tries is refused as a whole.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from streamd.engine.catalog import entry
from streamd.engine.formats.untrusted import MAX_BYTES, shown
from streamd.errors import ModelError

CONFIG = "config.json"
GENERATION = "generation_config.json"
VOCABULARIES = ("tokenizer.json", "vocab.json")
"""One of them is needed; the first is preferred."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
_MAX_FILES = 20_000

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Repository:
    """`id` is ``owner/name``; `revision` a branch, tag or commit."""

    id: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.id if self.revision == "main" else f"{self.id}@{self.revision}"


def repository_of(name: str) -> Repository | None:
    """Where a model of the catalog comes from, or ``owner/name``, or ``owner/name@revision``."""
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
    """Whether it is the whole number of a commit."""
    return _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`digest` is what the content adds up to: its SHA-256 (64 digits) or git's SHA-1 (40)."""

    name: str
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What a model of that `commit` needs, in the order to get it: `config` first, weights last."""

    commit: str
    config: RemoteFile
    others: tuple[RemoteFile, ...]

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All."""
        return (self.config, *self.others)

    @property
    def n_bytes(self) -> int:
        """Of all files."""
        return sum(file.n_bytes for file in self.files)


_Sha1 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class _Lfs(msgspec.Struct):
    sha256: _Sha256


class _Sibling(msgspec.Struct, rename={"blob_id": "blobId"}):
    rfilename: str
    blob_id: _Sha1
    size: _Size
    lfs: _Lfs | None = None


class _Info(msgspec.Struct):
    """The hub's answer to ``/api/models/ID/revision/REVISION?blobs=true``."""

    sha: _Sha1
    siblings: Annotated[list[_Sibling], msgspec.Meta(max_length=_MAX_FILES)]


def read_listing(repository: Repository, answer: bytes) -> Listing:
    """What the hub lists of the repository, if that is a model.

    Raises `ModelError` if the listing is damaged or hostile, or what a model needs is not there.
    """
    try:
        info = msgspec.json.decode(answer, type=_Info)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{repository}: the hub's list of files is damaged ({error})") from error
    for sibling in info.siblings:
        _refuse_path(repository, sibling.rfilename)
    files = {
        each.rfilename: RemoteFile(
            each.rfilename, each.size, each.lfs.sha256 if each.lfs else each.blob_id
        )
        for each in info.siblings
    }
    config, *others = _needed(repository, files)
    return Listing(info.sha, config, tuple(others))


def _refuse_path(repository: Repository, name: str) -> None:
    inside = all(part not in ("", ".", "..") for part in name.split("/"))
    if not inside or "\\" in name or ":" in name or not name.isprintable():
        raise ModelError(
            f"{repository}: lists {shown(name)!r}, a path that no honest repository has; "
            "nothing was downloaded"
        )


def _needed(repository: Repository, files: Mapping[str, RemoteFile]) -> list[RemoteFile]:
    """Choose the files to download: the configuration first, the weights last."""
    vocabularies = [name for name in VOCABULARIES if name in files]
    if CONFIG not in files or not vocabularies:
        missing = " or ".join(VOCABULARIES) if CONFIG in files else CONFIG
        raise ModelError(f"{repository}: not a Whisper model: {missing} is missing")
    weights = _weights(repository, files)
    generation = [GENERATION] if GENERATION in files else []
    small = [CONFIG, *generation, vocabularies[0], *([INDEX] if weights != [WEIGHTS] else [])]
    if large := [name for name in small if files[name].n_bytes > MAX_BYTES]:
        raise ModelError(f"{repository}: {large[0]} is larger than any model's; not downloaded")
    return [files[name] for name in (*small, *weights)]


def _weights(repository: Repository, files: Mapping[str, RemoteFile]) -> list[str]:
    if WEIGHTS in files:
        return [WEIGHTS]
    shards = sorted(filter(_SHARD.fullmatch, files))
    if INDEX not in files or not shards:
        raise ModelError(
            f"{repository}: {WEIGHTS} is missing; weights in any other form are not downloaded"
        )
    return shards
