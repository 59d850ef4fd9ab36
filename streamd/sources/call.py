"""Both sides of a call: two devices at once, their frames on one clock.

The microphone is the first channel, what the computer plays the second. Each device counts time by
a clock of its own: two that differ by 100 ppm are 0.36 s apart after an hour. `TwoClocks` holds
them together.
"""

import asyncio
import logging
from collections import deque
from statistics import median
from typing import Self

import numpy as np

from streamd.errors import SourceError
from streamd.sources.framing import Block, Framer
from streamd.sources.microphone import MONITOR, Microphone
from streamd.sources.source import FrameStream, Lost, Source
from streamd.types import FRAME, SAMPLE_RATE, Frames, frames_from_ms

ME, THEM = "mic", "system"
"""What the two are called in ``--device mic+system``; in place of either, a device may stand."""
SIDES = ("Me", "Them")
"""What the two are called in captions, unless they get other names."""
PATIENCE = 25
"""Frames (0.5 s) by which one device may be late before the other goes on with silence: the monitor
of an output that nothing plays on gives nothing."""
SLACK, MOST_SLACK = 3, 25
"""Frames by which the clocks may differ before a frame is dropped or added in a pause, and from
which on also while somebody speaks. Blocks of 5 frames come when the system has time, so single
differences say nothing: it is the median of `SEEN`."""
SEEN = 200
"""Arrivals: about 10 s."""
_QUIET = 1e-3
"""Level (-60 dBFS) below which a frame is a pause, which may be a frame longer or shorter."""
_SILENCE = np.zeros(FRAME, np.float32)

log = logging.getLogger(__name__)


def sides_of(wanted: int | str | None) -> tuple[int | str | None, int | str | None] | None:
    """Return the devices of both sides if that is what a device's name means, or None.

    ``mic`` is the default device, ``system`` what the computer plays.
    """
    if not isinstance(wanted, str) or "+" not in wanted:
        return None
    mic, _, system = (part.strip() for part in wanted.partition("+"))
    if mic != ME and system != THEM:
        return None  # some devices have the sign in their names
    return (None if mic == ME else mic), (MONITOR if system == THEM else system)


class TwoClocks:
    """Pairs the frames of two devices: `push` those of one, `pull` those of both.

    The first device's clock counts: a microphone always delivers, or it is gone (`TIMEOUT_MS`).
    Where the second one is slower, silent frames are added to it, and where it is faster, some are
    dropped, in pauses if there are any.
    """

    def __init__(self) -> None:
        self._waiting: tuple[deque[Frames], deque[Frames]] = deque(), deque()
        self._seen: deque[int] = deque(maxlen=SEEN)
        self.n_added = self.n_dropped = 0
        """Frames of the second device that were added, and dropped."""

    def push(self, side: int, frames: Frames) -> None:
        """Take the next (n, 320) frames of a device, 0 or 1."""
        self._waiting[side].extend(frames)
        self._seen.append(len(self._waiting[1]) - len(self._waiting[0]))

    def pull(self) -> Frames:
        """Return what is there of both, (n, 2, 320) frames."""
        first, second = self._waiting
        pairs = []
        while first and (second or len(first) > PATIENCE):
            if not second:
                self._add()
            self._settle()
            if second:
                pairs.append((first.popleft(), second.popleft()))
        return np.array(pairs, np.float32).reshape(-1, 2, FRAME)

    def _settle(self) -> None:
        """Add or drop frames of the second device if the clocks are apart, where that may be."""
        if len(self._seen) < SEEN:
            return
        second, ahead = self._waiting[1], round(median(self._seen))
        is_far = abs(ahead) > MOST_SLACK
        if abs(ahead) <= SLACK or not (is_far or _is_pause(second[0])):
            return
        for _ in range(-ahead):
            self._add()
        while ahead > 0 and second and (is_far or _is_pause(second[0])):
            second.popleft()
            ahead -= 1
            self.n_dropped += 1
        self._seen.clear()

    def _add(self) -> None:
        self._waiting[1].appendleft(_SILENCE)
        self.n_added += 1


def _is_pause(frame: Frames) -> bool:
    return bool(np.abs(frame).max() < _QUIET)


class BothSides(Source):
    """A microphone and what the computer plays, as two channels, from the moment it is entered.

    `mic` and `system` are devices as in `choose`. With `refresh`, see `Microphone`.
    """

    def __init__(
        self, mic: int | str | None, system: int | str | None, *, refresh: bool = False
    ) -> None:
        self.name = "the call"
        self.live = True
        self._devices = Microphone(mic, refresh=refresh), Microphone(system)
        self._clocks = TwoClocks()
        self._items: asyncio.Queue[tuple[int, Frames | Lost | SourceError | None]] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []
        self._n_ended = 0
        framer = Framer(SAMPLE_RATE, 2, split=True)
        self._frames = FrameStream(framer, self._next_block, name=self.name)

    async def __aenter__(self) -> Self:
        # One after the other: how the second is opened must not concern the first.
        first, second = self._devices
        await first.__aenter__()
        try:
            await second.__aenter__()
        except BaseException:
            await first.__aexit__()
            raise
        self.name = f"{first.name} and {second.name}"
        self._readers = [asyncio.create_task(self._read(side)) for side in (0, 1)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for device in self._devices:
            await device.__aexit__()
        for reader in self._readers:
            reader.cancel()
        await asyncio.wait(self._readers)

    def stop(self) -> None:
        """End after the blocks that are being captured now."""
        for device in self._devices:
            device.stop()

    async def _read(self, side: int) -> None:
        try:
            async for item in self._devices[side]:
                self._items.put_nowait((side, item))
        except SourceError as error:
            self._items.put_nowait((side, error))
        self._items.put_nowait((side, None))

    async def _next_block(self) -> Block | None:
        """Return the next samples of both, (n, 2), or None when both have ended."""
        while self._n_ended < len(self._devices):
            side, item = await self._items.get()
            if isinstance(item, SourceError):
                raise item
            if item is None:
                self._n_ended += 1
                continue
            if isinstance(item, Lost):
                # The other device lost nothing, so time goes on.
                log.warning("%s lost %d ms", self._devices[side].name, item.duration_ms)
                item = np.zeros((frames_from_ms(item.duration_ms), FRAME), np.float32)
            self._clocks.push(side, item)
            if len(frames := self._clocks.pull()):
                return frames.swapaxes(1, 2).reshape(-1, 2)
        return None
