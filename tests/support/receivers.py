"""Stand-ins on loopback for what receives captions: a service over HTTP, and OBS Studio.

They check what the published protocols demand, and answer as those say.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from streamd.destinations.obs import answer_to


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A service over HTTP: what it was sent, and the codes that it answers with, then 200.

    `got` is called in the event loop for each request, after its answer.
    """

    codes: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    answer: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    got: Callable[[], object] = lambda: None


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    """Serve it as long as the context lasts; its `url` is where."""
    loop = asyncio.get_running_loop()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append(Request(self.command, self.path, headers, body))
            code = receiver.codes.pop(0) if receiver.codes else 200
            self.send_response(code)
            if code in (301, 307):
                self.send_header("Location", f"{receiver.url}/elsewhere")
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.answer)))
            self.end_headers()
            self.wfile.write(receiver.answer)
            loop.call_soon_threadsafe(lambda: receiver.got())

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Studio:
    """OBS: the captions that it was sent, and the codes that it answers with, then 100 (success).

    It lets nobody in who does not know its `password`, if it has one.
    """

    password: str = ""
    codes: list[int] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    n_connections: int = 0
    address: str = ""
    drops: int = 0
    """Connections that it drops after a request, without an answer."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def studio(obs: Studio) -> AsyncIterator[Studio]:
    """Serve it as long as the context lasts; its `address` is where, as it was before if it was."""
    challenge, salt = (
        "+IxH4CnCiqpX1rM9scsNynZzbOe4KhDeYcTNS3PDaeY=",
        "lM1GncleQOaCu9lT1yeUZhFYnqhsLLP1G5lAGo3ixaI=",
    )

    async def run(socket: ServerConnection) -> None:
        obs.n_connections += 1
        hello: dict = {"obsWebSocketVersion": "5.5.2", "rpcVersion": 1}
        if obs.password:
            hello["authentication"] = {"challenge": challenge, "salt": salt}
        await socket.send(json.dumps({"op": 0, "d": hello}))
        identify = json.loads(await socket.recv())
        assert identify["op"] == 1
        assert identify["d"]["rpcVersion"] == 1
        wanted = answer_to(challenge, salt, obs.password) if obs.password else None
        if identify["d"].get("authentication") != wanted:
            await socket.close(4009, "Authentication failed.")
            return
        await socket.send(json.dumps({"op": 2, "d": {"negotiatedRpcVersion": 1}}))
        async for text in socket:
            if obs.drops:
                obs.drops -= 1
                return
            await socket.send(answered(json.loads(text)))
            obs.heard.set()

    def answered(message: dict) -> str:
        assert message["op"] == 6
        asked = message["d"]
        assert asked["requestType"] == "SendStreamCaption"
        code = obs.codes.pop(0) if obs.codes else 100
        if code == 100:
            obs.captions.append(asked["requestData"]["captionText"])
        status = {"result": code == 100, "code": code}
        kept = {name: asked[name] for name in ("requestType", "requestId")}
        return json.dumps({"op": 7, "d": {**kept, "requestStatus": status}})

    async def quietly(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await run(socket)

    port = int(obs.address.rpartition(":")[2] or 0)
    async with serve(quietly, "127.0.0.1", port, subprotocols=["obswebsocket.json"]) as server:
        port = server.sockets[0].getsockname()[1]
        obs.address = f"ws://127.0.0.1:{port}"
        yield obs
