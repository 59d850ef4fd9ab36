"""The local sinks, each in a thread of its own.

A terminal may be stopped (Ctrl-S) and the reader of a pipe may sleep; neither may delay the audio
or a client.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from signal import SIGWINCH
from typing import Any

import numpy as np

from streamd.daemon.control import Control
from streamd.errors import StreamdError
from streamd.events import Event, Final
from streamd.sinks import CaptionSink, Sink
from streamd.streams.hub import Hub
from streamd.system.stdio import lines_inside
from streamd.types import Frames

_METER_FRAMES = 10
"""Frames between two levels: 200 ms."""


async def stored(hub: Hub, sink: Sink) -> None:
    """Write the hub's events to the sink until the session ends, then close it."""
    with ThreadPoolExecutor(1, thread_name_prefix="sink") as thread:
        await _follow(hub, sink, thread)


class Screen:
    """Standard output, shared by captions, log lines and a progress bar: one thread draws all.

    `terminal` shows what may change if `captions` do not.
    """

    def __init__(self, captions: CaptionSink, terminal: CaptionSink | None = None) -> None:
        self._captions, self._terminal = captions, terminal or captions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="captions")
        self._ended = False
        self._peak, self._n_heard = 0.0, 0
        self._metering: Future[None] | None = None

    def heard(self, frames: Frames) -> None:
        """Show how loud the frames of a microphone are, a few times a second."""
        self._peak = max(self._peak, float(np.abs(frames).max()))
        self._n_heard += len(frames)
        # A terminal may be stopped (Ctrl-S): then one level waits for it, not all.
        is_waiting = self._metering is not None and not self._metering.done()
        if self._ended or self._n_heard < _METER_FRAMES or is_waiting:
            return
        self._metering = self._thread.submit(self._captions.meter, self._peak)
        self._peak, self._n_heard = 0.0, 0

    def redraw(self) -> None:
        """Draw the captions again, because the terminal was resized."""
        if not self._ended:
            self._thread.submit(self._terminal.redraw)

    def status(self, line: Callable[[int], str]) -> None:
        """Show a line below the captions, made for the columns of the terminal."""
        if not self._ended:
            self._thread.submit(self._terminal.status, line)

    async def show(self, hub: Hub) -> None:
        """Show the hub's events until the session ends; raises `BrokenPipeError`."""
        with self._thread, lines_inside(self._terminal.above, self._thread.submit):
            try:
                await _follow(hub, self, self._thread)
            finally:
                self._ended = True

    # The rest runs in the thread.

    def write(self, event: Event) -> None:
        """Show an event above the progress bar; `show` calls this, and `close`."""
        is_below = self._terminal is not self._captions
        with self._terminal.above() if is_below else nullcontext():
            self._captions.write(event)

    def close(self) -> None:
        """Remove the progress bar, and complete the captions."""
        if self._terminal is not self._captions:
            self._terminal.close()
        self._captions.close()


def show(
    screen: Screen, hub: Hub, control: Control, tasks: asyncio.TaskGroup, *, sinks: Sequence[Sink]
) -> None:
    """Show a session on the screen and write it to `sinks`, in tasks of their own."""

    async def on_screen() -> None:
        # An interrupt may have been typed: then ^C stands where the cursor was, on the captions.
        with control.on(SIGWINCH, screen.redraw), control.stopping(screen.redraw):
            await screen.show(hub)

    tasks.create_task(_or_stop(on_screen, control))
    for sink in sinks:
        tasks.create_task(_or_stop(partial(stored, hub, sink), control))


async def _or_stop(follow: Callable[[], Coroutine[Any, Any, None]], control: Control) -> None:
    """Stop the program if a sink fails; the other sinks still get everything until now.

    It makes the coroutine itself: Python complains of one that nobody awaits, and this task is
    cancelled before it begins if the server cannot start.
    """
    try:
        await follow()
    except (StreamdError, BrokenPipeError) as error:
        control.stop(error)


async def _follow(hub: Hub, sink: Sink, thread: ThreadPoolExecutor) -> None:
    loop, seq = asyncio.get_running_loop(), hub.seq
    try:
        while True:
            with hub.subscribe(after=seq, listens=False) as events:
                async for event in events:
                    await loop.run_in_executor(thread, sink.write, event)
                    seq = event.seq if isinstance(event, Final) else seq
                if not events.slow:
                    return
                # The queue overflowed: subscribe again, which loses partials but no finals.
    finally:
        await loop.run_in_executor(thread, sink.close)
