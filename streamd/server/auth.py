"""Where the server listens and whose requests it accepts.

A browser sends websocket requests to any address that a page names, so the server checks what a
page may do: `Origin` must be ours (or absent: the client is not a browser), and `Host` must be a
name of this machine, or else another site could point its name at our address (DNS rebinding).
Clients on other machines need a token.
"""

import ipaddress
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

from websockets.http11 import Request, Response

from streamd.errors import ConfigError
from streamd.events import PROTOCOL
from streamd.options import BindOptions
from streamd.server.access import LIVE, Access, Rights, granted, grants
from streamd.server.dialects import DIALECTS, requested
from streamd.server.exchange import plain
from streamd.server.routes import (
    HEALTH_PATH,
    METRICS_PATH,
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
        grantors = grants(bind)
        if token is not None and not token.strip():
            raise ConfigError("the token is empty: put one into the --token-file")
        if not (grantors or is_loopback(host)):
            raise ConfigError(
                f"refusing to listen on {host} without a token, since other machines could "
                "connect: give --share, --token-file, STREAMD_TOKEN or --host 127.0.0.1"
            )
        self._bind, self._grants, self._pages = bind, grantors, pages

    def with_tokens(self, bind: BindOptions) -> "Auth":
        """Return the same checks with the tokens of `bind`; raises as the constructor does."""
        changed = replace(
            self._bind, token=bind.token, listen_token=bind.listen_token, tokens=bind.tokens
        )
        return Auth(changed, self._pages)

    def check(self, request: Request) -> Response | None:
        """Answer the request, or return None if it may proceed to `routes` or the websocket."""
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        path = request.path.partition("?")[0]
        host = _name_and_port(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_own_host(host):
            return plain(403, "unknown host: allow this name with --allow")
        if path == HEALTH_PATH:
            return plain(200, "ok")
        if not (path in DIALECTS and is_websocket(request)) and (page := self._pages.get(path)):
            return serve_page(page, host)
        is_known = path in PATHS or path in DIALECTS or session_in(path) or is_of_library(path)
        if not is_known:
            return plain(404, f"not found: the websocket is at {STREAM_PATH}")
        if not all(self._is_allowed_origin(origin, hosts[0]) for origin in origins):
            why = "allow this site with --allow, or have the proxy pass on Host with its port"
            return plain(403, f"origin not allowed: {why}")
        # A load balancer that asks whether the server is ready has no token.
        return None if path == READY_PATH else self._check_token(path, request)

    def access(self, request: Request) -> Access | None:
        """What the token of a client allows; None if it has none that is valid."""
        if not self._grants:
            return Access()
        return granted(self._grants, _presented_tokens(request))

    def _check_token(self, path: str, request: Request) -> Response | None:
        if (access := self.access(request)) is None:
            wanted = {"WWW-Authenticate": "Bearer"}
            has_one = any(_presented_tokens(request))
            why = "this token is wrong" if has_one else "token required"
            return plain(401, f"{why}: send Authorization: Bearer TOKEN", wanted)
        if is_of_library(path) and not access.is_owner:
            return plain(403, "this token is not the owner's: the library needs that one")
        if access.is_link and path in (METRICS_PATH, *UPLOADS):
            return plain(403, f"this token allows nothing but session {access.sessions[0]!r}")
        return self._check_session(path, request, access)

    def _check_session(self, path: str, request: Request, access: Access) -> Response | None:
        role, session = Role.LISTEN, session_in(path)
        joins = path == STREAM_PATH or (path in DIALECTS and is_websocket(request))
        if joins:
            role, session = requested(request.path)
        if access.rights is Rights.LISTEN and (path in UPLOADS or role is not Role.LISTEN):
            return plain(403, "this token is for listeners: sending audio needs another")
        if access.rights is Rights.LISTEN and path == SHARE_PATH and self._bind.share == "speak":
            return plain(403, "this token is for listeners: the link has another")
        if session is None and joins and role is Role.LISTEN:
            session = LIVE
        if session is not None and not access.covers(session):
            named = ", ".join(access.sessions)
            return plain(403, f"this token is not for session {session!r}, but for: {named}")
        return None

    def _is_own_host(self, host: str) -> bool:
        # With a token a foreign name does no harm, and a reverse proxy may well use one.
        name = _host_name(f"//{host}")
        return name is not None and (
            bool(self._grants)
            or is_loopback(name)
            or name in (self._bind.host, *self._bind.allowed_hosts)
        )

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        name = _host_name(origin)
        if name is None:
            return False
        ours = is_loopback(name) or urlsplit(origin).netloc == host
        return ours or origin in self._bind.allow


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


def client_address(peer: object, request: Request | None) -> str:
    """Return the address of a client, for the log.

    It is what a proxy on this machine says (``X-Forwarded-For``); other machines are not believed.
    """
    host = str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else "localhost"
    if request is not None and is_loopback(host):
        for given in request.headers.get_all("X-Forwarded-For"):
            with suppress(ValueError):
                # Without the zone of an address ("fe80::1%eth0"), which may be any text.
                last = given.rpartition(",")[2].partition("%")[0]
                host = str(ipaddress.ip_address(last.strip()))
    return host


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
