"""What the hub has of a model, and how it comes into huggingface_hub's cache.

The huggingface_hub package itself (2.4.0) neither resumes a download that another process left
incomplete nor compares the content with the hub's checksum, and it sends a description of the
machine. Here a blob gets its name only after its checksum matched, and a snapshot is made only
after all its blobs are there. All files are requested over plain HTTP, where a range of bytes can
be requested, not over the hub's second protocol, Xet.

The hub's list of files is not trusted: only files with the names below are downloaded, none of
which is a path.
"""

import fnmatch
import functools
import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import httpx2
import msgspec

from streamd.errors import ModelError
from streamd.models.families import family_entry
from streamd.models.formats.gguf import speech_family
from streamd.models.formats.huggingface import (
    CONFIG,
    GENERATION,
    VOCABULARIES,
    read_dimensions,
)
from streamd.models.formats.reading import MAX_BYTES
from streamd.models.formats.safetensors import INDEX, SINGLE
from streamd.models.store import cache
from streamd.models.store.cache import Repository, StorePaths, access_token
from streamd.models.store.layouts import imported_files
from streamd.system.disk import flush, locked, megabytes
from streamd.version import __version__

log = logging.getLogger(__name__)

_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
_MAX_FILES = 20_000
_TIMEOUT_S = 10
"""How long the hub may send nothing."""
_PAUSES_S = (1, 2, 4)
"""Pauses between tries in which no byte came; then the download fails."""
_LONGEST_PAUSE_S = 60
"""How long a hub that is busy may ask to be left alone."""

OnProgress = Callable[[int, int], object]
"""Called with the bytes that are here, and all bytes."""
Pause = Callable[[float], object]
"""Waits for seconds."""

_Sha1 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
_THEIRS = {"name": "rfilename", "n_bytes": "size", "blob_id": "blobId"}


class _Lfs(msgspec.Struct, frozen=True):
    sha256: _Sha256


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

    def digest_of(self, path: Path) -> str:
        """Return the digest of what is here, of the same kind."""
        if self.lfs:
            hasher = hashlib.sha256()
        else:  # git's, of a file that is not in its large file storage
            hasher = hashlib.sha1(b"blob %d\0" % _n_bytes(path), usedforsecurity=False)
        with path.open("rb") as content:
            return hashlib.file_digest(content, lambda: hasher).hexdigest()


class _Info(msgspec.Struct):
    """The hub's answer to ``/api/models/ID/revision/REVISION?blobs=true``."""

    sha: _Sha1
    siblings: Annotated[list[RemoteFile], msgspec.Meta(max_length=_MAX_FILES)]


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be downloaded; `n_missing` of its `n_bytes` are not here.

    `commit` and `files` are as `read_listing` returns them.
    """

    repository: Repository
    commit: str
    files: tuple[RemoteFile, ...]
    n_missing: int

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.n_bytes for file in self.files)


def look_up(repository: Repository, here: StorePaths, *, pause: Pause = time.sleep) -> Offer:
    """Ask the hub for the list of a repository's files; `pause` waits between tries.

    Raises `ModelError` if it cannot be reached, has no such repository, or what it lists is no
    model.
    """
    with _connected(repository, here) as hub:
        commit, files = read_listing(repository, _description(hub, _Tries(pause)))
        return Offer(repository, commit, files, sum(map(hub.n_missing, files)))


def fetch(
    offer: Offer,
    here: StorePaths,
    *,
    on_progress: OnProgress = lambda n_here, n_all: None,
    pause: Pause = time.sleep,
) -> Path:
    """Download what is not here, resume what is incomplete, and verify all checksums.

    `on_progress` is called now and then; `pause` waits between tries. Returns the folder
    with the complete model. Raises `ModelError` if that fails; the next try resumes what came.
    """
    folder = cache.storage(here.cache, offer.repository)
    lock = here.cache / ".locks" / folder.name / "streamd.lock"
    with _connected(offer.repository, here) as hub:
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        with locked(lock, f"downloading {offer.repository}"):
            _Download(hub, offer, on_progress, pause).run()
            blobs = {file.name: file.digest for file in offer.files}
            snapshot = cache.put(here.cache, offer.repository, offer.commit, blobs)
            found = cache.find(here.cache, offer.repository)
            if found is None or snapshot not in (found, found.parent):
                raise ModelError(f"{offer.repository}: {INDEX} names files that are not there")
            return found


class _BusyError(httpx2.TransportError):
    """The hub has too much to do or is in trouble; it asks to wait for `pause_s` (0: it does not).

    `refusal` is what the user is told if that does not end.
    """

    def __init__(self, refusal: ModelError, pause_s: int) -> None:
        super().__init__(str(refusal))
        self.refusal, self.pause_s = refusal, pause_s


@dataclass(slots=True)
class _Tries:
    """Waits between tries, longer after each of several in a row in which no byte came."""

    pause: Pause
    n_idle: int = 0

    def wait(self, error: httpx2.TransportError, *, has_come: bool = False) -> bool:
        """Wait for the next try; False if there were enough. `has_come` says that bytes came."""
        self.n_idle = 0 if has_come else self.n_idle + 1
        if self.n_idle > len(_PAUSES_S):
            return False
        pause_s = _PAUSES_S[self.n_idle - 1] if self.n_idle else 0
        if isinstance(error, _BusyError):
            pause_s = max(pause_s, error.pause_s)
            log.info("%s; the next try is in %d s", error.refusal, pause_s)
        self.pause(pause_s)
        return True


def _description(hub: "_HubClient", tries: _Tries) -> bytes:
    """Get the hub's description, also from one that is busy at first."""
    while True:
        try:
            return hub.description()
        except _BusyError as error:
            if not tries.wait(error):
                raise error.refusal from error


def read_listing(repository: Repository, answer: bytes) -> tuple[str, tuple[RemoteFile, ...]]:
    """Return the commit and the files that a model needs, ``config.json`` first, weights last.

    A model of another family than Whisper is one GGUF file. Of those that streamd knows, it must
    have the SHA-256 of the catalog.

    Raises `ModelError` if the hub's answer is damaged or hostile, or what a model needs is not
    there, or too large.
    """
    try:
        info = msgspec.json.decode(answer, type=_Info)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{repository}: the hub's list of files is damaged ({error})") from error
    return info.sha, _needed(repository, {file.name: file for file in info.siblings})


def _needed(repository: Repository, files: Mapping[str, RemoteFile]) -> tuple[RemoteFile, ...]:
    if CONFIG not in files and (gguf := cache.chosen_gguf(repository, files)):
        known = family_entry(repository.id)
        if known and repository.revision == "main" and files[gguf].digest != known.sha256:
            raise ModelError(
                f"{repository}: {gguf} is not the file that this release of streamd knows; "
                f"{repository}@REVISION takes any"
            )
        return (files[gguf],)
    vocabularies = list(filter(files.__contains__, VOCABULARIES))
    is_ours = vocabularies and (SINGLE in files or INDEX in files)
    if not is_ours and (other := imported_files(files)):
        return tuple(files[name] for name in other[0])
    if CONFIG not in files and (several := fnmatch.filter(files, "ggml*.bin")):
        which = f"{repository} has {len(several)} models, such as {several[0]}"
        raise ModelError(f"{which}: download one file, and give its path to --model")
    if CONFIG not in files or not vocabularies:
        missing = " or ".join(VOCABULARIES) if CONFIG in files else CONFIG
        raise ModelError(f"{repository}: not a Whisper model: {missing} is missing")
    small, weights = [CONFIG, *[GENERATION] * (GENERATION in files), vocabularies[0]], [SINGLE]
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


@dataclass(frozen=True, slots=True)
class _HubClient:
    """Sends requests about one repository to the hub that `here` names."""

    repository: Repository
    here: StorePaths
    client: httpx2.Client

    def description(self) -> bytes:
        """Get the hub's description of the repository, in JSON."""
        revision = self.repository.revision.replace("/", "%2F")
        url = f"{self.here.endpoint}/api/models/{self.repository.id}/revision/{revision}"
        answer = b""
        with self.stream(f"{url}?blobs=true", {}) as response:
            for chunk in response.iter_bytes():
                answer += chunk
                if len(answer) > MAX_BYTES:
                    raise ModelError(f"{self.repository}: the hub's list of files does not end")
        return answer

    @contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str], file: str = ""
    ) -> Iterator[httpx2.Response]:
        """Send a request for a `file` or the list of files, and yield the response.

        Raises `ModelError` if the hub refuses it, `_BusyError` if it may answer later.
        """
        sent = {"User-Agent": f"streamd/{__version__}", **headers}
        if token := access_token():
            if not token.isascii():
                raise ModelError("HF_TOKEN, or what hf auth login stored, is not a valid token")
            sent["Authorization"] = f"Bearer {token}"
        with self.client.stream("GET", url, headers=sent) as response:
            if response.is_success:
                yield response
                return
            refusal, asked = self._refusal(response, file), response.headers.get("Retry-After", "")
            if response.status_code < httpx2.codes.INTERNAL_SERVER_ERROR and (
                response.status_code != httpx2.codes.TOO_MANY_REQUESTS
            ):
                raise refusal
            # Some servers name a date instead of seconds; then our own pauses have to do.
            asked_s = int(asked) if asked.isascii() and asked.isdigit() else 0
            raise _BusyError(refusal, min(asked_s, _LONGEST_PAUSE_S))

    def blob(self, file: RemoteFile) -> Path:
        """Return the path of a file's content; it need not exist."""
        return cache.storage(self.here.cache, self.repository) / "blobs" / file.digest

    def n_missing(self, file: RemoteFile) -> int:
        """Return how many bytes of a file are not here."""
        blob = self.blob(file)
        n_here = max(_n_bytes(path) for path in (blob, _partial(blob)))
        return file.n_bytes - min(max(n_here, 0), file.n_bytes)

    def _refusal(self, response: httpx2.Response, file: str) -> ModelError:
        host, status, name = self.here.host, response.status_code, self.repository.id
        match response.headers.get("X-Error-Code"):  # huggingface_hub ``hf_raise_for_status``
            case "GatedRepo":
                why = (
                    f"{self.repository} is gated: accept its terms at {self.here.site}/{name}, "
                    "then set HF_TOKEN or run hf auth login"
                )
            case "RevisionNotFound":
                why = f"{name} has no branch, tag or commit {self.repository.revision}"
            case _ if file and status in (401, 403, 404, 416):
                why = (
                    f"{self.repository}: {host} lists {file} but does not send it (error {status}):"
                    " HF_TOKEN may lack the right to read it, or a proxy forbids it"
                )
            case _ if status in (401, 403, 404):
                why = (
                    f"{self.repository}: no such repository on {host}, or a private one (then set "
                    "HF_TOKEN or run hf auth login)"
                )
            case _:
                why = f"{self.repository}: {host} answers with error {status}; try again later"
        return ModelError(why)


@contextmanager
def _connected(repository: Repository, here: StorePaths) -> Iterator[_HubClient]:
    """Yield a client. Raises `ModelError` for errors of network and disk inside the block."""
    if here.offline:
        raise ModelError(
            f"{repository} is not downloaded while HF_HUB_OFFLINE is set; without it: "
            f"streamd models get {repository}"
        )
    # These would log whole addresses, with the signatures and passwords in them.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        trusted = trusted_certificates()
        with httpx2.Client(verify=trusted, follow_redirects=True, timeout=_TIMEOUT_S) as client:
            yield _HubClient(repository, here, client)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        # httpx2 raises ValueError for an invalid proxy address.
        raise ModelError(
            f"{repository}: {here.host} cannot be reached ({reason(error)}); "
            "check the network, or name a model that is here (streamd models list)"
        ) from error
    except OSError as error:
        raise ModelError(
            f"{repository}: {here.cache} cannot be written "
            f"({error.strerror or error}); the partial download is kept for the next try"
        ) from error


# Read once, not for each connection: it takes longer than a request.
trusted_certificates = functools.cache(httpx2.create_ssl_context)


def content_at(address: str, here: StorePaths, *, most: int) -> Iterator[bytes]:
    """Yield what is at an address that is no hub's. Raises `ModelError`, also for more bytes."""
    if here.offline:
        raise ModelError("nothing is downloaded while HF_HUB_OFFLINE is set")
    n_bytes, headers, trusted = 0, {"User-Agent": f"streamd/{__version__}"}, trusted_certificates()
    try:
        with (
            httpx2.Client(verify=trusted, follow_redirects=True, timeout=_TIMEOUT_S) as client,
            client.stream("GET", address, headers=headers) as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise ModelError(f"{address}: error {response.status_code}; try again later")
            for chunk in response.iter_bytes():
                n_bytes += len(chunk)
                if n_bytes > most:
                    raise ModelError(f"{address}: more than {most >> 20} MB; it is no model")
                yield chunk
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        why = f"{address} cannot be reached ({reason(error)}); check the network"
        raise ModelError(why) from error


def reason(error: Exception) -> str:
    """Return the error's text in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(slots=True)
class _Download:
    """Downloads the files of an offer one after the other; `n_done` bytes are verified."""

    hub: _HubClient
    offer: Offer
    on_progress: OnProgress
    pause: Pause
    n_done: int = 0

    def run(self) -> None:
        files, here = self.offer.files, self.hub.here
        n_missing = sum(map(self.hub.n_missing, files))
        n_free = shutil.disk_usage(here.cache).free
        if n_free < n_missing:
            raise ModelError(
                f"{self.offer.repository} needs {megabytes(n_missing)}, but {here.cache} "
                f"has room for {megabytes(n_free)}; make room, or let HF_HOME name a folder on "
                "another disk"
            )
        for file in files:
            blob = self.hub.blob(file)
            if _n_bytes(blob) != file.n_bytes or file.digest_of(blob) != file.digest:
                self._get(file, blob)
            self.n_done += file.n_bytes
            self.on_progress(self.n_done, self.offer.n_bytes)
            if file is files[0]:  # the configuration: refuse other models before the weights
                self._refuse_other(file, blob)

    def _refuse_other(self, file: RemoteFile, blob: Path) -> None:
        other = imported_files([each.name for each in self.offer.files])
        check = other[1] if other else read_dimensions
        try:
            (speech_family if file.name.endswith(".gguf") else check)(blob)
        except ModelError as error:
            why = f"{file.name} {str(error).partition(': ')[2]}"
            raise ModelError(f"{self.offer.repository} is not downloaded: {why}") from error

    def _get(self, file: RemoteFile, blob: Path) -> None:
        partial = _partial(blob)
        if _n_bytes(partial) > file.n_bytes:
            partial.unlink()
        partial.touch()
        self._fill(file, partial)
        if file.digest_of(partial) != file.digest:
            partial.unlink()
            raise ModelError(
                f"{self.offer.repository}: {file.name} is corrupt: checksum mismatch; it was "
                "deleted, try again"
            )
        flush(partial)
        partial.replace(blob)

    def _fill(self, file: RemoteFile, partial: Path) -> None:
        """Try until all bytes are there, or several tries in a row brought no further ones."""
        tries, n_most = _Tries(self.pause), _n_bytes(partial)
        while _n_bytes(partial) < file.n_bytes:
            try:
                with partial.open("ab") as out:
                    self._append(file, out)
            except httpx2.TransportError as error:
                n_now = _n_bytes(partial)
                if not tries.wait(error, has_come=n_now > n_most):
                    if isinstance(error, _BusyError):
                        raise error.refusal from error
                    raise ModelError(
                        f"{self.offer.repository}: {file.name} broke off at {megabytes(n_now)} of "
                        f"{megabytes(file.n_bytes)} ({reason(error)}); the next try resumes there"
                    ) from error
                n_most = max(n_most, n_now)

    def _append(self, file: RemoteFile, out: BinaryIO) -> None:
        """Request the missing bytes, and write what comes."""
        n_have = out.tell()
        # A range would otherwise count the bytes of compressed content.
        headers = {"Accept-Encoding": "identity"}
        if n_have:
            headers["Range"] = f"bytes={n_have}-"
        asked = f"bytes {n_have}-"
        at = f"{self.offer.repository.id}/resolve/{self.offer.commit}/{file.name}"
        with self.hub.stream(f"{self.hub.here.endpoint}/{at}", headers, file.name) as response:
            if n_have and response.status_code != httpx2.codes.PARTIAL_CONTENT:
                # The server ignores ranges and sends everything from the start.
                out.truncate(0)
                n_have = 0
            elif not response.headers.get("Content-Range", asked).startswith(asked):
                out.truncate(0)
                raise httpx2.RemoteProtocolError("the server sent another part than was asked for")
            # No chunk size: a chunk that is not full is lost when the connection breaks.
            for chunk in response.iter_bytes():
                # What exceeds the listed size is dropped; the checksum shows if that was right.
                n_have += out.write(chunk[: file.n_bytes - n_have])
                self.on_progress(self.n_done + n_have, self.offer.n_bytes)
                if n_have == file.n_bytes:
                    return
        raise httpx2.RemoteProtocolError("the server closed the connection early")


def _partial(blob: Path) -> Path:
    """Return the path of an incomplete blob; older versions of huggingface_hub resume it too."""
    return blob.with_name(f"{blob.name}.incomplete")


def _n_bytes(path: Path) -> int:
    """Return the file's size, or -1 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
