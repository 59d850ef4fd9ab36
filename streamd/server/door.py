"""Who may come in, and to which conversation.

Browsers send websocket requests to anybody, so what a page may do is decided here: `Origin` must be
ours (or absent: not a browser), and `Host` must be a name for this machine, or another site's name
could be pointed at our address (DNS rebinding). From other machines a token is required.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from streamd.errors import ConfigError

STREAM_PATH = "/v1/stream"
HEALTH_PATH = "/healthz"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`, a name or an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer instead of a websocket."""

    status: int
    text: str
    headers: tuple[tuple[str, str], ...] = ()


class Door:
    """Checks requests for a server bound to `host`.

    Raises
    ------
    ConfigError : other machines could reach `host`, and there is no token
    """

    def __init__(self, host: str, token: str | None) -> None:
        if token is not None and not token.strip():
            raise ConfigError("the token is empty: put one into the --token-file")
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"refusing to let other machines in on {host} without a token: "
                "give --token-file, or --host 127.0.0.1"
            )
        self._host = host
        self._token = token

    def with_token(self, token: str | None) -> "Door":
        """The same door with another token; raises as the first one did."""
        return Door(self._host, token)

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer the request here, or None: let it become a websocket."""
        answer = self._answer(request)
        if answer is None:
            return None
        response = connection.respond(answer.status, answer.text + "\n")
        for name, value in answer.headers:
            response.headers[name] = value
        return response

    def _answer(self, request: Request) -> Refusal | None:
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        path = request.path.partition("?")[0]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return Refusal(403, "this is not a name of the machine that streamd listens on")
        if path == HEALTH_PATH:
            return Refusal(200, "ok")
        if path != STREAM_PATH:
            return Refusal(404, f"streamd's websocket is at {STREAM_PATH}")
        if not all(self._may_come_from(origin, hosts[0]) for origin in origins):
            return Refusal(403, "pages of other sites are not let in")
        return self._upgrade(request)

    def _upgrade(self, request: Request) -> Refusal | None:
        if not self._has_token(request.headers.get_all("Authorization")):
            wanted = ("WWW-Authenticate", "Bearer")
            return Refusal(401, "a token is needed: Authorization: Bearer TOKEN", (wanted,))
        if not request.headers.get_all("Upgrade"):
            return Refusal(426, "this is a websocket", (("Upgrade", "websocket"),))
        return None

    def _is_ours(self, host: str) -> bool:
        # Behind a token a foreign name does no harm, and a reverse proxy may well use one.
        name = _host_name(f"//{host}")
        return name is not None and (
            self._token is not None or is_loopback(name) or name == self._host
        )

    def _may_come_from(self, origin: str, host: str) -> bool:
        name = _host_name(origin)
        if name is None:
            return False
        return is_loopback(name) or urlsplit(origin).netloc == host

    def _has_token(self, authorization: list[str]) -> bool:
        if self._token is None:
            return True
        wanted = f"Bearer {self._token.strip()}".encode()
        shown = "".join(authorization).encode(errors="surrogateescape")
        return hmac.compare_digest(wanted, shown)


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as "//[::1"
        return None
