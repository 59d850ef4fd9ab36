"""``streamd watch``: here, the captions of a streamd that runs somewhere else."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import datetime

from streamd.client import watch
from streamd.config import Config, read_token
from streamd.display import open_display, open_files
from streamd.sinks import Sink
from streamd.stdio import lines_inside


async def show(config: Config, url: str) -> None:
    """Show and store the events of the session at `url` until it ends or we are told to stop.

    Raises
    ------
    StreamdError
        a bad token file, no such server or session, a file that cannot be written
    BrokenPipeError
        nobody reads standard output any more
    """
    loop = asyncio.get_running_loop()
    token = read_token(config.bind.token_file, os.environ)
    started = datetime.now().astimezone()  # the server does not tell when the session began
    screen = open_display(config, sys.stdout, os.environ, started=started)
    sinks = (screen, *open_files(config))
    # A terminal may be stopped (Ctrl-S); its own thread keeps the connection alive meanwhile.
    with (
        ThreadPoolExecutor(1, thread_name_prefix="captions") as drawing,
        lines_inside(screen.above, drawing.submit),
    ):
        loop.add_signal_handler(signal.SIGWINCH, drawing.submit, screen.redraw)
        following = asyncio.ensure_future(_follow(url, token, sinks, drawing))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, following.cancel)
        try:
            await asyncio.wait([following])
            if not following.cancelled():  # to be stopped is the ordinary end of watching
                following.result()
        finally:
            for sink in sinks:
                drawing.submit(sink.close)


async def _follow(
    url: str, token: str | None, sinks: Sequence[Sink], drawing: ThreadPoolExecutor
) -> None:
    loop = asyncio.get_running_loop()
    async with aclosing(watch(url, token=token)) as events:
        async for event in events:
            for sink in sinks:
                await loop.run_in_executor(drawing, sink.write, event)
