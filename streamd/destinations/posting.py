"""What destinations over HTTP share: one POST with limits, whose errors name no key."""

import asyncio
import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2

from streamd.destinations.delivery import DeliveryError
from streamd.models.store.download import trusted_certificates
from streamd.version import __version__

_TIMEOUT_S = 10.0
"""For all of a request: a service that takes longer is in trouble."""
_MOST_BYTES = 64 << 10
"""Of an answer, of which hardly anything is used."""
_LATER = (408, 425, 429)
"""Refusals that mean: not now (RFC 9110, 8470, 6585)."""
_LONGEST_WAIT_S = 600.0
"""As long as a service may ask for (``Retry-After``): what waits meanwhile is bounded."""


def host_of(url: str) -> str:
    """Return what messages may say of an address: its host; all else may be a key."""
    return urlsplit(url).hostname or "?"


class HttpClient:
    """Requests to one service. Redirects are not followed: the text is meant for that address."""

    def __init__(self) -> None:
        # At -vv it would log each address with its key.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        agent = {"User-Agent": f"streamd/{__version__}"}
        # A session begins with one, which would hold up all others to read the certificates.
        trusted = trusted_certificates()
        self._http = httpx2.AsyncClient(timeout=_TIMEOUT_S, headers=agent, verify=trusted)

    async def request(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] = {},
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request, with `query` added to the address; return the beginning of the answer.

        Raises `DeliveryError`.
        """
        try:
            # `params` would encode the query that is there anew, and break its signature.
            added = str(httpx2.QueryParams(query))
            mark = "&" if urlsplit(url).query else "?"
            whole = f"{url}{mark}{added}" if added else url
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self._http.stream(method, whole, content=body, headers=headers) as answer,
            ):
                content = b""
                async for block in answer.aiter_raw():
                    content += block
                    if len(content) > _MOST_BYTES:
                        break
        except (TimeoutError, httpx2.TimeoutException):
            raise DeliveryError(f"no answer within {_TIMEOUT_S:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            # Its text may have the address.
            is_away = isinstance(error, httpx2.ConnectError)
            what = "cannot connect" if is_away else f"the request failed ({type(error).__name__})"
            raise DeliveryError(what) from None
        if not answer.is_success:
            is_refusal = answer.is_client_error and answer.status_code not in _LATER
            wanted = answer.headers.get("retry-after", "")
            after_s = min(float(wanted), _LONGEST_WAIT_S) if wanted.isdecimal() else 0.0
            what = f"HTTP {answer.status_code}"
            raise DeliveryError(what, is_refusal=is_refusal, after_s=after_s)
        return content

    async def close(self) -> None:
        await self._http.aclose()
