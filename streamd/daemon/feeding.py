"""Carries the audio of the program's own sources into their session."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from streamd.daemon.control import Control
from streamd.errors import SourceError
from streamd.events import EndReason, Fault, GapReason
from streamd.sources import Lost, Source
from streamd.sources.file import FileSource
from streamd.streams.stream import Stream
from streamd.types import ms_from_frames

log = logging.getLogger(__name__)


async def caption(
    sources: Sequence[Source],
    live: Stream,
    control: Control,
    *,
    opened: Callable[[], None] = lambda: None,
    reopen: Callable[..., Source] | None = None,
    loaded: asyncio.Event | None = None,
) -> None:
    """Caption one source after the other, then end the session.

    `opened` is called when the first source is open; `reopen` makes the source if it is a device,
    which may be unplugged for a while. A file that is played waits until the model is `loaded`:
    nobody would read what it says meanwhile. Audio before a `SourceError` becomes final.
    """
    for source in sources:
        try:
            if reopen is not None:
                await follow(reopen, live, control, opened=opened)
                break
            with control.stopping(source.stop):  # opening may take long, too
                async with source:
                    if source is sources[0]:
                        opened()
                    if loaded is not None and isinstance(source, FileSource):
                        await _either(loaded, control.stopped)
                    await pump(source, live, control)
        except SourceError as error:
            await live.flush()
            live.fail(Fault(code="source", message=str(error), fatal=True))
            raise
        await live.flush()
        if control.stopped.is_set():
            break
    stopped = control.stopped.is_set()
    await live.finish(EndReason.STOP if stopped else EndReason.END, resumable=stopped)


async def _either(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def pump(source: Source, live: Stream, control: Control) -> None:
    """Carry audio into the session until the source ends or the user stops the program.

    Audio that arrives while the user has paused it is dropped and reported as a gap.
    """
    n_skipped = 0
    with control.stopping(source.stop):
        if control.stopped.is_set():
            source.stop()  # what a pipe holds by now is still read
        async for item in source:
            if isinstance(item, Lost):
                live.gap(item.duration_ms, item.why)
            elif control.paused:
                if not n_skipped:
                    await live.flush()  # speech before the pause is final at once
                n_skipped += len(item)
            else:
                if n_skipped:
                    live.gap(ms_from_frames(n_skipped), GapReason.PAUSED)
                    n_skipped = 0
                if not source.live:
                    await live.wait_for_space()
                live.feed(item)
    if n_skipped:
        live.gap(ms_from_frames(n_skipped), GapReason.PAUSED)


async def follow(
    open_source: Callable[..., Source],
    live: Stream,
    control: Control,
    *,
    opened: Callable[[], object],
    retry_s: float = 1.0,
) -> None:
    """Carry audio from a device into the session until the user stops the program.

    `open_source` makes the source of the device, given whether it was unplugged meanwhile
    (`again`). It is tried every `retry_s` seconds; listeners get a fault, and a gap when the device
    is back. `opened` is called when the device is open for the first time; if that fails,
    `SourceError` is raised.
    """
    loop = asyncio.get_running_loop()
    was_open, gone_s = False, 0.0
    live.has_source = False
    while not control.stopped.is_set():
        source = open_source(again=was_open)
        try:
            async with source:
                live.has_source = True
                if not was_open:
                    was_open = True
                    opened()
                elif gone_s:
                    live.gap(round((loop.time() - gone_s) * 1000), GapReason.DEVICE)
                    log.warning("%s is back", source.name)
                    gone_s = 0.0
                await pump(source, live, control)
                return
        except SourceError as error:
            live.has_source = False
            if not was_open:
                raise
            if not gone_s:
                gone_s = loop.time()
                log.warning("%s; waiting for it", error)
                await live.flush()
                live.report(Fault(code="source", message=str(error)))
        with suppress(TimeoutError):
            await asyncio.wait_for(control.stopped.wait(), retry_s)
