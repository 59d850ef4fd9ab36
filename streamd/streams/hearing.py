"""Hears the sounds of one session that are no speech, beside its captions.

All audio of a session comes here, since sounds are between what people say. Windows are classified
in a thread that all sessions share, so that captions never wait for them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from streamd.errors import is_bug
from streamd.events import Sound
from streamd.sounds import Classify, SoundTracker, SoundWindow, SoundWindows
from streamd.types import Frames

_MOST_WAITING = 63
"""Windows (30 s of audio, 4 MB) that wait at most: then the oldest are left out. Sources that can
wait do so from half as many on, so that a file that is read fast loses none."""
_HANGS_S = 20.0
"""How long what waits may take, which is 0.2 s: a classifier that hangs would hold up files and the
ends of sessions for ever."""
_REST_S = 2.0
"""How long the end of a session waits for its last sounds; it took 0.2 s."""

log = logging.getLogger(__name__)

Told = Callable[[list[Sound]], object]


class SoundHearing:
    """Takes the frames of one session, and calls `told` with the sounds in them, or with none.

    `classify` is called in the thread of `executor`. Sounds that began before `since_ms` were told
    by an earlier process. A classifier that fails or hangs hears nothing any more; captions go on.
    """

    def __init__(
        self,
        classify: Classify,
        executor: Executor,
        told: Told,
        *,
        since_ms: int = 0,
        hangs_s: float = _HANGS_S,
    ) -> None:
        self._classify, self._executor, self._told = classify, executor, told
        self._since_ms, self._hangs_s = since_ms, hangs_s
        self._watch: asyncio.TimerHandle | None = None
        self._tracker = SoundTracker()
        self._windows = SoundWindows()
        self._waiting: deque[SoundWindow] = deque(maxlen=_MOST_WAITING)
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
        self._waiting.extend(self._windows.feed(frames, start_ms))
        self._start()

    async def finish(self) -> None:
        """Return when all sounds until now are told, or when that takes too long."""
        self._waiting.extend(self._windows.rest())
        self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_S):
                while self._running is not None:
                    await asyncio.wait({self._running})

    def _start(self) -> None:
        if self._running is None and self._waiting and not self._has_failed:
            windows = [*self._waiting]
            self._waiting.clear()
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._executor, self._sounds_in, windows)
            self._running.add_done_callback(self._done)
            self._watch = loop.call_later(self._hangs_s, self._fail, "it takes too long")

    def _sounds_in(self, windows: list[SoundWindow]) -> list[Sound]:
        return [*self._tracker.hear(windows, self._classify)]

    def _done(self, running: asyncio.Future[list[Sound]]) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._has_failed or running.cancelled():
            return
        self._running = None
        if (error := running.exception()) is not None:
            self._fail(error)
            return
        self._told([each for each in running.result() if each.start_ms >= self._since_ms])
        self._start()

    def _fail(self, why: BaseException | str) -> None:
        """Hear nothing any more, and wait for nothing."""
        self._has_failed, self._running = True, None
        self._waiting.clear()
        bug = why if isinstance(why, BaseException) and is_bug(why) else None
        log.error("no sounds are heard any more: %s", why, exc_info=bug)
        self._told([])
