"""Carries audio from a source to its listener, but not while the user has paused it."""

from typing import Protocol

from streamd.daemon.control import Control
from streamd.events import GapReason
from streamd.sources import Lost, Source
from streamd.types import Frames, ms_from_frames


class Listener(Protocol):
    """Takes one stream of audio."""

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        ...

    def gap(self, duration_ms: int, why: GapReason) -> None:
        """Report audio that never arrived."""
        ...

    async def flush(self) -> None:
        """Make all audio until now final."""
        ...

    async def room(self) -> None:
        """Return once more audio is welcome."""
        ...


async def pump(source: Source, listener: Listener, control: Control) -> None:
    """Feed the listener until the source ends or the user stops the program."""
    n_skipped = 0
    with control.stopping(source.stop):
        if control.stopped.is_set():
            source.stop()  # what a pipe holds by now is still read
        async for item in source:
            if isinstance(item, Lost):
                listener.gap(item.duration_ms, item.why)
            elif control.paused:
                if not n_skipped:
                    await listener.flush()  # speech before the pause is final at once
                n_skipped += len(item)
            else:
                if n_skipped:
                    listener.gap(ms_from_frames(n_skipped), GapReason.PAUSED)
                    n_skipped = 0
                if not source.live:
                    await listener.room()
                listener.feed(item)
    if n_skipped:
        listener.gap(ms_from_frames(n_skipped), GapReason.PAUSED)
