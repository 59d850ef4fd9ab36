# /// script
# requires-python = ">=3.11"
# dependencies = ["websockets>=15"]
# ///
"""Send audio to a streamd and print its finals: speak.py [ws://HOST:PORT [SESSION]] < audio.wav.

Raw PCM (16 kHz, mono, 16 bit) works, too: arecord -f S16_LE -r 16000 -t raw | speak.py
Options such as --language de and --hotwords "Ada, Babbage" hold for this session.

`Speaker` is for your own programs. It keeps the audio that the server may need again: no sample is
lost or repeated when the connection breaks, nor when the server is killed and restarted (if it has
a journal). The token comes from STREAMD_TOKEN. docs/protocol.md describes all messages.
"""

import argparse
import asyncio
import json
import os
import sys
import wave
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

Message = dict[str, Any]
KEEP_S = 120
"""Audio that is kept while the server is unreachable; with more than that, `send` waits."""
FIRST_PAUSE_S = 0.1
"""Before the first attempt to reconnect; doubles up to 5 s."""
TEMPORARY = {"slow", "session_busy", "too_many_streams"}


class RefusedError(Exception):
    """The server refuses the session; the message says why."""


class Speaker:
    """Feeds one session: ``async with Speaker(url) as speaker``, then `send`, and finally `stop`.

    Audio is 16 bit PCM, channels interleaved. `start`: its rate and channels, if not 16 kHz mono,
    and what is chosen for the session: ``{"rate": 48000, "language": "de"}``. `on_message` is
    called with each message of the server.
    """

    def __init__(
        self,
        url: str,
        session: str = "",
        *,
        token: str = "",
        start: Message | None = None,
        on_message: Callable[[Message], object] = lambda message: None,
    ) -> None:
        self._url, self._on_message = url, on_message
        self._query = {"role": "both", **({"session": session} if session else {})}
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._start = {"type": "start", "rate": 16_000, "channels": 1, **(start or {})}
        self._width = 2 * self._start["channels"]
        self._max_bytes = self._width * self._start["rate"] * KEEP_S
        self._pcm = bytearray()  # audio that is not acknowledged yet
        self._first = 0  # number of its first sample
        self._stopping = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def send(self, pcm: bytes) -> None:
        """Send the next whole samples; waits only if the server is far behind."""
        await self._room.wait()
        if self._task.done():
            self._task.result()
            raise RefusedError("the session has ended")
        self._pcm += pcm
        if len(self._pcm) > self._max_bytes:
            self._room.clear()
        self._news.set()

    async def stop(self) -> None:
        """End the session; returns when everything is final."""
        self._stopping = True
        self._news.set()
        await self._task

    async def __aenter__(self) -> "Speaker":
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._room.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s, over = FIRST_PAUSE_S, False
        while not over:
            try:
                address = f"{self._url}/v1/stream?{urlencode(self._query)}"
                async with connect(
                    address,
                    additional_headers=self._headers,
                    compression=None,
                    ping_timeout=None,  # a server that is behind does not read, pings included
                    proxy=None,
                ) as connection:
                    pause_s = FIRST_PAUSE_S
                    over = await self._talk(connection)
            except InvalidStatus as error:
                if error.response.status_code < 500 and error.response.status_code != 429:
                    why = error.response.body.decode(errors="replace").strip()
                    raise RefusedError(f"{self._url}: {why or error}") from error
            except (OSError, WebSocketException, EOFError):
                pass
            if not over:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5)

    async def _talk(self, connection: ClientConnection) -> bool:
        """Use one connection until it ends; return whether everything is sent and final."""
        sending = None
        try:
            async for text in connection:
                message = json.loads(text)
                self._on_message(message)
                match message["type"]:
                    case "hello":
                        await self._begin(connection, message)
                    case "started":
                        self._resume(message["samples"])
                        sending = asyncio.create_task(self._send_audio(connection))
                    case "ack":
                        self._forget(message["samples"])
                    case "final":
                        self._query["after"] = str(message["seq"])
                    case "eos":
                        return self._ended(message["reason"])
                    case "error" if message["fatal"] and message["code"] not in TEMPORARY:
                        return self._failed(message)
        finally:
            if sending is not None:
                sending.cancel()
                with suppress(asyncio.CancelledError, OSError, WebSocketException):
                    await sending
        return False

    async def _begin(self, connection: ClientConnection, hello: Message) -> None:
        self._is_known = hello["epoch"] == self._query.get("epoch")
        if not self._is_known:
            self._query["after"] = str(hello["seq"])
        self._query |= {"session": hello["session"], "epoch": hello["epoch"]}
        await connection.send(json.dumps({**self._start, "samples": self._first}))

    def _resume(self, samples: int) -> None:
        """Continue with this sample, which the server wants next."""
        if not self._is_known:
            self._first = samples  # a new run of the session counts from what we still have
        self._at = max(0, samples - self._first) * self._width

    async def _send_audio(self, connection: ClientConnection) -> None:
        while True:
            while self._at < len(self._pcm):
                piece = bytes(self._pcm[self._at : self._at + 1600 * self._width])
                self._at += len(piece)
                await connection.send(piece)
            if self._stopping:
                await connection.send('{"type":"stop"}')
                return
            self._news.clear()
            await self._news.wait()

    def _forget(self, samples: int) -> None:
        n_bytes = max(0, samples - self._first) * self._width
        del self._pcm[:n_bytes]
        self._first += n_bytes // self._width
        self._at = max(0, self._at - n_bytes)
        if len(self._pcm) <= self._max_bytes:
            self._room.set()

    def _ended(self, reason: str) -> bool:
        """Return whether everything is final; a server that shuts down may be restarted."""
        if self._stopping and reason == "stop":
            return True
        if reason not in ("shutdown", "disconnect"):
            raise RefusedError(f"the session ended: {reason}")
        return False

    def _failed(self, fault: Message) -> bool:
        if fault["code"] != "session_over":
            raise RefusedError(fault["message"])
        # The server has ended the session: audio that it did not receive begins another one.
        received = fault.get("heard_ms", 0) * self._start["rate"] // 1000
        del self._pcm[: max(0, received - self._first) * self._width]
        self._query = {k: v for k, v in self._query.items() if k not in ("epoch", "after")}
        return self._stopping and not self._pcm


def pieces(audio: BinaryIO) -> tuple[int, int, Callable[[], bytes]]:
    """Return rate, channels and a function that reads the next piece of a WAV file or raw PCM."""
    if audio.peek(4)[:4] != b"RIFF":  # type: ignore[attr-defined]
        return 16_000, 1, lambda: audio.read(3200)
    file = wave.open(audio)  # noqa: SIM115 - it is read until the program ends
    if file.getsampwidth() != 2:
        sys.exit("only WAV files with 16 bit samples are supported")
    return file.getframerate(), file.getnchannels(), lambda: file.readframes(1600)


async def main(url: str, session: str, **choices: str | int | None) -> None:
    """Send standard input."""

    def show(message: Message) -> None:
        if message["type"] == "final":
            print(message["text"], flush=True)

    rate, channels, read = pieces(sys.stdin.buffer)
    token = os.environ.get("STREAMD_TOKEN", "")
    start = {"rate": rate, "channels": channels, **choices}
    async with Speaker(url, session, token=token, start=start, on_message=show) as speaker:
        while piece := await asyncio.to_thread(read):
            await speaker.send(piece)
        await speaker.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", nargs="?", default="ws://127.0.0.1:8765")
    parser.add_argument("session", nargs="?", default="", help="default: a new one")
    parser.add_argument("--language", help="a code such as de, or auto")
    parser.add_argument("--task", choices=["transcribe", "translate"])
    parser.add_argument("--prompt", help="text that could precede the audio")
    parser.add_argument("--hotwords", help="words and names to expect")
    parser.add_argument("--endpoint-ms", type=int, help="the pause that ends an utterance")
    given = parser.parse_args()
    if not given.url.startswith(("ws://", "wss://")):
        parser.error(f"expected ws://HOST:PORT, got {given.url}")
    try:
        asyncio.run(main(**vars(given)))
    except RefusedError as error:
        sys.exit(str(error))
