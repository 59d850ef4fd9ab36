"""What a source is, and how its blocks of samples become frames."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, Self

from streamd.errors import SourceError
from streamd.events import GapReason
from streamd.sources.framing import Block, Framer, rescaled
from streamd.sources.mixing import cancelled
from streamd.types import Frames

_FAR_BEYOND = 4.0
"""Level relative to full scale (+12 dB) above which samples must be in another unit."""

_log = logging.getLogger(__name__)
_LARGE_BYTES = 64 << 10
"""Mixing and resampling more takes so long that it is done in a thread, not on the event loop."""


@dataclass(frozen=True, slots=True)
class Lost:
    """`duration_ms` of audio were lost just before the frames that follow."""

    duration_ms: int
    why: GapReason


def warn(warnings: list[str], text: str) -> None:
    """Log what is wrong with a sound, and add it to what was logged of it; the same only once."""
    if text not in warnings:
        _log.warning("%s", text)
        warnings.append(text)


NextBlock = Callable[[], Awaitable[Block | Lost | None]]


class FrameStream:
    """Iterates over the frames in the blocks of `next_block` until that returns None.

    The last frame is padded with zeros; a `SourceError` of `next_block` is raised after it. `name`
    is the source's, for warnings. `warnings` has what was logged about its sound. Large blocks take
    a thread, unless `threads` is false.
    """

    def __init__(
        self,
        framer: Framer,
        next_block: NextBlock,
        *,
        name: str,
        warnings: list[str] | None = None,
        threads: bool = True,
    ) -> None:
        self._framer, self._next_block, self._name = framer, next_block, name
        self.warnings = [] if warnings is None else warnings
        self._threads = threads
        self._ended = self._is_loud = False
        self._failure: SourceError | None = None

    @property
    def n_padding(self) -> int:
        """Samples of padding at the end of the last frame, known once iterating has ended."""
        return self._framer.n_padding

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frames | Lost:
        while not self._ended:
            block = None
            try:
                block = await self._next_block()
            except SourceError as error:
                self._failure = error
            if isinstance(block, Lost):
                return block
            if block is None:
                self._ended = True
                frames = self._framer.flush()
            elif self._threads and block.nbytes > _LARGE_BYTES:
                frames = await asyncio.to_thread(self._framer.push, block)
            else:
                frames = self._framer.push(block)
            self._check()
            if len(frames):
                return frames
        raise self._failure or StopAsyncIteration

    def _check(self) -> None:
        # Warns, once each, of samples that no recording has: the framer has silenced or clipped
        # them.
        framer, name = self._framer, self._name
        if framer.n_invalid:
            self._warn(f"{name} has NaN or infinite samples, which count as silence")
        if framer.peak > _FAR_BEYOND and not self._is_loud:
            self._is_loud = True  # the peak may become higher
            fix = "write it again with samples between -1 and 1"
            clipped = f"{framer.peak:.3g} times full scale, which are clipped"
            self._warn(f"{name} has samples of {clipped}: {fix}")
        if framer.rescales:
            self._warn(rescaled(name))
        if framer.cancels:
            self._warn(cancelled(name))
        if framer.repeats:
            fix = "every word is written twice; drop --channels split"
            self._warn(f"the channels of {name} have the same sound: {fix}")

    def _warn(self, text: str) -> None:
        warn(self.warnings, text)


class Source(Protocol):
    """A stream of audio: enter it, iterate over it once, leave it.

    Iterating yields n >= 1 `Frames`, and `Lost` where audio is missing. When audio ends in
    a failure, iterating yields what was captured before it raises `SourceError`.

    `live` audio arrives whether or not the consumer is ready, so it must always be read at once;
    other sources wait for the consumer. `duration_ms` is None if it is unknown.
    """

    name: str
    live: bool
    duration_ms: int | None = None
    _frames: FrameStream

    async def __aenter__(self) -> Self:
        """Open it; a live source captures from here on. Raises `SourceError`."""

    async def __aexit__(self, *_: object) -> None:
        """Close it and drop what was not consumed."""

    def __aiter__(self) -> FrameStream:
        """Iterate over the frames; it ends after `stop`, or at the end of the audio."""
        return self._frames

    def stop(self) -> None:
        """End the audio now. Keep iterating: what was captured before still comes."""
