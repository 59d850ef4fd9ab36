"""Where the stations meet: wiring, supervision, shutdown.

`run` is the live daemon (a source or none, the server, the local sinks), `transcribe` writes files
down. Shutdown is a flush: what was said so far becomes final, everybody hears it and the end of the
session, then the process exits with 0. Only the second interrupt is impatient.
"""

import asyncio
import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from streamd.config import Config
from streamd.daemon import build, serving
from streamd.daemon.control import Control, until_first_error
from streamd.daemon.inference import HangError
from streamd.daemon.opening import open_model
from streamd.daemon.pump import pump
from streamd.daemon.recordings import write_down
from streamd.daemon.reopening import OpenSource, follow
from streamd.daemon.screen import show
from streamd.daemon.streams import Stream, Streams
from streamd.display import check_files, open_files
from streamd.errors import SourceError
from streamd.events import EndReason, Fault
from streamd.server import LIVE
from streamd.sinks.terminal import is_terminal
from streamd.sources import Source

log = logging.getLogger(__name__)

ROOM = 500
"""Frames of backlog (10 s) at which whoever can wait is made to: pipes, fast files, clients."""


async def run(config: Config) -> int:
    """Caption what the user's source says and what clients send, until the source ends.

    Returns
    -------
    the exit code, 0

    Raises
    ------
    StreamdError : what the user can put right; it has its own exit code
    BrokenPipeError : nobody reads standard output any more
    """
    sources = build.own_sources(config)
    new_session = build.session_factory(config)
    control = Control()
    with serving.places(config) as places, control.signals():
        streams = Streams(
            new_session,
            room=ROOM,
            max_ingest=config.server.max_streams,
            deadline_s=config.decoding.engine_deadline_ms / 1000,
            places=places,
            metrics=serving.metrics(config),
        )
        control.on_dump = lambda: log.warning("; ".join(streams.state()) or "no sessions")
        await until_first_error(_live(config, sources, streams, control))
    control.check()
    return 0


async def transcribe(config: Config) -> int:
    """Write files down as fast as the engine can, window by window.

    Returns and raises as `run` does.
    """
    check_files(config.output, config.input.files)
    await write_down(config, build.own_sources(config))
    return 0


async def _live(
    config: Config, sources: Sequence[Source], streams: Streams, control: Control
) -> None:
    """All tasks of the process, until the sources end or the user wants to."""
    async with asyncio.TaskGroup() as tasks:
        engine = tasks.create_task(_engine(config, streams))
        chores = [tasks.create_task(chore) for chore in (streams.chores(), serving.watchdog())]
        live = streams.add(LIVE) if sources else None
        if live is not None:
            (file,) = config.input.files if len(sources) == 1 and config.input.files else ("",)
            show(config, live.hub, control, tasks, sinks=open_files(config.output, file))
        async with serving.server(config, streams) as server:
            if server is not None and not is_terminal(sys.stdout, os.environ):
                control.on_hangup = partial(serving.reload, config, server)

            def announce() -> None:
                if server is not None:
                    serving.announce(server)

            if live is None:
                announce()
                await control.stopped.wait()
            else:
                reopen = None if config.input.files else partial(build.microphone, config)
                await _caption(sources, live, control, opened=announce, reopen=reopen)
        engine.cancel()
        for chore in chores:
            chore.cancel()


async def _engine(config: Config, streams: Streams) -> None:
    """The supervisor: a model that cannot be loaded or an engine that dies is told to everybody."""
    try:
        model, engine = await asyncio.to_thread(open_model, config)
        recognizers = [
            await asyncio.to_thread(build.recognizer, config, model, engine)
            for _ in range(build.workers(config))
        ]
        await streams.transcribe(*recognizers)
    except Exception as error:
        streams.fail(error)
        if isinstance(error, HangError):
            # In the end Python would tear the runtime down under its thread, which crashes.
            atexit.register(os._exit, error.exit_code)
        raise


async def _caption(
    sources: Sequence[Source],
    live: Stream,
    control: Control,
    *,
    opened: Callable[[], None],
    reopen: OpenSource | None = None,
) -> None:
    """One source after the other, then the end of the session.

    `opened` is called when the first one delivers; `reopen` gives the source if it is a device that
    may be gone for a while.

    Raises
    ------
    SourceError : a source failed; what it gave until then is final
    """
    for source in sources:
        try:
            if reopen is not None:
                await follow(reopen, live, control, opened=opened)
                break
            control.on_stop = source.stop  # opening may take long, too
            async with source:
                if source is sources[0]:
                    opened()
                await pump(source, live, control)
        except SourceError as error:
            await live.flush()
            live.fail(Fault(code="source", message=str(error), fatal=True))
            raise
        await live.flush()
        if control.stopped.is_set():
            break
    stopped = control.stopped.is_set()
    await live.finish(EndReason.STOP if stopped else EndReason.END, goes_on=stopped)
