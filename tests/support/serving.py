"""A daemon that only counts frames, a server in front of it, and clients."""

import asyncio
import json
import select
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import numpy as np
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamd.config import Config
from streamd.daemon.display import written
from streamd.errors import WireError
from streamd.events import Correction, Final, Partial, SpeakerName, TimedWord
from streamd.options import BindOptions, Choices, ServerLimits
from streamd.server import Recordings, Server, ServerInfo, Transcripts
from streamd.streams.hub import Hub
from streamd.streams.metrics import Metrics
from streamd.types import Frames, ms_from_frames

INFO = ServerInfo(model="fake", language="en")
CHOICES = Choices(language="en")


class CountingIngest:
    """A segment is what was fed until flush or finish; its text says how many frames that was."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.began_ms = 0
        self.is_resumed = self.hands_over = False
        self.moved = asyncio.Event()
        self.gaps: list[tuple[int, str]] = []
        self.frames: list[Frames] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.waiting_for_room = asyncio.Event()
        self.asked_to_flush = asyncio.Event()
        self.finished = ""
        self.corrected: list[tuple[str, bool]] = []
        self.kept: list[str] = []  # names of those whose voices are
        self.asked_to_keep: bool | None = False
        self.updates: list[Mapping[str, object]] = []
        self._done = 0
        self._seg = 0

    async def until(self, condition: Callable[[Self], bool]) -> None:
        """Wait for something that `feed` or `finish` makes true."""
        while not condition(self):
            self.moved.clear()
            await self.moved.wait()

    @property
    def n_fed(self) -> int:
        return sum(len(frames) for frames in self.frames)

    def samples(self) -> np.ndarray:
        return np.concatenate(self.frames).reshape(-1)

    async def choose(self, chosen: Mapping[str, object], *, secret: str, has_ms: int = 0) -> None:
        if "refused" in chosen.values():
            raise WireError("bad_option", f"not allowed: {chosen}")
        self.hub.choices = replace(self.hub.choices, **chosen)

    async def update(self, chosen: Mapping[str, object]) -> None:
        self.updates.append(chosen)
        self.moved.set()
        await self.choose(chosen, secret="")

    async def correct(self, correction: Correction, *, keep: bool) -> None:
        await self.choose({"hotwords": correction.text}, secret="")
        self.corrected.append((correction.text, keep))
        self.hub.publish(correction)

    def rename(self, naming: SpeakerName, *, keep: bool | None = False) -> None:
        if naming.name == "refused":
            raise WireError("bad_option", "name: not allowed")
        self.hub.publish(naming)
        self.asked_to_keep = keep
        self.kept += [naming.name] * bool(keep)

    def feed(self, frames: Frames) -> None:
        if self.is_over:
            return
        assert not self.finished, "fed after the end"
        self.frames.append(frames)
        self.moved.set()
        self.hub.publish(
            Partial(
                seg=self._seg,
                rev=len(self.frames),
                start_ms=ms_from_frames(self._done),
                end_ms=ms_from_frames(self.n_fed),
                text=f"{self.n_fed}",
                stable=0,
            )
        )

    async def wait_for_space(self) -> None:
        if not self.has_room.is_set():
            self.waiting_for_room.set()
        await self.has_room.wait()

    async def flush(self) -> None:
        self.asked_to_flush.set()
        await self.may_finish.wait()
        if self.n_fed == self._done or self.is_over:
            return
        text = f"{self.n_fed - self._done} frames"
        start_ms, end_ms = ms_from_frames(self._done), ms_from_frames(self.n_fed)
        word = TimedWord(text=text, start_ms=start_ms, end_ms=end_ms, prob=1.0, final=True)
        self.hub.publish(
            Final(
                seg=self._seg,
                start_ms=start_ms,
                end_ms=end_ms,
                text=text,
                language="en",
                words=(word,),
            )
        )
        self._done = self.n_fed
        self._seg += 1

    has_moved = False

    @property
    def is_over(self) -> bool:
        return self.hub.closed

    def end(self, reason: str, *, resumable: bool) -> None:
        self.has_room.set()
        self.may_finish.set()
        self.hub.close(reason)

    def gap(self, duration_ms: int, why: str) -> None:
        self.gaps.append((duration_ms, why))

    async def stored(self) -> None:
        pass

    def finalise(self) -> int:
        return ms_from_frames(self._done)

    async def finish(self, reason: str) -> None:
        assert not self.finished, "finished twice"
        self.finished = reason
        self.moved.set()
        self.has_room.set()
        await self.flush()
        self.hub.close(reason)


class CountingStreams:
    """The sessions of a daemon; "live" is its own."""

    def __init__(self) -> None:
        self.live = Hub("live", epoch="e1", choices=CHOICES)
        self.stream = CountingIngest(self.live)
        self.ingests: dict[str, CountingIngest] = {}
        self.opened = asyncio.Event()
        self.max_streams = 10
        self.reasons: list[str] = []
        self.metrics = Metrics(version="", model="fake")
        self.lag_ms = 0
        self.has_failed = False
        self.context = SimpleNamespace(new_keeper=None)

    async def prepare(self, session: str, **asked: object) -> None:
        pass

    def meant(self, model: str, exactly: bool) -> str:
        if exactly and model not in ("fake", "other"):
            raise WireError("bad_option", f"model: {model} is not on this server")
        return "other" if model == "other" else ""

    def hub(self, session: str) -> Hub | None:
        if session == "live":
            return self.live
        ingest = self.ingests.get(session)
        return None if ingest is None else ingest.hub

    def in_memory(self, session: str) -> Hub | None:
        return self.hub(session)

    def own(self, session: str) -> CountingIngest | None:
        return self.stream if session == "live" else None

    def names(self) -> list[str]:
        return ["live", *self.ingests]

    def unready(self) -> list[str]:
        return self.reasons

    def open(self, session: str, *, epoch: str | None = None, secret: str = "") -> CountingIngest:
        busy = self.ingests.get(session)
        if session == "live" or (busy is not None and not busy.finished):
            raise WireError("session_busy", f"somebody speaks in {session!r} already")
        if sum(not ingest.finished for ingest in self.ingests.values()) >= self.max_streams:
            raise WireError("too_many_streams", "no room for another stream")
        ingest = self.ingests[session] = CountingIngest(Hub(session, choices=CHOICES))
        self.opened.set()
        return ingest


class Client:
    """A websocket client that speaks JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.hello: dict[str, object] = {}

    async def get(self) -> dict[str, object]:
        message = json.loads(await self.connection.recv())
        assert isinstance(message, dict)
        return message

    async def until(self, kind: str) -> list[dict[str, object]]:
        """All messages up to the first of this type."""
        messages = [await self.get()]
        while messages[-1]["type"] != kind:
            messages.append(await self.get())
        return messages

    async def rest(self) -> list[dict[str, object]]:
        """All messages up to the end of the connection, which gives `close_code`."""
        messages: list[dict[str, object]] = []
        try:
            while True:
                messages.append(await self.get())
        except ConnectionClosed:
            return messages

    async def say(self, message: object) -> None:
        text = isinstance(message, str | bytes)
        await self.connection.send(message if text else json.dumps(message))

    async def stop(self) -> list[dict[str, object]]:
        """Say that all was said; gives the rest."""
        await self.say({"type": "stop"})
        return await self.rest()

    @property
    def close_code(self) -> int | None:
        return self.connection.close_code


@asynccontextmanager
async def client(
    port: int, query: str = "", *, path: str = "/v1/stream", **options: object
) -> AsyncIterator[Client]:
    address = f"ws://127.0.0.1:{port}{path}?{query}"
    async with connect(address, proxy=None, **options) as connection:
        yield Client(connection)


@asynccontextmanager
async def joined(port: int, query: str = "", **options: object) -> AsyncIterator[Client]:
    """A client that the server has greeted."""
    async with client(port, query, **options) as greeted:
        greeted.hello = await greeted.get()
        yield greeted


@asynccontextmanager
async def serving(
    streams: CountingStreams,
    *,
    port: int = 0,
    token: str | None = None,
    wyoming: str = "",
    bind: BindOptions | None = None,
    recordings: Recordings | None = None,
    info: ServerInfo = INFO,
    **limits: int,
) -> AsyncIterator[Server]:
    async with Server(
        bind or BindOptions(port=port, token=token, wyoming=wyoming),
        sessions=streams,
        info=info,
        recordings=recordings,
        limits=ServerLimits(**limits),
    ) as server:
        server.transcripts = Transcripts(streams, partial(written, Config()))
        yield server


class DeafClient:
    """A websocket client on a bare socket: it reads nothing that nobody asks for."""

    def __init__(self, port: int, query: str = "", *, path: str = "/v1/stream") -> None:
        self.socket = socket.socket()
        # Small, so that little is enough to fill it.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", port))
        self.request = (
            f"GET {path}?{query} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ).encode()

    async def opened(self) -> None:
        """Shake hands; whatever the server says next stays unread."""
        loop = asyncio.get_running_loop()
        self.socket.setblocking(False)
        await loop.sock_sendall(self.socket, self.request)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(self.socket, 1)

    def is_cut(self) -> bool:
        """Whether the server has reset the connection."""
        poll = select.poll()
        poll.register(self.socket, 0)  # POLLHUP and POLLERR always count
        return bool(poll.poll(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Relay:
    """A line to a server that can be cut, also by itself after so many bytes to the server."""

    def __init__(self, port: int, *, cut_after: Iterable[int] = ()) -> None:
        self.to_port = port
        self.cut_after = iter(cut_after)
        self.port = 0
        self.n_calls = 0
        self.n_to_drop = 0
        """How many of the next calls are dropped at once."""
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_calls += 1
        self._writers.add(writer)
        if self.n_to_drop:
            self.n_to_drop -= 1
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        self._writers.add(far_writer)
        there = _pipe(reader, far_writer, next(self.cut_after, None))
        await asyncio.gather(there, _pipe(far_reader, writer))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()


async def _pipe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None = None
) -> None:
    with suppress(OSError):
        while data := await reader.read(65536 if limit is None else min(limit, 65536)):
            writer.write(data)
            await writer.drain()
            if limit is not None and (limit := limit - len(data)) <= 0:
                break
    writer.close()


def certificate(folder: Path, name: str) -> None:
    """Make `cert.pem` and `key.pem` for 127.0.0.1."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 "
        f"-keyout key.pem -out cert.pem -subj /CN={name} -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
