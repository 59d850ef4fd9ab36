"""Limits how fast a client's messages are read; one that sends too many is slowed, not refused.

A read brings up to 256 kB, which may be 40,000 frames. All other clients would have to wait for
them, and pongs are written whether the client reads them or not.
"""

import asyncio

import websockets.asyncio.server as ws
from websockets.frames import Frame, Opcode
from websockets.protocol import Event

COMMANDS_PER_S = 100
"""Several times what honest clients send: OpenAI's may commit every 100 ms, ten times as fast as
people speak. 16 clients that send as many took 12 % of a core with updates, 15 % with flushes and
35 % with corrections."""
_COMMAND_CHARS = 10_000
"""A longer message counts as several: it takes 10 to 40 ms for each MiB to read JSON."""
_PIECE_BYTES = 1024
"""At most 170 frames, which take about 1 ms to read."""
_LAST_FRAMES = 1_000
"""How many frames of an ended connection are read at once. A read of audio in messages of 20 ms
holds 400."""


class Pace:
    """Counts what a client sends besides audio: so much a second, and a second's worth at once."""

    def __init__(self) -> None:
        self._paid_s = 0.0  # until when of the loop's time

    def spend(self, n_chars: int = 0, *, n_audio_bytes: int = 0) -> float:
        """Count a message of this length; return how many seconds to wait before the next.

        One with audio counts only if it has much besides.
        """
        now_s = asyncio.get_running_loop().time()
        n_others = max(0, n_chars - 2 * n_audio_bytes)  # base64 and a few words are shorter
        n = (n_audio_bytes == 0) + n_others // _COMMAND_CHARS
        self._paid_s = max(self._paid_s, now_s - 1) + n / COMMANDS_PER_S
        return max(0.0, self._paid_s - now_s)


class PacedConnection(ws.ServerConnection):
    """Passes received data to the library in pieces, and reads on once all of it is passed.

    It pauses while messages wait to be taken, while the client does not read what it is sent, and
    when pings and fragments come too fast. Messages are counted where they are taken.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take control of when the transport reads."""
        super().connection_made(transport)
        self._pace, self._owed_s = Pace(), 0.0
        self._rest = memoryview(b"")
        self._n_frames = 0
        self._is_due = False
        # The library would read on although there are other reasons not to.
        self.recv_messages.pause, self.recv_messages.resume = _nothing, self._go_on_soon

    def connection_lost(self, exc: Exception | None) -> None:
        """Give what was sent before the end; over TLS, it may still wait."""
        self._give_last()
        super().connection_lost(exc)
        self.recv_messages.resume = _nothing

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._rest = memoryview(self._rest.tobytes() + data)
        self._go_on()

    def eof_received(self) -> None:
        """Give what was sent before the client's end."""
        self._give_last()
        super().eof_received()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._go_on_soon()

    def process_event(self, event: Event) -> None:
        """Count what is not a whole message."""
        super().process_event(event)
        self._n_frames += 1
        if isinstance(event, Frame) and not (event.fin and event.opcode in _MESSAGES):
            self._owed_s = self._pace.spend()

    @property
    def _must_wait(self) -> bool:
        return self.paused or self.recv_messages.paused or self._owed_s > 0

    def _go_on(self) -> None:
        self._is_due = False
        if self.recv_messages.closed:
            return
        while self._rest and not self._must_wait:
            if self.request is not None and self.response is None:
                self._go_on_soon()  # frames came with the request, which is answered at once
                break
            self._give_piece()
            if self._owed_s:
                self.loop.call_later(self._owed_s, self._pay)
        if self._rest or self._must_wait:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _go_on_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._go_on)

    def _pay(self) -> None:
        self._owed_s = 0.0
        self._go_on()

    def _give_last(self) -> None:
        most = self._n_frames + _LAST_FRAMES
        while self._rest and self._n_frames < most:
            self._give_piece()
        self._rest = memoryview(b"")

    def _give_piece(self) -> None:
        piece, self._rest = self._rest[:_PIECE_BYTES], self._rest[_PIECE_BYTES:]
        super().data_received(piece.tobytes())


_MESSAGES = Opcode.TEXT, Opcode.BINARY


def _nothing() -> None:
    """Leave it to `PacedConnection` when to read."""
