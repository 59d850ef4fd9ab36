"""The local sinks: what shows or stores the events on this machine.

Each sink has a thread of its own, because a terminal may be stopped (Ctrl-S) and a pipe's reader
may sleep: neither may hold up the audio or a client.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from streamd.events import Final
from streamd.hub import Hub
from streamd.logs import LogHandler
from streamd.sinks import CaptionSink, Sink


async def stored(hub: Hub, sink: Sink) -> None:
    """Write the hub's events to the sink until the session ends, then close it.

    Raises
    ------
    BrokenPipeError, StreamdError : the sink cannot be written to any more
    """
    with ThreadPoolExecutor(1, thread_name_prefix="sink") as thread:
        await _follow(hub, sink, thread)


async def captioned(
    hub: Hub, sink: CaptionSink, *, on_resize: Callable[[Callable[[], object]], None]
) -> None:
    """The same for standard output, which log lines and a resized terminal may interrupt.

    `on_resize` gets the function to call when the terminal was resized.
    """
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, LogHandler)]
    with ThreadPoolExecutor(1, thread_name_prefix="captions") as thread:
        on_resize(lambda: thread.submit(sink.redraw))
        for handler in handlers:
            handler.share(sink.above, thread.submit)
        try:
            await _follow(hub, sink, thread)
        finally:
            on_resize(lambda: None)
            for handler in handlers:
                handler.share()


async def _follow(hub: Hub, sink: Sink, thread: ThreadPoolExecutor) -> None:
    """A sink that fell too far behind goes on where it was: it misses partials, but no finals."""
    loop, seq = asyncio.get_running_loop(), hub.seq
    try:
        while True:
            with hub.subscribe(after=seq) as events:
                async for event in events:
                    await loop.run_in_executor(thread, sink.write, event)
                    seq = event.seq if isinstance(event, Final) else seq
                if not events.slow:
                    return
    finally:
        await loop.run_in_executor(thread, sink.close)
