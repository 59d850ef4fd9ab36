"""A client of a running streamd: its events, from anywhere, without a gap."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from http import HTTPStatus
from http.client import HTTPException
from ssl import SSLCertVerificationError, SSLError
from typing import get_args
from urllib.parse import parse_qsl, urlencode, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, build_opener
from urllib.request import Request as URLRequest

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from streamd.errors import ConfigError, StreamdError, WireError
from streamd.events import PROTOCOL, Eos, Fault, Final, SessionEvent
from streamd.server.routes import SESSIONS_PATH
from streamd.server.wire import CLOSE_CODES, STREAM_PATH, Hello

_MAX_RETRY_S = 5.0
_ANSWER_S = 10.0
"""How long the server may be silent when it is asked for its sessions."""
_MAX_ANSWER_BYTES = 1 << 20
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}

_log = logging.getLogger(__name__)
_decoder: msgspec.json.Decoder[Hello | SessionEvent] = msgspec.json.Decoder(Hello | SessionEvent)


class _Tagged(msgspec.Struct, frozen=True):
    type: str


class _SessionName(msgspec.Struct, frozen=True):
    name: str


class _SessionList(msgspec.Struct, frozen=True):
    sessions: list[_SessionName]


_tag_decoder: msgspec.json.Decoder[_Tagged] = msgspec.json.Decoder(_Tagged)
_TAGS = {kind.__struct_config__.tag for kind in (Hello, *get_args(SessionEvent))}


async def watch(
    url: str, *, after: int | None = None, token: str | None = None, retry_ms: int = 500
) -> AsyncGenerator[SessionEvent, None]:
    """Yield the events of a session until its `Eos`, across any number of lost connections.

    Once connected it never gives up: it reconnects with ``after`` the last final, so that none is
    lost or repeated. Close it early with `contextlib.aclosing`.

    In `url`, ``ws://HOST:PORT``, the scheme may also be ``wss``, ``http``, ``https`` or missing,
    and the query may have ``session=`` (by default the server's own microphone, or else the newest
    session, for which it waits) and the other options of docs/protocol.md. A `token` may also be in
    the fragment, as in a link to the page (``http://HOST:PORT/#token=``). The finals
    after `after` are replayed first. `retry_ms` is the pause before the first attempt to
    reconnect; it doubles up to 5 s.

    Raises `ConfigError` if `url` is not an address, `StreamdError` if the first attempt to connect
    fails or the server is not streamd, `WireError` if it refuses (such as `no_such_session`).
    """
    position = _Position(url, after)
    token = token or position.token
    connection = await _connect_first(position, token)
    while True:
        async with connection:
            try:
                async for message in connection:
                    event = position.follow(message)
                    if event is not None:
                        yield event
                    if isinstance(event, Eos):
                        return
            except ConnectionClosed as error:
                _log.debug("the connection ended: %s", error)
            except WireError as error:
                if error.code != "no_such_session":
                    raise
                if position.session:
                    there = ", ".join(await _sessions(position, token)) or "none"
                    raise WireError(error.code, f"{error}; sessions: {there}") from None
                await _find_session(position, token, retry_ms / 1000)
                connection = await _connect_first(position, token)
                continue
        _log.warning("lost the connection to %s: reconnecting", position.origin)
        connection = await _reconnect(position, token, retry_ms / 1000)


class _Position:
    """The session that we watch, and the last final that we have."""

    def __init__(self, url: str, after: int | None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"ws://{url}")
            is_complete = parts.port != 0 and bool((parts.hostname or "").encode("idna"))
        except ValueError:
            is_complete = False
        if not is_complete or parts.scheme not in _SCHEMES:
            raise ConfigError(f"not a server's address: {url!r}; expected ws://HOST:PORT")
        self.origin = f"{_SCHEMES[parts.scheme]}://{parts.netloc}"
        self._path = parts.path if parts.path.strip("/") else STREAM_PATH
        self._query = dict(parse_qsl(parts.query))
        self.token = dict(parse_qsl(parts.fragment)).get("token")
        if after is not None:
            self._query["after"] = str(after)
        self._greeted = False

    @property
    def session(self) -> str:
        """The session that was asked for; empty: that of the server's own microphone."""
        return self._query.get("session", "")

    def choose(self, session: str, *, whole: bool) -> None:
        """Ask for a session: for all of it, or what comes from now on."""
        self._query["session"] = session
        if whole:
            self._query.setdefault("after", "0")

    @property
    def url(self) -> str:
        """The address to connect to for the events that we do not have yet."""
        return f"{self.origin}{self._path}?{urlencode(self._query)}"

    def follow(self, message: str | bytes) -> SessionEvent | None:
        """Decode a message and update the position; None if it is not an event for the caller."""
        try:
            tag = _tag_decoder.decode(message).type
            # A newer server may send messages that this version does not know.
            event = _decoder.decode(message) if tag in _TAGS else None
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamdError(f"{self.origin} does not speak {PROTOCOL}: {error}") from error
        if isinstance(event, Hello):
            self._greet(event)
            return None
        if isinstance(event, Fault) and event.fatal and event.code in CLOSE_CODES:
            if event.code == "slow":
                return None  # the server closes the connection now, and we reconnect
            raise WireError(event.code, f"{self.origin} refuses: {event.message}")
        if not self._greeted:
            raise StreamdError(f"{self.origin} is a websocket but does not speak {PROTOCOL}")
        if isinstance(event, Final):
            self._query["after"] = str(event.seq)
        return event

    def _greet(self, hello: Hello) -> None:
        self._greeted = True
        if "after" not in self._query:
            self._query["after"] = str(hello.seq)
        elif self._query.get("epoch", hello.epoch) != hello.epoch:
            self._query["after"] = "0"  # another run of the session, which counts from 1 again
        self._query["epoch"] = hello.epoch


async def _connect(position: _Position, token: str | None) -> ClientConnection:
    return await connect(
        position.url,
        subprotocols=[Subprotocol(PROTOCOL)],
        additional_headers={"Authorization": f"Bearer {token}"} if token else None,
        compression=None,
        proxy=None,
    )


async def _connect_first(position: _Position, token: str | None) -> ClientConnection:
    try:
        return await _connect(position, token)
    except InvalidURI as error:
        raise ConfigError(f"{error}; expected ws://HOST:PORT") from error
    except InvalidStatus as error:
        raise _refused(position, error, token) from error
    except InvalidHandshake as error:
        hint = "" if position.origin.startswith("wss:") else "; with TLS its address is wss://..."
        raise StreamdError(f"{position.origin} is not a streamd server: {error}{hint}") from error
    except SSLCertVerificationError as error:
        fix = "trust its issuer with SSL_CERT_FILE"
        raise StreamdError(f"{position.origin}: {error.verify_message}; {fix}") from error
    except (SSLError, ConnectionResetError) as error:
        fix = f"without TLS its address is {position.origin.replace('wss:', 'ws:')}"
        raise StreamdError(f"{position.origin} does not speak TLS: {fix}") from error
    except OSError as error:  # TimeoutError is one too
        raise StreamdError(
            f"cannot connect to {position.origin} ({error or 'timed out'}): is streamd running?"
        ) from error


async def _find_session(position: _Position, token: str | None, pause_s: float) -> None:
    """Choose the newest session of a server without a microphone; wait until there is one."""
    has_logged = False
    while True:
        if found := await _sessions(position, token):
            position.choose(found[-1], whole=has_logged)
            return
        if not has_logged:
            _log.info("nobody speaks at %s yet; waiting", position.origin)
        has_logged = True
        await asyncio.sleep(pause_s)


async def _sessions(position: _Position, token: str | None) -> list[str]:
    """Return the names of the server's sessions, oldest first."""
    address = f"{position.origin.replace('ws', 'http', 1)}{SESSIONS_PATH}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = URLRequest(address, headers=headers)
    try:
        answer = await asyncio.to_thread(_answer, request)
        found = msgspec.json.decode(answer, type=_SessionList).sessions
    except TimeoutError as error:
        raise StreamdError(f"{address} does not answer: is that a streamd server?") from error
    except (OSError, HTTPException, msgspec.DecodeError) as error:
        raise StreamdError(f"{address} cannot be read: {error}") from error
    return [session.name for session in found]


def _answer(request: URLRequest) -> bytes:
    # Without the proxies of the environment, like the websocket.
    opener = build_opener(ProxyHandler({}), HTTPSHandler())
    with opener.open(request, timeout=_ANSWER_S) as answer:
        body: bytes = answer.read(_MAX_ANSWER_BYTES)
        return body


async def _reconnect(position: _Position, token: str | None, pause_s: float) -> ClientConnection:
    while True:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_RETRY_S)
        try:
            return await _connect(position, token)
        except InvalidStatus as error:
            if error.response.status_code < 500:
                raise _refused(position, error, token) from error
        except (InvalidHandshake, OSError) as error:
            _log.debug("%s is still unreachable: %s", position.origin, error)


def _refused(position: _Position, error: InvalidStatus, token: str | None) -> StreamdError:
    answer = error.response
    text = answer.body.decode(errors="replace").strip().partition("\n")[0] if answer.body else ""
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        fix = "the token is wrong" if token else "it needs a token: --token-file or STREAMD_TOKEN"
        return StreamdError(f"{position.origin} refuses: {fix}")
    return StreamdError(f"{position.origin} refuses: {answer.status_code} {text[:200]}")
