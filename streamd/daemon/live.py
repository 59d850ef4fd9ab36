"""The live daemon: a source or none, the server, the local sinks."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from signal import SIGHUP, SIGUSR1, SIGUSR2

from streamd.config import Config
from streamd.daemon import build, phrases, serving, translating
from streamd.daemon.context import with_context
from streamd.daemon.control import Control, until_first_error
from streamd.daemon.delivering import deliver
from streamd.daemon.display import open_display, open_files
from streamd.daemon.feeding import caption
from streamd.daemon.first_start import FirstStart
from streamd.daemon.opening import with_capacity
from streamd.daemon.other_models import OtherModels
from streamd.daemon.people import PeopleFolder, VoiceKeeper
from streamd.daemon.screen import Screen, show, stored_or_told
from streamd.daemon.uploads import Uploads
from streamd.errors import StreamdError, for_clients
from streamd.events import Fault, SpeakerName
from streamd.labels import names_of
from streamd.models.store import told
from streamd.server import LIVE, TELL_S
from streamd.session.channels import SplitSession
from streamd.sinks import Sink
from streamd.sinks.dictation import TypingSink, typists
from streamd.sinks.loudspeaker import loudspeaker
from streamd.sinks.tally import Tally
from streamd.sinks.terminal import is_terminal
from streamd.sources import Source
from streamd.sources.call import SIDES
from streamd.streams import Chooser, SessionStorage, Streams
from streamd.streams.inference import EngineThread
from streamd.streams.metrics import Metrics
from streamd.streams.stream import Stream
from streamd.types import WindowRecognizer
from streamd.version import __version__

log = logging.getLogger(__name__)

MAX_BACKLOG = 500
"""Frames of backlog (10 s) at which pipes, files and clients have to wait."""
_EXIT_S = 1.0
"""What is left of `limits.shutdown_ms` for the end of the process. It took 1.3 s when it waited a
second for each window that was being transcribed; now it waits half a second for all of them."""


async def run(
    config: Config, *, also: Callable[[Control], Sequence[Sink]] = lambda control: ()
) -> int:
    """Caption the user's source and the audio of clients until the source ends; return 0.

    `also` makes further sinks of the source's captions. Raises `StreamdError`, which has its own
    exit code, and `BrokenPipeError` if the reader of standard output has closed it.
    """
    translating.check(config)
    sources, config = build.own_sources(config), with_context(with_capacity(config))
    if not (config.output.afterwards and sources):
        return await _captions(config, sources, also)
    # It needs what transcribes recordings, which most runs do not.
    from streamd.daemon.afterwards import Afterwards

    better = Afterwards(config)
    with better.folder():
        await _captions(
            config,
            sources,
            lambda control: [*also(control), better.words],
            recording=better.recording,
        )
        await better.write()
    return 0


async def _captions(
    config: Config,
    sources: Sequence[Source],
    also: Callable[[Control], Sequence[Sink]],
    *,
    recording: Callable[[SessionStorage], SessionStorage] = lambda storage: storage,
) -> int:
    auto_step = build.auto_step(config)
    new_session = build.session_factory(config, auto_step)
    known, control = phrases.read(config.decoding.vocabulary), Control()
    rules = phrases.read_replacements(config.decoding.replace)
    new_notices = build.notices(config)
    with serving.storage(config) as stored, control.signals():
        storage = recording(stored)
        streams = Streams(
            new_session,
            max_backlog=MAX_BACKLOG,
            max_ingest=config.limits.most_streams,
            deadline_s=config.decoding.engine_deadline_ms / 1000,
            storage=storage,
            metrics=Metrics(version=__version__, model=told(config.decoding.model)),
        )
        streams.context.rules = rules
        streams.context.new_hearing = build.hearing()
        streams.context.new_notices = new_notices
        streams.follow(auto_step)
        streams.choices = build.default_choices(config)
        streams.learn = partial(phrases.add, path=phrases.own_file())
        streams.when_idle.append(build.release_small_models)
        if config.decoding.people:
            streams.context.new_keeper = partial(VoiceKeeper, PeopleFolder(config.decoding.people))

        def log_state() -> None:
            log.warning("; ".join(streams.state()) or "no sessions")

        tally, sinks = Tally(), list(also(control))
        if _is_watched(config):
            sinks.append(tally)
        with control.on(SIGUSR1, control.toggle_pause), control.on(SIGUSR2, log_state):
            others = OtherModels(config, known, streams)
            uploads = Uploads(config, streams, storage.journals, others)
            streams.when_idle.append(others.close_unused)
            live = _live(config, sources, uploads, control, sinks, known=known)
            await until_first_error(live)
    control.check()
    for line in tally.lines():
        log.info("%s", line)
    return 0


async def dictate(config: Config) -> int:
    """Type what is said into the focused window; returns and raises as `run`.

    Raises `ConfigError` if no program here can type.
    """
    programs, phrase = typists(sys.platform, os.environ), config.dictation.stop_phrase
    if not config.decoding.replace:
        config = replace(config, decoding=replace(config.decoding, replace=(phrases.COMMANDS,)))
    rules = phrases.read_replacements(config.decoding.replace)

    def sinks(control: Control) -> list[Sink]:
        loop = asyncio.get_running_loop()
        if config.dictation.push_to_talk:
            control.paused = True
            log.info("push to talk: kill -USR1 %d before and after you speak", os.getpid())
        stop = partial(loop.call_soon_threadsafe, control.stop)
        log.info(
            "typing into the focused window with %s%s",
            programs[0],
            f"; say {phrase!r} or press Ctrl-C to end" if phrase else "",
        )
        return [TypingSink(programs, phrase, rules, stop=stop, is_stopped=control.stopped.is_set)]

    return await run(config, also=sinks)


def _is_watched(config: Config) -> bool:
    """Whether somebody sees a file captioned as if it were spoken now."""
    is_shown = is_terminal(sys.stdout, os.environ)
    return bool(is_shown and config.input.files and config.input.realtime)


async def _live(
    config: Config,
    sources: Sequence[Source],
    uploads: Uploads,
    control: Control,
    sinks: Sequence[Sink],
    *,
    known: str,
) -> None:
    streams, loop = uploads.streams, asyncio.get_running_loop()
    end_by = partial(control.end_by, config.limits.shutdown_ms / 1000 - _EXIT_S)

    give = uploads.opened.set_result
    first = FirstStart(config, known, lambda model: loop.call_soon_threadsafe(give, model))
    streams.early_model = lambda: first.state

    async with asyncio.TaskGroup() as tasks:
        work = (
            streams.keep(),
            supervise(streams, first.open),
            streams.chores(),
            serving.watchdog(),
        )
        running = [tasks.create_task(task) for task in work]
        queue = serving.file_queue(config, uploads)
        if queue is not None:
            running.append(tasks.create_task(queue.run()))
        streams.when_begun = deliver(config, tasks, end_by=end_by)
        live = streams.add(LIVE, split=build.is_split(config)) if sources else None
        if live is not None:
            live.broken = control.stop  # which raises it when the others have ended in order
            running.append(tasks.create_task(_end_in_time(streams, control, end_by)))
            _introduce(config, live)
            _show(config, live, control, tasks, sinks)
        async with AsyncExitStack() as stack:
            stack.callback(first.close)
            stack.callback(uploads.others.close)
            if live is not None and config.input.play and config.input.files:
                live.heard = stack.enter_context(loudspeaker())
            serve = serving.server(config, streams, uploads, queue=queue, end_by=end_by)
            server = await stack.enter_async_context(serve)
            if server is not None and not is_terminal(sys.stdout, os.environ):
                reload = partial(serving.reload, config, server)
                stack.enter_context(control.on(SIGHUP, reload))
            if live is None:
                serving.announce(server)
                await control.stopped.wait()
            else:
                opened = partial(serving.announce, server, has_live=True)
                reopen = None if config.input.files else partial(build.microphone, config)
                loaded = streams.loaded if config.input.files else None
                await caption(sources, live, control, opened=opened, reopen=reopen, loaded=loaded)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_by()):
                await streams.kept()
        for task in running:
            task.cancel()


def _show(
    config: Config,
    live: Stream,
    control: Control,
    tasks: asyncio.TaskGroup,
    sinks: Sequence[Sink],
) -> None:
    file = config.input.files[0] if len(config.input.files) == 1 else ""
    screen, files = Screen(open_display(config, sys.stdout, os.environ)), open_files(config, file)
    if _is_watched(config):
        log.info("captions, as if it were spoken now; what is grey may still change")

    def lost(error: StreamdError) -> None:
        log.error("%s; captions go on without it", error)
        control.note(error)
        what = for_clients("a transcript cannot be written", error)
        live.report(Fault(code="output", message=what))

    show(screen, live.hub, control, tasks, sinks=sinks)
    for transcript in files:
        tasks.create_task(stored_or_told(live.hub, transcript, lost))
    if is_terminal(sys.stdout, os.environ) and not config.input.files:
        live.heard = screen.heard


def _introduce(config: Config, live: Stream) -> None:
    """Give speakers of the program's own source names; of a call, hear nobody twice."""
    if build.is_call(config) and isinstance(live.session, SplitSession):
        live.session.guard()
    known = SIDES[:1] if config.decoding.speakers else SIDES  # they may be several
    sides = dict(enumerate(known, 1)) if build.is_call(config) else {}
    for number, name in {**sides, **names_of(config.output.names)}.items():
        live.rename(SpeakerName(speaker=number, name=name))


async def supervise(
    streams: Streams, open_engine: Callable[[], tuple[Sequence[WindowRecognizer], Chooser]]
) -> None:
    """Open the engine in a thread and serve the sessions; a failure is sent to all listeners."""
    thread = EngineThread()  # a pool's would have to be waited for if the program is to end
    try:
        opening = asyncio.get_running_loop().run_in_executor(thread, open_engine)
        workers, chooser = await opening
        await streams.transcribe(*workers, chooser=chooser)
    except Exception as error:
        streams.fail(error)
        raise
    finally:
        thread.close()


async def _end_in_time(streams: Streams, control: Control, end_by: Callable[[], float]) -> None:
    """End the sessions that have not ended when it is time to tell listeners of the end.

    Clients' sessions, too: the server, which does the same, may begin to wait only then.
    """
    await control.stopped.wait()
    await asyncio.sleep(end_by() - TELL_S - asyncio.get_running_loop().time())
    streams.end()
