"""Hears the sounds of one session that are no speech, beside its captions.

All audio of a session comes here, since sounds are between what people say. Windows are classified
in a thread that all sessions share, so that captions never wait for them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from streamd.errors import is_bug
from streamd.events import Sound
from streamd.sounds import HOP, WINDOW, Classify, SoundTracker
from streamd.types import FRAME, FRAME_MS, SAMPLE_RATE, Frames, Samples

_MOST_WAITING = 63
"""Windows (30 s of audio, 4 MB) that wait at most: then the oldest are left out. Sources that can
wait do so from half as many on, so that a file that is read fast loses none."""

log = logging.getLogger(__name__)

Told = Callable[[list[Sound]], object]


class _SoundWindow(NamedTuple):
    """What is heard at once; `is_last`: before the end, or a gap."""

    start_ms: int
    samples: Samples
    is_last: bool = False


class SoundHearing:
    """Takes the frames of one session, and calls `told` with the sounds in them, or with none.

    `classify` is called in the thread of `executor`. Sounds that began before `since_ms` were told
    by an earlier process. A classifier that fails hears nothing any more; captions go on.
    """

    def __init__(
        self, classify: Classify, executor: Executor, told: Told, *, since_ms: int = 0
    ) -> None:
        self._classify, self._executor, self._told = classify, executor, told
        self._since_ms = since_ms
        self._tracker = SoundTracker()
        self._samples = np.empty(0, np.float32)  # from the beginning of the next window on
        self._start_ms = 0  # when they begin
        self._waiting: deque[_SoundWindow] = deque(maxlen=_MOST_WAITING)
        self._running: asyncio.Future[list[Sound]] | None = None
        self._has_failed = False

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that sources that can wait have to."""
        return len(self._waiting) > _MOST_WAITING // 2

    def feed(self, frames: Frames, start_ms: int) -> None:
        """Take the next (n, 320) frames, which begin at `start_ms`."""
        if self._has_failed:
            return
        if start_ms != self._start_ms + len(self._samples) * 1000 // SAMPLE_RATE:
            self._interrupt()  # audio was lost
            self._start_ms = start_ms
        self._samples = np.concatenate([self._samples, frames.reshape(-1)])
        while len(self._samples) >= WINDOW:
            self._waiting.append(_SoundWindow(self._start_ms, self._samples[:WINDOW]))
            self._samples = self._samples[HOP * FRAME :]
            self._start_ms += HOP * FRAME_MS
        self._start()

    async def finish(self) -> None:
        """Return when all sounds until now are told."""
        self._interrupt()
        self._start()
        while self._running is not None:
            await asyncio.wait({self._running})

    def _interrupt(self) -> None:
        """End what goes on, since nothing follows at once."""
        if len(self._samples):
            padded = np.pad(self._samples, (0, WINDOW - len(self._samples)))
            self._waiting.append(_SoundWindow(self._start_ms, padded, is_last=True))
            self._samples = self._samples[:0]

    def _start(self) -> None:
        if self._running is None and self._waiting and not self._has_failed:
            windows = [*self._waiting]
            self._waiting.clear()
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._executor, self._sounds_in, windows)
            self._running.add_done_callback(self._done)

    def _sounds_in(self, windows: Iterable[_SoundWindow]) -> list[Sound]:
        sounds: list[Sound] = []
        for window in windows:
            sounds += self._tracker.feed(self._classify(window.samples), window.start_ms)
            if window.is_last:
                sounds += self._tracker.end()
        return sounds

    def _done(self, running: asyncio.Future[list[Sound]]) -> None:
        self._running = None
        if running.cancelled():
            return
        sounds: list[Sound] = []
        if (error := running.exception()) is not None:
            self._has_failed = True
            self._waiting.clear()
            bug = error if is_bug(error) else None
            log.error("no sounds are heard any more: %s", error, exc_info=bug)
        else:
            sounds = [each for each in running.result() if each.start_ms >= self._since_ms]
        self._told(sounds)
        self._start()
