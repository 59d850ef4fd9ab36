"""Carries audio from a source to whoever listens, and leaves out what comes while we are paused."""

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
        """Take note of audio that was lost on the way here."""
        ...

    async def flush(self) -> None:
        """Make everything that was said so far final, if anything can be yet."""
        ...

    async def room(self) -> None:
        """Return once more audio is welcome."""
        ...


async def pump(source: Source, listener: Listener, control: Control) -> None:
    """Feed the listener from the source until the source ends or the user stops it."""
    control.on_stop = source.stop
    if control.stopped.is_set():
        source.stop()  # what a pipe holds by now is still heard
    n_skipped = 0
    async for item in source:
        if isinstance(item, Lost):
            listener.gap(item.duration_ms, item.why)
        elif control.paused:
            if not n_skipped:
                await listener.flush()  # what was said before is not kept waiting
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
