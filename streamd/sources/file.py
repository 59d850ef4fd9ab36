"""A sound file, as fast as it is consumed or paced like a microphone (libsndfile)."""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.audio.framer import Framer
from streamd.audio.pcm import Block
from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.sources.blocking import Background
from streamd.sources.frames import Ended, FrameStream

_PACED_BLOCK_MS = 40
_READ_MS = 1000
"""Read at a time: a thread that is woken for each block of 40 ms costs as much as listening."""
_HEADER_SLACK_MS = 100
"""Lengths in mp3 headers are estimates."""


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


class _ForwardFile(soundfile.SoundFile):  # type: ignore[misc]  # it has no annotations
    """A sound file that is only read from front to back.

    On files that can seek, soundfile seeks after each read to where it already is. In an mp3 that
    restarts the decoder: up to 0.24 of full scale off, in blocks of 20 ms (libsndfile 1.2.2).
    """

    def seekable(self) -> bool:
        """Never, so that nobody tries."""
        return False


class FileSource:
    """The audio of a wav, flac, ogg, mp3 or whatever else libsndfile reads.

    Parameters
    ----------
    path : the file
    realtime : deliver each block when a microphone would have, counted from the first one asked
        for. A consumer that was late gets the blocks that have become due at once: nothing drifts,
        nothing is left out.
    clock : what real time is

    A file that is damaged in the middle gives what can be decoded of it, then raises
    `SourceError`. One that is cut off does so too if its format tells how long it should be: flac
    and mp3 do, wav and ogg do not, as libsndfile reads them.
    """

    def __init__(
        self, path: str | Path, *, realtime: bool = False, clock: Clock | None = None
    ) -> None:
        self.name = str(path)
        self.live = realtime
        self.duration_ms: int | None = None
        self.at_least_ms = 0
        self._clock = clock or LoopClock()
        self._started_ms: float | None = None
        self._n_read = self._n_given = 0
        self._failure: SourceError | None = None
        self._stopped = False
        self._background: Background[NDArray[np.float32]] = Background()

    async def __aenter__(self) -> Self:
        self._file = await asyncio.to_thread(_open, self.name)
        self._rate_hz = self._file.samplerate
        self.duration_ms = self._file.frames * 1000 // self._rate_hz
        self._ahead = np.empty((0, self._file.channels), np.float32)
        try:
            framer = Framer(self._rate_hz, self._file.channels)
        except SourceError as error:
            self._file.close()
            raise SourceError(f"{self.name}: {error}") from None
        self._frames = FrameStream(framer, self._next_block)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._background.join()
        self._file.close()

    @property
    def n_padding(self) -> int:
        """Samples at the end of the last frame that are padding, known once iterating has ended."""
        return self._frames.n_padding

    def __aiter__(self) -> FrameStream:
        return self._frames

    def stop(self) -> None:
        """End behind what was given out."""
        self._stopped = True

    async def _next_block(self) -> Block | Lost | Ended:
        block_ms = max(_PACED_BLOCK_MS, self.at_least_ms) if self.live else _READ_MS
        n = self._rate_hz * block_ms // 1000
        if self.live:
            await self._until_due(n)
        if self._stopped:
            return Ended()
        if not len(self._ahead):
            self._ahead = await self._background.run(self._read)
        block, self._ahead = self._ahead[:n], self._ahead[n:]
        self._n_given += len(block)
        return block if len(block) else Ended(self._failure)

    async def _until_due(self, n: int) -> None:
        """Wait until a microphone would have captured the next `n` samples."""
        now_ms = self._clock.now_ms()
        if self._started_ms is None:
            self._started_ms = now_ms
        due_ms = self._started_ms + (self._n_given + n) * 1000 / self._rate_hz
        if due_ms > now_ms and not self._stopped:
            await self._clock.sleep_ms(due_ms - now_ms)

    def _read(self) -> NDArray[np.float32]:
        """Read what comes next, (n, channels); empty at the end. Runs in a thread."""
        if self._failure:
            return np.empty((0, self._file.channels), np.float32)
        # When the decoder gives up inside a block, soundfile raises and does not say how much it
        # had decoded into it: what is still NaN then was not.
        n = self._rate_hz * _READ_MS // 1000
        space = np.full((n, self._file.channels), np.nan, np.float32)
        try:
            block: NDArray[np.float32] = self._file.read(out=space)
        except soundfile.LibsndfileError:
            block = space[: np.count_nonzero(~np.isnan(space[:, 0]))]
            self._failure = self._cut_short(self._n_read + len(block))
        self._n_read += len(block)
        missing_ms = (self._file.frames - self._n_read) * 1000 // self._rate_hz
        if not len(block) and missing_ms > _HEADER_SLACK_MS:
            self._failure = self._cut_short(self._n_read)
        return block

    def _cut_short(self, n_read: int) -> SourceError:
        decoded = f"{n_read / self._rate_hz:.1f} of {self._file.frames / self._rate_hz:.1f} s"
        return SourceError(
            f"{self.name} is damaged or incomplete: only {decoded} could be decoded; "
            "get a whole copy for the rest"
        )


def _open(name: str) -> _ForwardFile:
    """Open a sound file that holds audio, or say in one line why not."""
    try:
        with Path(name).open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise SourceError(f"cannot read {name}: {error.strerror}; check the name") from None
    if is_empty:
        raise SourceError(f"{name} is empty: record it again")
    try:
        sound = _ForwardFile(name)
    except soundfile.LibsndfileError:
        raise SourceError(
            f"{name} is damaged or not a sound file of a known format; "
            f"convert it, for example: ffmpeg -i {name} audio.wav"
        ) from None
    if not sound.frames:
        sound.close()
        raise SourceError(f"{name} holds no audio that can be decoded: record or convert it again")
    return sound
