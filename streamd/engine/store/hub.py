"""One repository of the hub, as seen over HTTP; every answer but the asked-for one is one line.

huggingface_hub gives the session (proxies, certificates, redirects) and the user's token. The
requests are our own: those of the library also tell what machine and which programs they come from.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
from huggingface_hub import constants, get_session, get_token

from streamd import __version__
from streamd.engine.store.places import Places
from streamd.engine.store.repository import RemoteFile, Repository
from streamd.errors import ModelError

_MAX_LISTING = 16_000_000


@dataclass(frozen=True, slots=True)
class Hub:
    """The `repository` on the hub of `here`."""

    repository: Repository
    here: Places

    def answer(self) -> bytes:
        """What the hub says of the repository, in JSON."""
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
        """Where the file's content is."""
        return f"{self.here.endpoint}/{self.repository.id}/resolve/{commit}/{file.name}"

    @contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx2.Response]:
        """The hub's answer, if it is one."""
        sent = {"User-Agent": f"streamd/{__version__}", **(headers or {})}
        if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            if not token.isascii():
                raise ModelError("HF_TOKEN, or what hf auth login kept, is no token of a hub")
            sent["Authorization"] = f"Bearer {token}"
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=sent, timeout=timeout_s) as response:
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
    def one_line(self) -> Iterator[None]:
        """Whatever can go wrong on the net or on the disk becomes a `ModelError`."""
        if self.here.offline:
            raise ModelError(
                f"{self.repository} is not downloaded while HF_HUB_OFFLINE is set; without it: "
                f"streamd models get {self.repository}"
            )
        # The library would write to standard error itself, past our handler.
        logging.getLogger("huggingface_hub").handlers.clear()
        # These would tell addresses whole, with the signatures and passwords that stand in them.
        for name in ("httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            # ValueError: an address of a proxy that is none.
            raise ModelError(
                f"{self.repository}: {self.here.host} cannot be reached ({reason(error)}); "
                "check the network, or name a model that is here (streamd models list)"
            ) from error
        except OSError as error:
            raise ModelError(
                f"{self.repository}: {self.here.cache} cannot be written "
                f"({error.strerror or error}); what came so far is kept for the next try"
            ) from error


def reason(error: Exception) -> str:
    """What the error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
