"""A microphone, through PortAudio.

PortAudio calls back from its own thread, which only copies the block and hands it to the event
loop. It never waits for us, so nothing is lost while the engine is slow: blocks queue up in memory,
`QUEUE_LIMIT_MS` of them.
"""

import asyncio
import contextlib
from collections import deque
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streamd.audio.framer import Block, Framer
from streamd.errors import SourceError
from streamd.events import GapReason
from streamd.sources import Lost
from streamd.sources.backlog import Backlog
from streamd.sources.blocking import Background
from streamd.sources.devices import Device, choose, list_devices, load_portaudio, look_again
from streamd.sources.frames import Ended, FrameStream
from streamd.sources.overflow import OverflowMeter
from streamd.types import SAMPLE_RATE

QUEUE_LIMIT_MS = 600_000
"""Audio that may wait to be consumed: at 16 kHz 38 MB. Beyond it the newest is `Lost`."""
_BLOCKS_PER_S = 50
_DRIVER_BUFFER_S = 0.1
"""The callback needs Python's interpreter lock; it may be late by this much without a loss."""
_PATIENCE_MS = 10_000
"""A device that works delivers blocks even when nobody speaks; Bluetooth takes seconds to begin."""


class Microphone:
    """An input device, captured from the moment that it is entered.

    It is opened at 16 kHz, mono, if the device can do that, or else at its own rate or with all of
    its channels, which are resampled and averaged here.

    Parameters
    ----------
    device : number, name or part of the name; None for the system's default
    queue_limit_ms : audio that may wait to be consumed; what comes then is `Lost`
    patience_ms : how long a device may deliver nothing until it counts as gone
    look_again : it may have been plugged in since this process first looked; none may be open
    """

    def __init__(
        self,
        device: int | str | None = None,
        *,
        queue_limit_ms: int = QUEUE_LIMIT_MS,
        patience_ms: int = _PATIENCE_MS,
        look_again: bool = False,
    ) -> None:
        self.name = "microphone"
        self.live = True
        self.duration_ms: int | None = None
        self._wanted = device
        self._queue_limit_ms = queue_limit_ms
        self._patience_ms = patience_ms
        self._look_again = look_again
        self._stream: Any = None
        self._stopping: asyncio.Task[None] | None = None
        self._arrival = asyncio.Event()
        self._captured: deque[tuple[Block, float, bool]] = deque()  # appended by PortAudio's thread
        self._background: Background[None] = Background()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await self._background.run(self._open)
        except BaseException:
            await self._background.join()
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        await asyncio.to_thread(self._close)

    @property
    def n_padding(self) -> int:
        """Samples at the end of the last frame that are padding, known once iterating has ended."""
        return self._frames.n_padding

    def __aiter__(self) -> FrameStream:
        return self._frames

    def stop(self) -> None:
        """End behind the block that is being captured now."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_capture())

    async def _stop_capture(self) -> None:
        # Waits for the callback's thread. What that has handed over is on the loop by then.
        await self._background.run(self._stream.stop)
        self._take_over()
        self._put(Ended())

    async def _next_block(self) -> Block | Lost | Ended:
        while (item := self._backlog.take()) is None:
            self._arrival.clear()
            try:
                async with asyncio.timeout(self._patience_ms / 1000):
                    await self._arrival.wait()
            except TimeoutError:
                self._put(Ended(self._gone(f"delivered nothing for {self._patience_ms} ms")))
        return item

    def _open(self) -> None:
        """Find the device, open it and start. Runs in a thread: some drivers take seconds."""
        portaudio = load_portaudio()
        if self._look_again:
            look_again()
        device = choose(list_devices(), self._wanted)
        self.name = device.name
        try:
            rate_hz, channels = _settings(portaudio, device)
            self._prepare(rate_hz, channels)
            self._stream = portaudio.InputStream(
                device=device.index,
                samplerate=rate_hz,
                channels=channels,
                dtype="float32",
                blocksize=rate_hz // _BLOCKS_PER_S,
                latency=_DRIVER_BUFFER_S,
                callback=self._callback,
                finished_callback=self._finished_callback,
            )
            self._stream.start()
        except portaudio.PortAudioError as error:
            raise SourceError(
                f"cannot record from {device}: {error.args[0]}; "
                "see that no other program holds it, or choose another device"
            ) from None

    def _prepare(self, rate_hz: int, channels: int) -> None:
        self._meter = OverflowMeter(rate_hz)
        self._rate_hz = rate_hz
        limit = self._queue_limit_ms * rate_hz // 1000
        self._backlog = Backlog(limit=limit, rate_hz=rate_hz)
        self._frames = FrameStream(Framer(rate_hz, channels), self._next_block, name=self.name)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _callback(
        self,
        block: NDArray[np.float32],
        _: int,
        time: Any,  # noqa: ANN401  # a C struct
        status: Any,  # noqa: ANN401  # sounddevice has no annotations
    ) -> None:
        """Hand blocks to the loop. Runs in PortAudio's thread, which owns the block."""
        overflowed = bool(status.input_overflow)
        self._captured.append((block.copy(), float(time.inputBufferAdcTime), overflowed))
        self._loop.call_soon_threadsafe(self._take_over)

    def _finished_callback(self) -> None:
        """Learn that no block will come any more. Runs in PortAudio's thread."""
        self._loop.call_soon_threadsafe(self._finished)

    def _take_over(self) -> None:
        """Take what was captured so far."""
        while self._captured:
            block, adc_s, overflowed = self._captured.popleft()
            n_lost = self._meter.lost(len(block), adc_s, overflowed)
            if n_lost:
                duration_ms = max(1, round(n_lost * 1000 / self._rate_hz))
                self._put(Lost(duration_ms, GapReason.OVERRUN))
            self._put(block)

    def _finished(self) -> None:
        self._take_over()
        if self._stopping is None:
            self._put(Ended(self._gone("is gone")))

    def _put(self, item: Block | Lost | Ended) -> None:
        self._backlog.put(item)
        self._arrival.set()

    def _gone(self, what: str) -> SourceError:
        return SourceError(f"{self.name!r} {what}: connect it again or choose another device")


def _settings(portaudio: ModuleType, device: Device) -> tuple[int, int]:
    """Rate and channel count that the device accepts, the cheapest first.

    If it accepts nothing, these are its own: opening it will tell what is wrong.
    """
    for rate_hz in (SAMPLE_RATE, device.rate_hz):
        for channels in (1, device.channels):
            with contextlib.suppress(portaudio.PortAudioError):
                portaudio.check_input_settings(device.index, channels, "float32", None, rate_hz)
                return rate_hz, channels
    return device.rate_hz, device.channels
