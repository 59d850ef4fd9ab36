"""Blocks to frames: the part of iterating that all sources share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from streamd.audio.framer import Framer
from streamd.audio.pcm import Block
from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.types import Frames


@dataclass(frozen=True, slots=True)
class Ended:
    """No more blocks; `failure` says why, if it is not the way that audio should end."""

    failure: SourceError | None = None


class FrameStream:
    """Iterates over the frames in what `next_block` gives, until that is `Ended`.

    The last frame is padded with zeros; a failure is raised only after it. `next_block` may be
    cancelled and called again: it must not lose a block by that.
    """

    def __init__(
        self, framer: Framer, next_block: Callable[[], Awaitable[Block | Lost | Ended]]
    ) -> None:
        self._framer = framer
        self._next_block = next_block
        self._ended: Ended | None = None

    @property
    def n_padding(self) -> int:
        """Samples at the end of the last frame that are padding, known once iterating has ended."""
        return self._framer.n_padding

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frames | Lost:
        while self._ended is None:
            block = await self._next_block()
            if isinstance(block, Lost):
                return block
            if isinstance(block, Ended):
                self._ended = block
                frames = self._framer.flush()
            else:
                frames = self._framer.push(block)
            if len(frames):
                return frames
        if self._ended.failure is not None:
            raise self._ended.failure
        raise StopAsyncIteration
