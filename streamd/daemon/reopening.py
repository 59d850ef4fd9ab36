"""A microphone that is unplugged is waited for: its listeners are told, and nobody else notices."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from streamd.daemon.control import Control
from streamd.daemon.pump import pump
from streamd.daemon.stream import Stream
from streamd.errors import SourceError
from streamd.events import Fault, GapReason
from streamd.sources import Source

log = logging.getLogger(__name__)


class OpenSource(Protocol):
    """Makes a source of a device."""

    def __call__(self, *, again: bool) -> Source:
        """The device, to be opened; `again`: it was gone meanwhile."""
        ...


async def follow(
    open_source: OpenSource,
    live: Stream,
    control: Control,
    *,
    opened: Callable[[], object],
    pause_s: float = 1.0,
) -> None:
    """Carry audio from a device into the session, until the user stops it.

    Parameters
    ----------
    open_source : gives the device each time that it has to be opened
    opened : called when it was opened for the first time
    pause_s : between the attempts to open a device that is gone

    Raises
    ------
    SourceError : it could not be opened the first time
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
                await _tell(error, live)
        await _pause(control, pause_s)


async def _tell(error: SourceError, live: Stream) -> None:
    log.warning("%s; waiting for it", error)
    await live.flush()
    live.report(Fault(code="source", message=str(error)))


async def _pause(control: Control, pause_s: float) -> None:
    try:
        async with asyncio.timeout(pause_s):
            await control.stopped.wait()
    except TimeoutError:
        pass
