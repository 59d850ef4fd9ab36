"""Where the stations meet: wiring, supervision, shutdown.

`run` is the live daemon (a source or none, the server, the local sinks), `transcribe` the same
stations run fast on files. Shutdown is a flush: what was said so far becomes final, everybody hears
it and the end of the session, then the process exits with 0. Only the second interrupt is
impatient.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any

from streamd.config import Config, read_token
from streamd.daemon import build
from streamd.daemon.control import Control
from streamd.daemon.opening import open_model
from streamd.daemon.screen import Screen, stored
from streamd.daemon.streams import Stream, Streams
from streamd.display import check_files, open_display, open_files
from streamd.errors import ConfigError, SourceError, StreamdError
from streamd.events import Fault
from streamd.server import LIVE, Server
from streamd.sinks.progress import ProgressBar
from streamd.sinks.terminal import is_terminal
from streamd.sources import Lost, Source
from streamd.types import ms_from_frames

log = logging.getLogger(__name__)

Reached = Callable[[int, int], object]
"""Is told (position_ms, duration_ms) of a source; the duration is 0 if unknown."""
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
    with build.places(config) as places, control.signals():
        max_ingest = config.server.max_streams
        streams = Streams(new_session, room=ROOM, max_ingest=max_ingest, places=places)
        control.on_dump = lambda: log.warning("; ".join(streams.state()) or "no sessions")
        await _until_first_error(_live(config, sources, streams, control))
    control.check()
    return 0


async def transcribe(config: Config) -> int:
    """Write files down as fast as the engine can, each utterance in one piece.

    Returns and raises as `run` does.
    """
    check_files(config.output, config.input.files)
    sources = build.own_sources(config)
    streams = Streams(build.session_factory(config, step_ms=0), room=ROOM, max_ingest=0)
    control = Control()
    with control.signals():
        await _until_first_error(_all_written(config, sources, streams, control))
    control.check()
    return 0


async def _live(
    config: Config, sources: Sequence[Source], streams: Streams, control: Control
) -> None:
    """All tasks of the process, until the sources end or the user wants to."""
    async with asyncio.TaskGroup() as tasks:
        engine = tasks.create_task(_engine(config, streams))
        syncing = tasks.create_task(streams.sync())
        live = streams.add(LIVE) if sources else None
        if live is not None:
            (file,) = config.input.files if len(sources) == 1 and config.input.files else ("",)
            _show(config, live, control, tasks, file=file)
        listens = config.server.server
        async with build.server(config, streams) if listens else nullcontext() as server:
            if server is not None and not is_terminal(sys.stdout, os.environ):
                control.on_hangup = partial(_reload, config, server)

            def announce() -> None:
                if server is not None:
                    log.info("listening on ws://%s:%d/v1/stream", config.server.host, server.port)

            if live is None:
                announce()
                await control.stopped.wait()
            else:
                await _caption(sources, live, control, opened=announce)
        engine.cancel()
        syncing.cancel()


def _reload(config: Config, server: Server) -> None:
    """Take the token that the file has now; a file that cannot be read changes nothing."""
    try:
        server.change_token(read_token(config.server.token_file))
        log.info("read %s", config.server.token_file or "nothing: there is no --token-file")
    except ConfigError as error:
        log.error("%s; the old token stays", error)  # noqa: TRY400 - the line says it all


async def _all_written(
    config: Config, sources: Sequence[Source], streams: Streams, control: Control
) -> None:
    """One file after the other, without a server."""
    async with asyncio.TaskGroup() as tasks:
        engine = tasks.create_task(_engine(config, streams))
        for file, source in zip(config.input.files, sources, strict=True):
            if not control.stopped.is_set():
                await _written(config, file, source, streams.add(LIVE), control)
        engine.cancel()


async def _written(
    config: Config, file: str, source: Source, live: Stream, control: Control
) -> None:
    """One file; its progress is shown to a person who waits.

    Raises
    ------
    SourceError : the file is damaged; what it gave until then is written
    """
    async with asyncio.TaskGroup() as tasks:
        terminal = is_terminal(sys.stderr, os.environ)
        bar = ProgressBar(sys.stderr, source.name) if terminal else None
        screen = _show(config, live, control, tasks, file=file, bar=bar)
        await _caption([source], live, control, reached=screen.reached)


def _show(
    config: Config,
    live: Stream,
    control: Control,
    tasks: asyncio.TaskGroup,
    *,
    file: str,
    bar: ProgressBar | None = None,
) -> Screen:
    """The local sinks of the live session; `file` as in `open_files`."""
    sinks = open_files(config.output, file)
    started = datetime.now(UTC)
    screen = Screen(open_display(config.output, sys.stdout, os.environ, started=started), bar)
    control.on_resize = screen.redraw
    tasks.create_task(_or_stop(screen.show(live.hub), control))
    for sink in sinks:
        tasks.create_task(_or_stop(stored(live.hub, sink), control))
    return screen


async def _or_stop(sink: Coroutine[Any, Any, None], control: Control) -> None:
    """A sink that fails ends the program, but not before all others heard what was said."""
    try:
        await sink
    except (StreamdError, BrokenPipeError) as error:
        control.stop(error)


async def _engine(config: Config, streams: Streams) -> None:
    """The supervisor: a model that cannot be loaded or an engine that dies is told to everybody."""
    try:
        model, engine = await asyncio.to_thread(open_model, config)
        if model.notice:
            log.info("%s", model.notice)
        recognizer = await asyncio.to_thread(build.recognizer, config, model, engine)
        await streams.transcribe(recognizer)
    except Exception as error:
        streams.fail(error)
        raise


async def _caption(
    sources: Sequence[Source],
    live: Stream,
    control: Control,
    *,
    opened: Callable[[], None] = lambda: None,
    reached: Reached = lambda position_ms, duration_ms: None,
) -> None:
    """One source after the other, then the end of the session.

    `opened` is called when the first one delivers; `reached` is told from time to time up to where
    the audio was transcribed.

    Raises
    ------
    SourceError : a source failed; what it gave until then is final
    """
    for source in sources:
        try:
            async with source:
                if source is sources[0]:
                    opened()
                await _pump(source, live, control, reached)
        except SourceError as error:
            await live.flush()
            live.fail(Fault(code="source", message=str(error), fatal=True))
            raise
        await live.flush()
        if control.stopped.is_set():
            break
    stopped = control.stopped.is_set()
    await live.finish("stop" if stopped else "end", goes_on=stopped)


async def _pump(source: Source, live: Stream, control: Control, reached: Reached) -> None:
    """From the source into the session, until the source ends or the user stops it."""
    control.on_stop = source.stop
    if control.stopped.is_set():
        return
    n_skipped = 0
    async for item in source:
        if isinstance(item, Lost):
            live.gap(item.duration_ms, item.why)
        elif control.paused:
            if not n_skipped:
                await live.flush()  # what was said before is not kept waiting
            n_skipped += len(item)
        else:
            if n_skipped:
                live.gap(ms_from_frames(n_skipped), "paused")
                n_skipped = 0
            if not source.live:
                await live.room()
            live.feed(item)
            done = live.session.now - live.session.backlog
            reached(ms_from_frames(done), source.duration_ms or 0)
    if n_skipped:
        live.gap(ms_from_frames(n_skipped), "paused")


async def _until_first_error(work: Coroutine[Any, Any, None]) -> None:
    """Run it; of several errors at once only the first is the user's concern."""
    try:
        await work
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
