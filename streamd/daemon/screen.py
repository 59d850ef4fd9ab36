"""The local sinks: what shows or stores the events on this machine.

Each sink has a thread of its own, because a terminal may be stopped (Ctrl-S) and a pipe's reader
may sleep: neither may hold up the audio or a client.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from signal import SIGWINCH
from typing import Any

from streamd.config import Config
from streamd.daemon.control import Control
from streamd.display import open_display
from streamd.errors import StreamdError
from streamd.events import Event, Final
from streamd.hub import Hub
from streamd.sinks import CaptionSink, Sink
from streamd.sinks.progress import ProgressBar
from streamd.stdio import lines_inside


async def stored(hub: Hub, sink: Sink) -> None:
    """Write the hub's events to the sink until the session ends, then close it.

    Raises
    ------
    BrokenPipeError, StreamdError : the sink cannot be written to any more
    """
    with ThreadPoolExecutor(1, thread_name_prefix="sink") as thread:
        await _follow(hub, sink, thread)


class Screen:
    """Standard output, with what may interrupt it: log lines, a new size, a progress bar.

    Everything is drawn by one thread, in the order in which it was asked for.
    """

    def __init__(self, captions: CaptionSink, progress: ProgressBar | None = None) -> None:
        self._sink = captions if progress is None else _AboveProgress(captions, progress)
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="captions")
        self._ended = False

    def redraw(self) -> None:
        """The terminal was resized."""
        if not self._ended:
            self._thread.submit(self._sink.redraw)

    def reached(self, position_ms: int, duration_ms: int) -> None:
        """The audio before this is done, of so much, or 0 if that is not known."""
        if self._progress is not None and not self._ended:
            self._thread.submit(self._progress.update, position_ms, duration_ms)

    async def show(self, hub: Hub) -> None:
        """Show the hub's events until the session ends, and leave everything in order.

        Raises
        ------
        BrokenPipeError : nobody reads standard output any more
        """
        with self._thread, lines_inside(self._sink.above, self._thread.submit):
            try:
                await _follow(hub, self._sink, self._thread)
            finally:
                self._ended = True


def show(
    config: Config,
    hub: Hub,
    control: Control,
    tasks: asyncio.TaskGroup,
    *,
    sinks: Sequence[Sink],
    bar: ProgressBar | None = None,
) -> Screen:
    """Let standard output and these sinks follow a session, in tasks of their own."""
    started = datetime.now(UTC)
    screen = Screen(open_display(config, sys.stdout, os.environ, started=started), bar)

    async def on_screen() -> None:
        with control.on(SIGWINCH, screen.redraw):
            await screen.show(hub)

    tasks.create_task(_or_stop(on_screen(), control))
    for sink in sinks:
        tasks.create_task(_or_stop(stored(hub, sink), control))
    return screen


async def _or_stop(sink: Coroutine[Any, Any, None], control: Control) -> None:
    """A sink that fails ends the program, but not before all others heard what was said."""
    try:
        await sink
    except (StreamdError, BrokenPipeError) as error:
        control.stop(error)


class _AboveProgress:
    """Captions that may share a terminal with a progress bar."""

    def __init__(self, captions: CaptionSink, progress: ProgressBar) -> None:
        self._captions, self._progress = captions, progress

    def write(self, event: Event) -> None:
        with self._progress.above():
            self._captions.write(event)

    def redraw(self) -> None:
        with self._progress.above():
            self._captions.redraw()

    @contextmanager
    def above(self) -> Iterator[None]:
        with self._progress.above(), self._captions.above():
            yield

    def close(self) -> None:
        self._progress.close()
        self._captions.close()


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
