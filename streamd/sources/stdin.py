"""Raw PCM from standard input: a pipe, a fifo or a redirected file."""

import contextlib
import fcntl
import os
import select
import stat
import sys
import termios
from types import TracebackType
from typing import BinaryIO, Self

from streamd.audio.framer import Framer
from streamd.audio.pcm import Block, PcmDecoder
from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.sources.blocking import Background
from streamd.sources.frames import Ended, FrameStream
from streamd.types import SAMPLE_RATE

_READ_BYTES = 65_536
_PIPE_BYTES = 1 << 20
"""Linux lets anybody make a pipe that big: 32 s of s16le at 16 kHz, for as long as we stall."""


class StdinSource:
    """PCM without a header, read from `file`'s descriptor until its end.

    The writer waits when we do: its pipe is the buffer. A sample that is incomplete at the end is
    not audio and is left out.

    Parameters
    ----------
    file : anything with a descriptor, for example ``sys.stdin.buffer``; nothing may have been read
        from it before. It stays open.
    encoding : one of `streamd.audio.pcm.ENCODINGS`

    Raises
    ------
    SourceError
        At once for an unknown encoding or an absurd rate, on entering for a terminal.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        rate_hz: int = SAMPLE_RATE,
        encoding: str = "s16le",
        channels: int = 1,
    ) -> None:
        self.name = "stdin"
        self.live = False
        self.duration_ms: int | None = None
        self.at_least_ms = 0  # without consequence: it is not live
        self._file = file
        self._decoder = PcmDecoder(encoding, channels)
        self._frames = FrameStream(Framer(rate_hz, channels), self._next_block)
        self._n_left: int | None = None
        self._background: Background[bytes] = Background()

    async def __aenter__(self) -> Self:
        self._descriptor = self._file.fileno()
        if os.isatty(self._descriptor):
            raise SourceError(
                "stdin is a terminal: pipe audio into it, for example: "
                "arecord -q -t raw -f S16_LE -r 16000 | streamd -"
            )
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # not a pipe, or the user's quota is used up
                fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # A thread that waits for the writer can only be woken through a descriptor.
        self._woken, self._waker = os.pipe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
        await self._background.join()
        os.close(self._woken)
        os.close(self._waker)

    @property
    def n_padding(self) -> int:
        """Samples at the end of the last frame that are padding, known once iterating has ended."""
        return self._frames.n_padding

    def __aiter__(self) -> FrameStream:
        return self._frames

    def stop(self) -> None:
        """End behind what the writer has already put into the pipe."""
        if self._n_left is None:
            self._n_left = _n_in_pipe(self._descriptor)
            os.write(self._waker, b"!")

    async def _next_block(self) -> Block | Lost | Ended:
        try:
            data = await self._background.run(self._read)
        except OSError as error:
            return Ended(SourceError(f"reading stdin failed: {error.strerror}; check the writer"))
        return self._decoder.push(data) if data else Ended()

    def _read(self) -> bytes:
        """Wait for bytes; none at the end. Runs in a thread."""
        while True:
            ready, _, _ = select.select([self._descriptor, self._woken], [], [])
            n_wanted = _READ_BYTES if self._n_left is None else min(self._n_left, _READ_BYTES)
            if self._descriptor not in ready or not n_wanted:
                return b""
            try:
                data = os.read(self._descriptor, n_wanted)
            except BlockingIOError:  # the writer's end is non-blocking and somebody was faster
                continue
            if self._n_left is not None:
                self._n_left -= len(data)
            return data


def _n_in_pipe(descriptor: int) -> int:
    """Bytes that the writer has written and we have not read; a file on disk has no writer."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return 0
    try:
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:  # a device that does not know
        return 0
    return int.from_bytes(waiting, sys.byteorder)
