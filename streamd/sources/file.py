"""A sound file, as fast as it is consumed or paced like a microphone."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from streamd.audio.framer import Block, Framer
from streamd.errors import SourceError
from streamd.sources import Lost, ffmpeg
from streamd.sources.blocking import Background
from streamd.sources.containers import N_HEAD, SNDFILE, container
from streamd.sources.ffmpeg import Ffmpeg
from streamd.sources.frames import Ended, FrameStream
from streamd.sources.sndfile import Sndfile, UnreadableError

_PACED_BLOCK_MS = 40
_BLOCK_MS = 1000


class Clock(Protocol):
    """The time that a file played in real time goes by."""

    def now_ms(self) -> float:
        """Milliseconds since whenever, never going back."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait."""
        ...


class LoopClock:
    """The event loop's own time."""

    def now_ms(self) -> float:
        """Milliseconds of the loop's monotonic clock."""
        return asyncio.get_running_loop().time() * 1000

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait without blocking the loop."""
        await asyncio.sleep(duration_ms / 1000)


class Decoder(Protocol):
    """What makes samples of a file; `open` it, `read` until there is no more, `close` it."""

    rate_hz: int
    channels: int
    duration_ms: int | None

    def open(self) -> None:
        """Wait until there is sound. Raises `SourceError`."""
        ...

    def read(self) -> Block:
        """Give the next (n, channels) samples; n is 0 at the end.

        Raises
        ------
        SourceError
            At the end, if that is not the end of the sound.
        """
        ...

    def stop(self) -> None:
        """Let whoever waits in `open` or `read` get nothing more; called from another thread."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class FileSource:
    """The audio of a file or an address, in any format that libsndfile or ffmpeg reads.

    libsndfile reads what it can, but for mp3 where ffmpeg is installed: its decoder of mp3 writes
    notes about damaged files to standard error, past everybody, and cannot be told not to.

    Parameters
    ----------
    path : the file, or the address of one (`streamd.sources.ffmpeg.is_url`)
    realtime : deliver each block when a microphone would have, counted from the first one asked
        for. A consumer that was late gets the blocks that have become due at once: nothing drifts,
        nothing is left out.
    clock : what real time is

    A file that is damaged in the middle gives what can be decoded of it, then raises
    `SourceError`, and so does one that is cut off, if only its decoder can tell. A cut that can be
    seen from the outside (wav, aiff, au and ogg) is told by a warning before the audio begins.
    """

    def __init__(
        self, path: str | Path, *, realtime: bool = False, clock: Clock | None = None
    ) -> None:
        self.name = str(path)
        self.live = realtime
        self.duration_ms: int | None = None
        self._clock = clock or LoopClock()
        self._started_ms: float | None = None
        self._n_given = 0
        self._stopped = False
        self._decoder: Decoder | None = None
        self._background: Background[Block] = Background()

    async def __aenter__(self) -> Self:
        try:
            self._ahead = await self._background.run(self._open)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def n_padding(self) -> int:
        """Samples at the end of the last frame that are padding, known once iterating has ended."""
        return self._frames.n_padding

    def __aiter__(self) -> FrameStream:
        return self._frames

    def stop(self) -> None:
        """End behind what was given out."""
        self._stopped = True
        if self._decoder is not None:
            self._decoder.stop()

    async def _close(self) -> None:
        self.stop()
        await self._background.join()
        if self._decoder is not None:
            self._decoder.close()

    async def _next_block(self) -> Block | Lost | Ended:
        block_ms = _PACED_BLOCK_MS if self.live else _BLOCK_MS
        n = self._rate_hz * block_ms // 1000
        if self.live:
            await self._until_due(n)
        if self._stopped:
            return Ended()
        if not len(self._ahead):
            try:
                self._ahead = await self._background.run(self._read)
            except SourceError as error:
                return Ended(error)
        block, self._ahead = self._ahead[:n], self._ahead[n:]
        self._n_given += len(block)
        return block if len(block) else Ended()

    async def _until_due(self, n: int) -> None:
        """Wait until a microphone would have captured the next `n` samples."""
        now_ms = self._clock.now_ms()
        if self._started_ms is None:
            self._started_ms = now_ms
        due_ms = self._started_ms + (self._n_given + n) * 1000 / self._rate_hz
        if due_ms > now_ms and not self._stopped:
            await self._clock.sleep_ms(due_ms - now_ms)

    def _read(self) -> Block:
        """Read what comes next; empty at the end. Runs in a thread."""
        assert self._decoder is not None  # for mypy
        return self._decoder.read()

    def _open(self) -> Block:
        """Find a decoder and wait for the first sound, which may take long. Runs in a thread."""
        self._decoder = decoder = _decoder(self.name)
        if self._stopped:  # meanwhile
            decoder.stop()
        decoder.open()
        self._rate_hz, self.duration_ms = decoder.rate_hz, decoder.duration_ms
        try:
            framer = Framer(decoder.rate_hz, decoder.channels)
        except SourceError as error:
            raise SourceError(f"{self.name}: {error}") from None
        self._frames = FrameStream(framer, self._next_block, name=self.name)
        return np.empty((0, decoder.channels), np.float32)


def _decoder(name: str) -> Decoder:
    """What can decode the file, or one line that says why nothing can."""
    if ffmpeg.is_url(name):
        return Ffmpeg(name, name)
    try:
        with Path(name).open("rb") as file:
            head = file.read(N_HEAD)
    except OSError as error:
        raise SourceError(f"cannot read {name}: {error.strerror}; check the name") from None
    if not head:
        raise SourceError(f"{name} is empty: record it again")
    kind = container(head)
    if kind in SNDFILE or not ffmpeg.is_here():
        with suppress(UnreadableError):
            return Sndfile(name)
    if ffmpeg.is_here():
        return Ffmpeg(name, name)
    if kind in SNDFILE or not kind:
        raise SourceError(
            f"{name} is damaged or can only be read with ffmpeg; get a whole copy, or {ffmpeg.CURE}"
        )
    raise SourceError(f"{name} ({kind}) can only be read with ffmpeg; {ffmpeg.CURE}")
