"""Wyoming on a TCP port: events as lines of JSON, some followed by samples.

Home Assistant speaks it. It knows no tokens.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from socket import SO_KEEPALIVE, SOL_SOCKET

import msgspec
from websockets.exceptions import ConnectionClosedOK

from streamd.errors import ConfigError, WireError
from streamd.language import LANGUAGES
from streamd.options import ServerLimits
from streamd.server.connection import ServerInfo, StuckError
from streamd.server.pacing import Pace
from streamd.server.wire import decoded

_MOST_DATA_BYTES = 128 << 10
"""Of an event, besides samples: a MiB of empty lists takes 150 ms to read."""


class _Header(msgspec.Struct):
    type: str
    data: dict[str, object] = msgspec.field(default_factory=dict)
    data_length: int = 0
    payload_length: int = 0


_decoder = msgspec.json.Decoder(_Header)
_data_decoder: msgspec.json.Decoder[dict[str, object]] = msgspec.json.Decoder(dict[str, object])


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``; raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"--wyoming {text}: expected [HOST:]PORT, such as 10300")
    return host.strip("[]") or "127.0.0.1", int(port)


class WyomingSocket:
    """What `Connection` needs, over TCP; answers ``describe`` and ``ping`` itself."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        info: ServerInfo,
        limits: ServerLimits,
    ) -> None:
        self._reader, self._writer, self._info = reader, writer, info
        self._deadline_s = limits.send_deadline_ms / 1000
        self._has_begun = False
        self._pace, self._wait_s = Pace(), 0.0
        self._format: Mapping[str, object] = {}
        self._payload: bytes | None = None  # of a chunk whose format was returned before it
        self._n_most, self._n_buffer = limits.max_message_bytes, limits.write_buffer_bytes // 4
        writer.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)

    def has_room(self, n_chars: int) -> bool:
        """Whether the send buffer has room for a text of this length."""
        return self._writer.transport.get_write_buffer_size() + n_chars < self._n_buffer

    def send_at_once(self, text: str) -> None:
        """Send an event, whether the send buffer has room for it or not."""
        self._writer.write(text.encode() + b"\n")

    async def send(self, text: str) -> None:
        """Send an event; raises `ConnectionClosed`, or `StuckError` after the deadline."""
        self.send_at_once(text)
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise StuckError("does not read") from None
        except OSError:
            raise ConnectionClosedOK(None, None) from None

    async def receive(self) -> str | bytes:
        """Wait for the next event; of an ``audio-chunk``, return the samples.

        If it has another format than the one before, the event comes before its samples. Raises
        `ConnectionClosed`, also if the first event or the rest of one does not come in time, or
        `WireError` for what is no event, or too large.
        """
        if (waiting := self._payload) is not None:
            self._payload = None
            return waiting
        while True:
            try:
                event, payload = await self._read()
            except (asyncio.IncompleteReadError, OSError):  # a deadline, too
                raise ConnectionClosedOK(None, None) from None
            match event.type:
                case "describe":
                    await self._answer("info", description(self._info))
                case "ping":
                    await self._answer("pong", event.data)
                case "audio-chunk" if _format_of(event) == self._format:
                    return payload
                case kind:
                    self._format = _format_of(event) if kind == "audio-chunk" else {}
                    self._payload = payload if kind == "audio-chunk" else None
                    return msgspec.json.encode({"type": kind, "data": event.data}).decode()

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, which has no codes."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                self._writer.close()
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _read(self) -> tuple[_Header, bytes]:
        await asyncio.sleep(self._wait_s)  # others have their turn, even if it is 0
        begin = b""
        if self._has_begun:  # the next event may be that of the next day
            begin = await self._reader.readexactly(1)
        async with asyncio.timeout(self._deadline_s):
            event, n_read, payload = await self._read_event(begin)
        self._has_begun = True
        # Only samples are free: what is written beside them, or with another event, is not.
        n_audio = len(payload) if event.type == "audio-chunk" else 0
        n_chars = n_read + len(payload) + n_audio
        self._wait_s = self._pace.spend(n_chars, n_audio_bytes=n_audio)
        return event, payload

    async def _read_event(self, begin: bytes) -> tuple[_Header, int, bytes]:
        n_most = min(self._n_most, _MOST_DATA_BYTES)
        too_large = WireError("bad_message", f"an event has at most {n_most} bytes, and samples")
        try:
            line = begin + await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise too_large from None
        if len(line) > n_most:
            raise too_large
        event = decoded(line, _decoder, "a Wyoming event")
        sizes = event.data_length, event.payload_length
        if min(sizes) < 0 or sum(sizes) > self._n_most or event.data_length > n_most:
            raise too_large
        if more := await self._reader.readexactly(event.data_length):
            data = decoded(more, _data_decoder, "a Wyoming event")
            event.data |= data
        payload = await self._reader.readexactly(event.payload_length)
        return event, len(line) + len(more), payload

    async def _answer(self, kind: str, data: Mapping[str, object]) -> None:
        await self.send(msgspec.json.encode({"type": kind, "data": data}).decode())


def _format_of(event: _Header) -> Mapping[str, object]:
    return {name: event.data[name] for name in ("rate", "width", "channels") if name in event.data}


def description(info: ServerInfo) -> Mapping[str, object]:
    """Describe the service: one program with one model."""
    about = {
        "attribution": {"name": "streamd", "url": ""},
        "installed": True,
        "description": "Whisper on this machine",
        "version": None,
    }
    languages = [info.language] if info.language else LANGUAGES
    models = [{"name": info.model, "languages": languages, **about}]
    program = {"name": "streamd", "models": models, "supports_transcript_streaming": True, **about}
    return {"asr": [program]}
