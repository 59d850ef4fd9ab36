"""The live daemon: a source or none, the server, the local sinks."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from signal import SIGHUP, SIGUSR1, SIGUSR2

from streamd.config import Config
from streamd.daemon import build, phrases, serving, translating
from streamd.daemon.control import Control, until_first_error
from streamd.daemon.delivering import deliver
from streamd.daemon.display import open_display, open_files
from streamd.daemon.feeding import caption
from streamd.daemon.first_start import FirstStart
from streamd.daemon.opening import with_capacity
from streamd.daemon.other_models import OtherModels
from streamd.daemon.people import PeopleFolder, VoiceKeeper
from streamd.daemon.phrases import with_context, with_vocabulary
from streamd.daemon.screen import Screen, show, stored
from streamd.daemon.uploads import Uploads
from streamd.errors import StreamdError, for_clients
from streamd.events import Fault, SpeakerName
from streamd.models.store import told
from streamd.server import LIVE, TELL_S, Server
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
    sources, config = build.own_sources(config), with_capacity(config)
    run = _LiveRun(with_context(with_vocabulary(config)), sources)
    if not (config.output.afterwards and sources):
        await run.until_its_end(also)
        return 0
    # It needs what transcribes recordings, which most runs do not.
    from streamd.daemon.afterwards import Afterwards

    better = Afterwards(run.config)
    with better.folder():
        run.recording = better.recording
        await run.until_its_end(lambda control: [*also(control), better.words])
        await better.write()
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


class _LiveRun:
    """One run of the program: its sessions, and what feeds, transcribes, shows and serves them.

    `recording` may change where the sessions are stored.
    """

    def __init__(self, config: Config, sources: Sequence[Source]) -> None:
        """Raises `ConfigError` for options that contradict each other."""
        self.config, self._sources = config, sources
        self.recording: Callable[[SessionStorage], SessionStorage] = lambda storage: storage
        self._new_streams, self._new_notices = build.streams_maker(config), build.notices(config)
        self._control, self._tally = Control(), Tally()

    async def until_its_end(self, also: Callable[[Control], Sequence[Sink]]) -> None:
        """Caption until the source ends; raises as `run` does."""
        config, control = self.config, self._control
        with serving.storage(config) as stored, control.signals():
            storage = self.recording(stored)
            self._streams = streams = self._new_streams(
                max_ingest=config.limits.most_streams,
                storage=storage,
                metrics=Metrics(version=__version__, model=told(config.decoding.model)),
            )
            self._uploads = Uploads(config, streams, storage.journals, OtherModels(config, streams))
            self._sinks = [*also(control), *([self._tally] if self._is_watched else [])]
            self._set_up(streams)

            def log_state() -> None:
                log.warning("; ".join(streams.state()) or "no sessions")

            with control.on(SIGUSR1, control.toggle_pause), control.on(SIGUSR2, log_state):
                await until_first_error(self._caption())
        control.check()
        for line in self._tally.lines():
            log.info("%s", line)

    def _set_up(self, streams: Streams) -> None:
        people = self.config.decoding.people
        streams.choices = build.default_choices(self.config)
        streams.context.new_notices = self._new_notices
        streams.learn = partial(phrases.add, path=phrases.own_file())
        streams.when_idle += [build.release_small_models, self._uploads.others.close_unused]
        if people:
            streams.context.new_keeper = partial(VoiceKeeper, PeopleFolder(people))

    @property
    def _is_watched(self) -> bool:
        """Whether somebody sees a file captioned as if it were spoken now."""
        is_shown, source = is_terminal(sys.stdout, os.environ), self.config.input
        return bool(is_shown and source.files and source.realtime)

    def _end_by(self) -> float:
        return self._control.end_by(self.config.limits.shutdown_ms / 1000 - _EXIT_S)

    async def _caption(self) -> None:
        config, streams, uploads = self.config, self._streams, self._uploads
        loop, opened = asyncio.get_running_loop(), uploads.opened.set_result
        first = FirstStart(config, lambda model: loop.call_soon_threadsafe(opened, model))
        streams.early_model = lambda: first.state
        queue = serving.file_queue(config, uploads)
        async with asyncio.TaskGroup() as tasks:
            work = [streams.keep(), supervise(streams, first.open), streams.chores()]
            work += [serving.watchdog(), *([queue.run()] if queue is not None else [])]
            running = [tasks.create_task(task) for task in work]
            streams.when_begun = deliver(config, tasks, end_by=self._end_by)
            live = streams.add(LIVE, split=build.is_split(config)) if self._sources else None
            if live is not None:
                live.broken = self._control.stop  # which raises it when others have ended in order
                running.append(tasks.create_task(self._end_in_time()))
                self._introduce(live)
                self._show(live, tasks)
            async with AsyncExitStack() as stack:
                stack.callback(first.close)
                stack.callback(uploads.others.close)
                serve = serving.server(config, streams, uploads, queue=queue, end_by=self._end_by)
                await self._feed(live, stack, serve)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._end_by()):
                    await streams.kept()
            for task in running:
                task.cancel()

    async def _feed(
        self,
        live: Stream | None,
        stack: AsyncExitStack,
        serve: AbstractAsyncContextManager[Server | None],
    ) -> None:
        """Serve, and carry the program's own source into its session until it ends."""
        config, control = self.config, self._control
        source = config.input
        if live is not None and source.play and source.files:
            live.heard = stack.enter_context(loudspeaker())
        server = await stack.enter_async_context(serve)
        if server is not None and not is_terminal(sys.stdout, os.environ):
            stack.enter_context(control.on(SIGHUP, partial(serving.reload, config, server)))
        if live is None:
            serving.announce(server)
            await control.stopped.wait()
            return
        opened = partial(serving.announce, server, has_live=True)
        reopen = None if source.files else partial(build.microphone, config)
        loaded = self._streams.loaded if source.files else None
        await caption(self._sources, live, control, opened=opened, reopen=reopen, loaded=loaded)

    def _show(self, live: Stream, tasks: asyncio.TaskGroup) -> None:
        config, control = self.config, self._control
        files = config.input.files
        screen = Screen(open_display(config, sys.stdout, os.environ))
        transcripts = open_files(config, files[0] if len(files) == 1 else "")
        if self._is_watched:
            log.info("captions, as if it were spoken now; what is grey may still change")

        async def keep(transcript: Sink) -> None:
            try:
                await stored(live.hub, transcript)
            except StreamdError as error:
                log.error("%s; captions go on without it", error)  # noqa: TRY400 - the user's disk
                control.note(error)
                what = for_clients("a transcript cannot be written", error)
                live.report(Fault(code="output", message=what))

        show(screen, live.hub, control, tasks, sinks=self._sinks)
        for transcript in transcripts:
            tasks.create_task(keep(transcript))
        if is_terminal(sys.stdout, os.environ) and not files:
            live.heard = screen.heard

    def _introduce(self, live: Stream) -> None:
        """Give speakers of the program's own source names; of a call, hear nobody twice."""
        config, is_call = self.config, build.is_call(self.config)
        if is_call and isinstance(live.session, SplitSession):
            live.session.guard()
        known = SIDES[:1] if config.decoding.speakers else SIDES  # they may be several
        sides = dict(enumerate(known, 1)) if is_call else {}
        for number, name in {**sides, **config.output.called}.items():
            live.rename(SpeakerName(speaker=number, name=name))

    async def _end_in_time(self) -> None:
        """End the sessions that have not ended when it is time to tell listeners of the end.

        Clients' sessions, too: the server, which does the same, may begin to wait only then.
        """
        await self._control.stopped.wait()
        await asyncio.sleep(self._end_by() - TELL_S - asyncio.get_running_loop().time())
        self._streams.end()


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
