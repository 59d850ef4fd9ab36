"""Closed captions for OBS Studio, through the websocket server that it has since version 28.

Protocol 5.x: github.com/obsproject/obs-websocket, docs/generated/protocol.md. `SendStreamCaption`
puts CEA-608 captions into the outgoing stream, so that viewers can turn them on.
"""

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from streamd.destinations.delivery import DeliveryError, Destination, Parcel
from streamd.destinations.shown import ShownCues
from streamd.errors import ConfigError
from streamd.events import SessionEvent
from streamd.options import CueLayout

PASSWORD_VARIABLE = "STREAMD_OBS_PASSWORD"
_PORT = 4455
_LAYOUT = CueLayout(line_cells=32, max_lines=2)
"""A row of CEA-608 has 32 columns; more than two rows hide the picture."""
_TIMEOUT_S = 5.0
_CLOSE_S = 0.5
"""How long the end of the program waits for OBS, which is all the time that is left by then."""
_MOST_BYTES = 1 << 16
_HELLO, _IDENTIFY, _IDENTIFIED, _REQUEST, _RESPONSE = 0, 1, 2, 6, 7
_NOT_STREAMING = 501
"""OutputNotRunning"""
_WRONG_PASSWORD = 4009


class _ObsMessage(msgspec.Struct):
    op: int
    d: dict[str, Any]


_decoder = msgspec.json.Decoder(_ObsMessage)


def address_of(text: str) -> str:
    """Return the address of OBS' server: this machine's usual one, unless HOST[:PORT] is given.

    Raises `ConfigError` if that is none.
    """
    given = urlsplit(text if "://" in text else f"ws://{text or '127.0.0.1'}")
    try:
        if given.scheme not in ("ws", "wss") or not given.hostname or given.username:
            raise ValueError
        host = f"[{given.hostname}]" if ":" in given.hostname else given.hostname
        return f"{given.scheme}://{host}:{given.port or _PORT}"
    except ValueError:
        wanted = f"obs:HOST:PORT; the password is for {PASSWORD_VARIABLE}"
        raise ConfigError(f"--to: obs needs no more than an address: {wanted}") from None


def answer_to(challenge: str, salt: str, password: str) -> str:
    """Return the proof of the password that OBS asks for."""
    secret = base64.b64encode(hashlib.sha256((password + salt).encode()).digest())
    return base64.b64encode(hashlib.sha256(secret + challenge.encode()).digest()).decode()


class Obs(Destination[str]):
    """Sends captions to the stream that OBS puts out, in rows that fit into it."""

    is_live = True

    def __init__(self, address: str, password: str, names: Mapping[int, str]) -> None:
        self.name = f"OBS ({urlsplit(address).netloc})"
        self._address, self._password = address, password
        self._cues = ShownCues(_LAYOUT, names)
        self._socket: ClientConnection | None = None
        self._n_requests = 0

    def parts(self, event: SessionEvent) -> Sequence[Parcel[str]]:
        return [Parcel("\n".join(lines), lasts_ms) for lines, lasts_ms in self._cues.paced(event)]

    async def open(self) -> None:
        """Connect and prove the password."""
        await self._bounded(self._connected())

    async def send(self, content: str) -> None:
        await self._bounded(self._show(content))

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _bounded(self, work: Any) -> None:  # noqa: ANN401 - a coroutine of either method
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await work
        except (OSError, WebSocketException, msgspec.MsgspecError, KeyError, TypeError) as error:
            await self.close()
            raise DeliveryError(_why(error)) from None

    async def _connected(self) -> ClientConnection:
        if self._socket is None:
            protocols = [Subprotocol("obswebsocket.json")]
            self._socket = await connect(
                self._address,
                subprotocols=protocols,
                max_size=_MOST_BYTES,
                proxy=None,
                close_timeout=_CLOSE_S,
            )
            hello = await self._receive(self._socket, _HELLO)
            identify: dict[str, Any] = {"rpcVersion": 1, "eventSubscriptions": 0}
            if challenge := hello.get("authentication"):
                if not self._password:
                    await self.close()
                    raise DeliveryError(f"it wants a password: set {PASSWORD_VARIABLE}")
                identify["authentication"] = answer_to(
                    challenge["challenge"], challenge["salt"], self._password
                )
            await self._put(self._socket, _IDENTIFY, identify)
            await self._receive(self._socket, _IDENTIFIED)
        return self._socket

    async def _show(self, text: str) -> None:
        socket = await self._connected()
        self._n_requests += 1
        request = {
            "requestType": "SendStreamCaption",
            "requestId": str(self._n_requests),
            "requestData": {"captionText": text},
        }
        await self._put(socket, _REQUEST, request)
        while (answer := await self._receive(socket, _RESPONSE))["requestId"] != str(
            self._n_requests
        ):
            pass  # of a request that took too long
        status = answer["requestStatus"]
        if not status["result"]:
            code = status["code"]
            why = "it is not streaming" if code == _NOT_STREAMING else f"it answers {code}"
            raise DeliveryError(why)

    async def _receive(self, socket: ClientConnection, op: int) -> dict[str, Any]:
        """Return the data of the next message with this code; others are of no interest."""
        while (message := _decoder.decode(await socket.recv())).op != op:
            pass
        return message.d

    async def _put(self, socket: ClientConnection, op: int, data: dict[str, Any]) -> None:
        await socket.send(msgspec.json.encode({"op": op, "d": data}).decode())


def _why(error: Exception) -> str:
    """Return what is wrong with OBS, for its user."""
    match error:
        case ConnectionClosed():
            refused = error.rcvd is not None and error.rcvd.code == _WRONG_PASSWORD
            return f"the password of {PASSWORD_VARIABLE} is wrong" if refused else "it has closed"
        case TimeoutError():
            return f"no answer within {_TIMEOUT_S:.0f} s"
        case OSError():
            return "cannot connect: start OBS and its websocket server"
    return "what answers does not speak obs-websocket 5"
