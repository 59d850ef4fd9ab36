"""Who may come in, and to which conversation.

Browsers send websocket requests to anybody, so what a page may do is decided here: `Origin` must be
ours (or absent: not a browser), and `Host` must be a name for this machine, or another site's name
could be pointed at our address (DNS rebinding). From other machines a token is required.
"""

import hmac
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from streamd.errors import ConfigError
from streamd.server.entrance import Entrance
from streamd.server.pages import Page

STREAM_PATH = "/v1/stream"
SESSIONS_PATH = "/v1/sessions"
HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
METRICS_PATH = "/metrics"
BEARER_PROTOCOL = "streamd.bearer."
"""Browsers cannot send headers with a websocket: they offer this and the token as a subprotocol."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`, a name or an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer instead of a websocket."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def _line(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer in a person's words."""
    return Answer(status, f"{text}\n".encode(), headers or {})


class Door:
    """Checks requests at an entrance; `pages` it hands to everybody, by path.

    Raises
    ------
    ConfigError : other machines could reach it, and there is no token
    """

    def __init__(self, entrance: Entrance, pages: Mapping[str, Page] | None = None) -> None:
        host, token = entrance.host, entrance.token
        if token is not None and not token.strip():
            raise ConfigError("the token is empty: put one into the --token-file")
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"refusing to let other machines in on {host} without a token: "
                "give --token-file, or --host 127.0.0.1"
            )
        self._entrance = entrance
        self._token = token
        self._pages = pages or {}

    def with_token(self, token: str | None) -> "Door":
        """The same door with another token; raises as the first one did."""
        return Door(replace(self._entrance, token=token), self._pages)

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer the request here, or None: let it become a websocket, or see `routes`."""
        answer = self._answer(request)
        return None if answer is None else respond(connection, answer)

    def _answer(self, request: Request) -> Answer | None:
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        path = request.path.partition("?")[0]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return _line(403, "this is not a name of the machine that streamd listens on")
        if path == HEALTH_PATH:
            return _line(200, "ok")
        if page := self._pages.get(path):
            return Answer(200, page.body, page.headers(hosts[0]))
        if path not in (READY_PATH, STREAM_PATH, SESSIONS_PATH, METRICS_PATH):
            return _line(404, f"streamd's websocket is at {STREAM_PATH}")
        if not all(self._may_come_from(origin, hosts[0]) for origin in origins):
            return _line(403, "pages of other sites are not let in")
        return self._guarded(path, request)

    def _guarded(self, path: str, request: Request) -> Answer | None:
        """What only those may have who know the token, but for what a load balancer asks."""
        if path != READY_PATH and not self._has_token(_shown_tokens(request)):
            wanted = {"WWW-Authenticate": "Bearer"}
            return _line(401, "a token is needed: Authorization: Bearer TOKEN", wanted)
        if path == STREAM_PATH and not request.headers.get_all("Upgrade"):
            return _line(426, "this is a websocket", {"Upgrade": "websocket"})
        return None

    def _is_ours(self, host: str) -> bool:
        # Behind a token a foreign name does no harm, and a reverse proxy may well use one.
        name = _host_name(f"//{host}")
        return name is not None and (
            self._token is not None
            or is_loopback(name)
            or name in (self._entrance.host, *self._entrance.hosts)
        )

    def _may_come_from(self, origin: str, host: str) -> bool:
        name = _host_name(origin)
        if name is None:
            return False
        ours = is_loopback(name) or urlsplit(origin).netloc == host
        return ours or origin in self._entrance.origins

    def _has_token(self, shown: Iterable[str]) -> bool:
        if self._token is None:
            return True
        wanted = self._token.strip().encode()
        tokens = (token.encode(errors="surrogateescape") for token in shown)
        return any(hmac.compare_digest(wanted, token) for token in tokens)


def respond(connection: ServerConnection, answer: Answer) -> Response:
    """The answer as the library sends it."""
    response = connection.respond(answer.status, "")
    response.body = answer.body
    del response.headers["Content-Length"]
    for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
        if name in response.headers:
            del response.headers[name]
        response.headers[name] = value
    return response


def _shown_tokens(request: Request) -> Iterator[str]:
    """The tokens that a client shows: in a header, or among the subprotocols."""
    scheme, _, token = "".join(request.headers.get_all("Authorization")).partition(" ")
    if scheme in ("Bearer", "Token"):
        yield token
    yield from request.headers.get_all("X-API-Key")
    for offers in request.headers.get_all("Sec-WebSocket-Protocol"):
        for offer in offers.split(","):
            if (name := offer.strip()).startswith(BEARER_PROTOCOL):
                yield name.removeprefix(BEARER_PROTOCOL)


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as "//[::1"
        return None
