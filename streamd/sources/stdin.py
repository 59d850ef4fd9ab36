"""Standard input, or a named pipe: raw PCM, or a container that FFmpeg decodes."""

import asyncio
import contextlib
import fcntl
import os
import select
import stat
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Self

import numpy as np

from streamd.errors import SourceError, os_error_as
from streamd.options import PcmOptions
from streamd.sources import FrameStream, Source
from streamd.sources.chains import FilePart
from streamd.sources.containers import N_HEAD, container, is_text
from streamd.sources.ffmpeg import Ffmpeg
from streamd.sources.framing import Block, Framer, PcmDecoder
from streamd.sources.tracks import Selection

_READ_BYTES = 65_536
_PIPE_BYTES = 1 << 20
"""Linux allows every user pipes of this size: 32 s of s16le at 16 kHz while the engine is slow."""
_EXPECTED = "pipe audio into it, for example: arecord -q -t raw -f S16_LE -r 16000 | streamd -"
AUTO = "auto"
"""The encoding of input that is a container or s16le, as its first bytes show."""


class StdinSource(Source):
    """Sound from a descriptor until its end: raw PCM, or a container.

    An incomplete sample at the end is dropped. `file` has a descriptor from which nothing has been
    read and stays open, or it is the path of a named pipe. `selection` says which track of a
    container is read, and whether channels are mixed.

    Raises `SourceError` for an unknown encoding or rate, on entering for a terminal, and at the end
    if nothing came.
    """

    def __init__(
        self,
        file: BinaryIO | str,
        pcm: PcmOptions | None = None,
        *,
        selection: Selection = Selection(),  # noqa: B008 - it is frozen
    ) -> None:
        pcm = pcm or PcmOptions()
        self.name = file if isinstance(file, str) else "stdin"
        self.live = False
        self._file = file
        self._rate_hz, self._channels = pcm.rate_hz, pcm.channels
        self._may_be_container = pcm.encoding == AUTO
        self._decoder = PcmDecoder("s16le" if pcm.encoding == AUTO else pcm.encoding, pcm.channels)
        framer = Framer(pcm.rate_hz, pcm.channels, split=selection.split)
        self._selection = selection
        self._frames = FrameStream(framer, self._next_block, name=self.name)
        self._ffmpeg: Ffmpeg | None = None
        self._failure: SourceError | None = None
        self._n_left: int | None = None  # bytes to read after `stop`
        self._has_data = False
        self._thread = ThreadPoolExecutor(1, "stdin")

    async def __aenter__(self) -> Self:
        if isinstance(self._file, str):
            with os_error_as(SourceError, f"cannot read {self.name}"):
                # without waiting for the writer
                self._descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK)
        else:
            self._descriptor = self._file.fileno()
        if os.isatty(self._descriptor):
            raise SourceError(f"stdin is a terminal: {_EXPECTED}")
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # not a pipe, or the user's quota is used up
                fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # A thread that waits for the writer can only be woken through a descriptor.
        self._woken, self._waker = os.pipe()
        # A server with many clients has descriptors above 1023, which `select.select` refuses; and
        # `epoll` refuses files.
        self._poll = select.poll()
        for descriptor in (self._descriptor, self._woken):
            self._poll.register(descriptor, select.POLLIN)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._ffmpeg is not None:
            self._ffmpeg.stop()
        await asyncio.to_thread(self._thread.shutdown)
        if self._ffmpeg is not None:
            self._ffmpeg.close()
        os.close(self._woken)
        os.close(self._waker)
        if isinstance(self._file, str):
            os.close(self._descriptor)

    def stop(self) -> None:
        """End after what the writer has already put into the pipe."""
        if self._n_left is None:
            self._n_left = _n_in_pipe(self._descriptor)
            os.write(self._waker, b"!")

    async def _next_block(self) -> Block | None:
        try:
            block = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        except SourceError as error:
            raise self._failure or error from None
        if self._failure and not len(block):
            raise self._failure
        if not self._has_data and self._n_left is None:
            raise SourceError(f"{self.name} is empty: {_EXPECTED}")
        return block if len(block) else None

    def _read(self) -> Block:
        # Runs in a thread.
        head = b""
        if self._may_be_container:
            self._may_be_container = False
            while len(head) < N_HEAD and (data := self._read_bytes()):
                head += data
            if container(head):
                self._ffmpeg = self._decoder_of(head)
            elif is_text(head):
                raise SourceError(f"{self.name} is text, not sound: {_EXPECTED}")
        if self._ffmpeg is not None:
            return self._ffmpeg.read()
        while data := head or self._read_bytes():
            head = b""
            if len(block := self._decoder.push(data)):
                return block
        return np.empty((0, self._channels), np.int16)

    def _decoder_of(self, head: bytes) -> Ffmpeg:
        """Return what decodes the container that begins with `head`."""
        source: FilePart | _Pipe = _Pipe(head, self._read_bytes)
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):  # FFmpeg may seek in it
            begin = os.lseek(self._descriptor, -len(head), os.SEEK_CUR)
            source = FilePart(self._descriptor, begin)
        decoder = Ffmpeg(
            self.name,
            source,
            rate_hz=self._rate_hz,
            channels=self._channels,
            selection=self._selection,
        )
        decoder.warnings = self._frames.warnings
        return decoder

    def _read_bytes(self, n: int = _READ_BYTES) -> bytes:
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            n_wanted = n if self._n_left is None else min(self._n_left, n)
            if self._descriptor not in ready or not n_wanted:
                return b""
            try:
                data = os.read(self._descriptor, n_wanted)
            except BlockingIOError:  # another reader was faster
                continue
            except OSError as error:
                what = f"reading {self.name} failed: {error.strerror}; check the writer"
                self._failure = SourceError(what)
                return b""
            self._has_data = self._has_data or bool(data)
            if self._n_left is not None:
                self._n_left -= len(data)
            return data


class _Pipe:
    """A pipe of which the first bytes have been read already."""

    def __init__(self, head: bytes, read: Callable[[int], bytes]) -> None:
        self._head, self._read = head, read

    def read(self, n: int) -> bytes:
        """Return up to `n` bytes, none at the end."""
        data, self._head = self._head[:n], self._head[n:]
        return data or self._read(n)


def _n_in_pipe(descriptor: int) -> int:
    """Return how many bytes wait in the pipe; a file on disk has no writer."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return 0
    try:
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:  # a device that cannot tell
        return 0
    return int.from_bytes(waiting, sys.byteorder)
