"""Where the server listens and whose requests it accepts.

A browser sends websocket requests to any address that a page names, so the server checks what a
page may do: `Origin` must be ours (or absent: the client is not a browser), and `Host` must be a
name of this machine, or else another site could point its name at our address (DNS rebinding).
Clients on other machines need a token.
"""

import hmac
import ipaddress
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

from websockets.http11 import Request, Response

from streamd.errors import ConfigError
from streamd.events import PROTOCOL
from streamd.options import BindOptions
from streamd.server.dialects import DIALECTS, requested_role
from streamd.server.exchange import plain
from streamd.server.routes import (
    HEALTH_PATH,
    PATHS,
    READY_PATH,
    SHARE_PATH,
    UPLOADS,
    Page,
    is_of_library,
    serve_page,
    session_in,
)
from streamd.server.wire import STREAM_PATH, Role

BEARER_PROTOCOLS = ("streamd.bearer.", "openai-insecure-api-key.")
"""Browsers cannot send headers with a websocket: they offer this and the token as a subprotocol."""
TOKEN_PROTOCOLS = ("token", "bearer")
"""Deepgram's clients in browsers offer one of these, and the token as another."""
SUBPROTOCOLS = (PROTOCOL, "realtime", *TOKEN_PROTOCOLS)
"""What is selected: browsers drop the connection unless one that they offered is."""
_NAME = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
"""Names of machines and addresses, in lower case."""


class Rights(IntEnum):
    """What a client may do, each with all before it.

    It may listen; speak, which is to send audio and to correct words; or have the server keep
    corrections for later sessions, as its owner may.
    """

    LISTEN = 0
    SPEAK = 1
    KEEP = 2


def guest_token(token: str) -> str:
    """Return the token in the link for those who may speak, which does not reveal the server's own.

    It is the same as long as that is.
    """
    return hmac.digest(token.strip().encode(), b"streamd: guests", "sha256").hex()[:32]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`, a name or an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(bind: BindOptions) -> ssl.SSLContext | None:
    """Make the TLS context, or None without a certificate; raises as `load_certificate`."""
    if not bind.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(bind, context)
    return context


def load_certificate(bind: BindOptions, context: ssl.SSLContext) -> None:
    """Read the files for new connections; raises `ConfigError` if they cannot be used."""
    try:
        context.load_cert_chain(bind.tls_cert, bind.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot use --tls-cert {bind.tls_cert} with --tls-key {bind.tls_key}: {reason}"
        ) from None


class Auth:
    """Checks requests; serves the files of `pages`, by path, to everybody.

    Raises `ConfigError` if other machines could connect, and there is no token, and if there is
    only one for listeners.
    """

    def __init__(self, bind: BindOptions, pages: Mapping[str, Page]) -> None:
        host, token = bind.host, bind.token
        if not all(each is None or each.strip() for each in (token, bind.listen_token)):
            raise ConfigError("the token is empty: put one into the --token-file")
        if token is None and bind.listen_token is not None:
            raise ConfigError("bind.listen_token_file needs --token-file, for those who send audio")
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"refusing to listen on {host} without a token, since other machines could "
                "connect: give --share, --token-file, STREAMD_TOKEN or --host 127.0.0.1"
            )
        self._bind, self._token, self._pages = bind, token, pages
        self._guest_token = guest_token(token) if token and bind.share == "speak" else None

    def with_tokens(self, token: str | None, listen_token: str | None) -> "Auth":
        """Return the same checks with other tokens; raises as the constructor does."""
        return Auth(replace(self._bind, token=token, listen_token=listen_token), self._pages)

    def check(self, request: Request) -> Response | None:
        """Answer the request, or return None if it may proceed to `routes` or the websocket."""
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        path = request.path.partition("?")[0]
        host = _name_and_port(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_own_host(host):
            return plain(403, "unknown host: allow this name with --allow-host")
        if path == HEALTH_PATH:
            return plain(200, "ok")
        if not (path in DIALECTS and is_websocket(request)) and (page := self._pages.get(path)):
            return serve_page(page, host)
        is_known = path in PATHS or path in DIALECTS or session_in(path) or is_of_library(path)
        if not is_known:
            return plain(404, f"not found: the websocket is at {STREAM_PATH}")
        if not all(self._is_allowed_origin(origin, hosts[0]) for origin in origins):
            return plain(403, "origin not allowed: allow this site with --allow-origin")
        # A load balancer that asks whether the server is ready has no token.
        return None if path == READY_PATH else self._check_token(path, request)

    def rights(self, request: Request) -> Rights:
        """What a client may do, if its request was accepted."""
        if self._token is None or _has(self._token, _presented_tokens(request)):
            return Rights.KEEP
        is_guest = _has(self._guest_token, _presented_tokens(request))
        return Rights.SPEAK if is_guest else Rights.LISTEN

    def _check_token(self, path: str, request: Request) -> Response | None:
        least = Rights.KEEP if is_of_library(path) else Rights.SPEAK
        if self.rights(request) >= least:
            return None
        if not _has(self._bind.listen_token, _presented_tokens(request)):
            wanted = {"WWW-Authenticate": "Bearer"}
            return plain(401, "token required: send Authorization: Bearer TOKEN", wanted)
        if is_of_library(path):
            return plain(403, "this token is for listeners: the library is its owner's")
        asked = requested_role(request.path) if path in DIALECTS else Role.LISTEN
        if path in UPLOADS or asked is not Role.LISTEN:
            return plain(403, "this token is for listeners: sending audio needs the other one")
        if path == SHARE_PATH and self._bind.share == "speak":
            return plain(403, "this token is for listeners: the link has the other one")
        return None

    def _is_own_host(self, host: str) -> bool:
        # With a token a foreign name does no harm, and a reverse proxy may well use one.
        name = _host_name(f"//{host}")
        return name is not None and (
            self._token is not None
            or is_loopback(name)
            or name in (self._bind.host, *self._bind.allow_host)
        )

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        name = _host_name(origin)
        if name is None:
            return False
        ours = is_loopback(name) or urlsplit(origin).netloc == host
        return ours or origin in self._bind.allow_origin


def _has(token: str | None, presented: Iterable[str]) -> bool:
    if token is None:
        return False
    wanted = token.strip().encode()
    tokens = (each.encode(errors="surrogateescape") for each in presented)
    return any(hmac.compare_digest(wanted, each) for each in tokens)


def _presented_tokens(request: Request) -> Iterator[str]:
    scheme, _, token = "".join(request.headers.get_all("Authorization")).partition(" ")
    # AssemblyAI's clients name no scheme.
    yield token if scheme.lower() in ("bearer", "token") else scheme
    yield from request.headers.get_all("X-API-Key")
    # Clients of WhisperLive and vosk-server can send nothing but an address.
    yield from parse_qs(request.path.partition("?")[2]).get("token", ())
    for offers in request.headers.get_all("Sec-WebSocket-Protocol"):
        names = [offer.strip() for offer in offers.split(",")]
        for name, following in pairwise([*names, ""]):
            if name in TOKEN_PROTOCOLS:
                yield following
            for prefix in BEARER_PROTOCOLS:
                if name.startswith(prefix):
                    yield name.removeprefix(prefix)


def is_websocket(request: Request) -> bool:
    """Whether the client wants a websocket; one that could speak HTTP/2 offers that as well."""
    offers = " ".join(request.headers.get_all("Upgrade")).lower()
    return "websocket" in offers.replace(",", " ").split()


def _name_and_port(host: str) -> str | None:
    """Return a ``Host`` as it may stand in another header, None if it has anything else in it."""
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if not _NAME.fullmatch(name):
        return None
    name = f"[{name}]" if ":" in name else name
    return name if port is None else f"{name}:{port}"


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as "//[::1"
        return None
