"""Requests to the hub about one repository. Every failure becomes a `ModelError` of one line.

The requests carry the user's token but, unlike those of the huggingface_hub package, no description
of the machine and its programs.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from streamd import __version__
from streamd.engine.store.places import Places, access_token, timeout_s
from streamd.engine.store.repository import RemoteFile, Repository
from streamd.errors import ModelError

_MAX_LISTING = 16_000_000


@dataclass(frozen=True, slots=True)
class HubClient:
    """Asks the hub that `here` names about the `repository`; `connected` makes one."""

    repository: Repository
    here: Places
    client: httpx2.Client

    def description(self) -> bytes:
        """Get the hub's description of the repository, in JSON."""
        revision = self.repository.revision.replace("/", "%2F")
        url = f"{self.here.endpoint}/api/models/{self.repository.id}/revision/{revision}"
        answer = bytearray()
        with self.stream(f"{url}?blobs=true") as response:
            for chunk in response.iter_bytes():
                answer += chunk
                if len(answer) > _MAX_LISTING:
                    raise ModelError(f"{self.repository}: the hub's list of files does not end")
        return bytes(answer)

    def url(self, file: RemoteFile, commit: str) -> str:
        """Return the address of the file's content."""
        return f"{self.here.endpoint}/{self.repository.id}/resolve/{commit}/{file.name}"

    @contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx2.Response]:
        """Send a request and yield the response.

        Raises
        ------
        ModelError
            The hub refuses the request.
        """
        sent = {"User-Agent": f"streamd/{__version__}", **(headers or {})}
        if token := access_token():
            if not token.isascii():
                raise ModelError("HF_TOKEN, or what hf auth login stored, is not a valid token")
            sent["Authorization"] = f"Bearer {token}"
        with self.client.stream("GET", url, headers=sent) as response:
            if not response.is_success:
                raise self._refusal(response)
            yield response

    def _refusal(self, response: httpx2.Response) -> ModelError:
        """What the hub's error codes mean: huggingface_hub ``hf_raise_for_status``."""
        host, status = self.here.host, response.status_code
        code = response.headers.get("X-Error-Code", "")
        if code == "GatedRepo":
            return ModelError(
                f"{self.repository} is gated: accept its terms at "
                f"{self.here.site}/{self.repository.id}, then set HF_TOKEN or run hf auth login"
            )
        if code == "RevisionNotFound":
            return ModelError(
                f"{self.repository.id} has no branch, tag or commit {self.repository.revision}"
            )
        if code == "EntryNotFound":
            return ModelError(f"{self.repository}: {host} lists a file that it does not have")
        if status in (401, 403, 404):
            return ModelError(
                f"{self.repository}: no such repository on {host}, or a private one (then set "
                "HF_TOKEN or run hf auth login)"
            )
        return ModelError(f"{self.repository}: {host} answers with error {status}; try again later")


@contextmanager
def connected(repository: Repository, here: Places) -> Iterator[HubClient]:
    """Yield a client; errors of network and disk inside the block become a `ModelError`."""
    if here.offline:
        raise ModelError(
            f"{repository} is not downloaded while HF_HUB_OFFLINE is set; without it: "
            f"streamd models get {repository}"
        )
    # These would log whole addresses, with the signatures and passwords in them.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with httpx2.Client(follow_redirects=True, timeout=timeout_s()) as client:
            yield HubClient(repository, here, client)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        # httpx2 raises ValueError for an invalid proxy address.
        raise ModelError(
            f"{repository}: {here.host} cannot be reached ({reason(error)}); "
            "check the network, or name a model that is here (streamd models list)"
        ) from error
    except OSError as error:
        raise ModelError(
            f"{repository}: {here.cache} cannot be written "
            f"({error.strerror or error}); what came so far is kept for the next try"
        ) from error


def reason(error: Exception) -> str:
    """Return the error's text in one line."""
    return " ".join(str(error).split()) or type(error).__name__
