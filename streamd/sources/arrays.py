"""Samples that the calling program has in memory, as numpy arrays."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from streamd.sources import FrameStream, Source
from streamd.sources.framing import Block, Framer
from streamd.types import SAMPLE_RATE

_TYPES = ("float32", "float64", "int16", "int32", "uint8")


class ArraySource(Source):
    """The arrays of an iterable, or those that are `put`, until `stop`.

    The iterable is read in a thread, as fast as the audio is transcribed. Each array is (n,), or
    (n, channels), of float32 or float64 (-1 to 1), int16, int32 or uint8, at `rate_hz`. With
    `split`, channels are not mixed (`Framer`). Raises `SourceError` for a rate that cannot be
    converted.
    """

    def __init__(
        self,
        blocks: Iterable[Block] | None = None,
        *,
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
        split: bool = False,
    ) -> None:
        self.name = "the array"
        self.live = False
        self._channels = channels
        self._blocks = None if blocks is None else iter(blocks)
        self._put: asyncio.Queue[Block | Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "samples")
        self._stopped = False
        framer = Framer(rate_hz, channels, split=split)
        self._frames = FrameStream(framer, self._next_block, name=self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._thread.shutdown)

    def put(self, block: Block | Callable[[], Awaitable[None]]) -> None:
        """Take an array that `checked` returned, or what to await when all before it was read."""
        self._put.put_nowait(block)

    def checked(self, samples: Any) -> Block:  # noqa: ANN401  # whatever numpy can convert
        """Return a copy of the samples. Raises `TypeError` or `ValueError` for other kinds."""
        if isinstance(samples, bytes | bytearray | memoryview):
            fix = "np.frombuffer(data, np.int16), if they are PCM of 16 bits"
            raise TypeError(f"samples must be an array, got {type(samples).__name__}: use {fix}")
        block = np.array(samples)
        if block.dtype.name not in _TYPES:
            got = type(samples).__name__ if block.dtype == object else block.dtype.name
            raise TypeError(f"samples must be an array of {', '.join(_TYPES)}, got {got}")
        shape = (block.shape[0], 1) if block.ndim == 1 else block.shape
        if len(shape) != 2 or shape[1] != self._channels:
            wanted = "(n,)" if self._channels == 1 else f"(n, {self._channels})"
            is_wide = block.ndim == 2 and block.shape[0] < block.shape[1]
            hint = ": transpose them" if is_wide else ""
            hint = hint if block.ndim else ", one number: use np.array(samples, np.float32)"
            raise ValueError(f"samples must have the shape {wanted}, got {block.shape}{hint}")
        return block

    def stop(self) -> None:
        """End after what was put or read by now."""
        self._stopped = True
        self._put.put_nowait(None)

    async def _next_block(self) -> Block | None:
        if self._blocks is None:
            while callable(item := await self._put.get()):
                await item()
            return item
        if self._stopped:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read)

    def _read(self) -> Block | None:
        for block in self._blocks or ():
            return self.checked(block)
        return None
