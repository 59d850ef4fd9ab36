"""Blocks to frames: the part of iterating that all sources share."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from streamd.audio.framer import Block, Framer
from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.types import Frames

_FAR_BEYOND = 4.0
"""Times full scale (12 dB above it): louder is no recording, but numbers of another scale."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """No more blocks; `failure` says why, if it is not the way that audio should end."""

    failure: SourceError | None = None


class FrameStream:
    """Iterates over the frames in what `next_block` gives, until that is `Ended`.

    `name` is the source's, for warnings about its samples.
    The last frame is padded with zeros; a failure is raised only after it. `next_block` may be
    cancelled and called again: it must not lose a block by that.
    """

    def __init__(
        self,
        framer: Framer,
        next_block: Callable[[], Awaitable[Block | Lost | Ended]],
        *,
        name: str,
    ) -> None:
        self._framer = framer
        self._next_block = next_block
        self._ended: Ended | None = None
        self._check = _Check(name)

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
                self._check.look(block)
                frames = self._framer.push(block)
            if len(frames):
                return frames
        if self._ended.failure is not None:
            raise self._ended.failure
        raise StopAsyncIteration


class _Check:
    """Warns, once each, of samples that cannot be a recording's; `Framer` makes do with them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told_invalid = self._told_loud = False

    def look(self, block: Block) -> None:
        """Take the next samples; only floating-point numbers can be wrong."""
        if block.dtype.kind != "f" or not len(block):
            return
        finite = np.isfinite(block)
        if not self._told_invalid and not finite.all():
            self._told_invalid = True
            log.warning(
                "%s has samples that are no numbers (NaN or infinite); they are taken as silence",
                self._name,
            )
        peak = np.abs(block, where=finite, out=np.zeros(block.shape, block.dtype)).max()
        if not self._told_loud and peak > _FAR_BEYOND:
            self._told_loud = True
            log.warning(
                "%s has samples of %.3g times full scale, which are clipped; "
                "write it again with samples between -1 and 1",
                self._name,
                peak,
            )
