"""``streamd transcribe``: files, one after the other, as fast as the engine can."""

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, TypeVar

from streamd.config import Config
from streamd.daemon import build, translating
from streamd.daemon.control import INTERRUPTED, Control, until_first_error
from streamd.daemon.display import check_files, open_display, open_files, prints, transcripts
from streamd.daemon.opening import OpenModel, open_any
from streamd.daemon.phrases import with_context, with_vocabulary
from streamd.daemon.recording import RecordingTranscriber, in_order
from streamd.daemon.screen import Screen, show
from streamd.daemon.serving import library
from streamd.engines.yamnet import check_sounds
from streamd.errors import ConfigError, OneSessionError, SourceError, StreamdError, is_bug
from streamd.events import EndReason, Fault, SpeakerName
from streamd.server import LIVE
from streamd.sinks import Sink
from streamd.sinks.progress import Progress, transcription_line
from streamd.sinks.terminal import TerminalSink, is_terminal
from streamd.sinks.text import Look, clock
from streamd.sinks.writing import OutputError, cut_short
from streamd.sources import Source
from streamd.streams.hub import Hub
from streamd.streams.inference import STEP_DEADLINES, EngineThread

if TYPE_CHECKING:
    from streamd.library.additions import Addition
    from streamd.streams.journal.database import Database

_HISTORY = 1_000_000
"""Finals kept for a slow sink: all of them."""

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


async def transcribe(
    config: Config, *, control: Control | None = None, shows: bool = True, also: Sequence[Sink] = ()
) -> int:
    """Transcribe the configured files as fast as the engine can, window by window; return 0.

    Unless it `shows` them, transcripts go to files only, and to the sinks `also` named. `control`:
    what hears the signals, if something does already.

    If the user has interrupted it before the end of a file, it returns 130. Of several files those
    that cannot be read, or whose transcripts cannot be written, are reported, and the others are
    transcribed. Raises as `streamd.daemon.live.run`, and `SourceError` if a file could not be read
    to its end.
    """
    check(config)
    check_files(config)
    translating.check(config)
    waiting = list(zip(config.input.files, build.own_sources(config), strict=True))
    config = with_context(with_vocabulary(config))
    if config.input.skip_existing:
        waiting = [each for each in waiting if not _is_done(config, each[0])]
        log.info("%d of %d files have no transcript", len(waiting), len(config.input.files))
    control = control or Control()
    thread, n_files, is_cut = EngineThread(), len(waiting), False
    kept = library(config) if config.journal.keep else nullcontext()
    with control.signals(), closing(thread), kept:
        batch = _Batch(config, control, thread, kept)
        batch.shows, batch.also = shows, also
        failures: list[Exception] = []
        while waiting and not control.stopped.is_set():
            try:
                is_cut = not await until_first_error(batch.transcribe(*waiting.pop(0)))
            except (SourceError, OutputError, OneSessionError) as error:
                if n_files == 1:
                    raise
                log.error("%s", error)  # noqa: TRY400  # an error of the user's needs no traceback
                failures.append(error)
            except Exception as error:
                if n_files == 1 or not is_bug(error):
                    raise
                log.exception("a bug in streamd; please report it")
                failures.append(error)
    control.check()
    if n_left := len(waiting) + is_cut:
        if n_files > 1:
            again = "" if config.input.skip_existing else ": run it again with --skip-existing"
            log.warning("interrupted: %d of %d files are not done%s", n_left, n_files, again)
        return INTERRUPTED
    if failures:
        are_files = all(isinstance(each, SourceError | OutputError) for each in failures)
        kind = SourceError if are_files else StreamdError
        raise kind(f"{len(failures)} of {n_files} files failed, see above")
    return 0


def _is_done(config: Config, file: str) -> bool:
    """Whether all transcripts of a file are there. Raises `ConfigError` if none is wanted."""
    if not (wanted := transcripts(config, file)):
        raise ConfigError("--skip-existing looks for transcripts: add -o FILE or --output-dir DIR")
    return all(path.exists() for path in wanted)


def check(config: Config) -> None:
    """Refuse options that contradict each other or need what is not here; raises `StreamdError`."""
    if config.decoding.sounds:
        check_sounds()
    if not config.longform.word_timestamps:
        for flag, wanted in (
            ("--set cues.highlight_words=true", config.cues.highlight_words),
            ("--speakers", config.decoding.speakers),
        ):
            if wanted:
                raise ConfigError(
                    f"{flag} needs word timestamps: drop longform.word_timestamps=false"
                )


class _Batch:
    """Transcribes one file after the other with one model.

    The model is loaded and runs in `thread`. A file is read to its end, when its log-mel is
    complete, and then transcribed window by window. The first interrupt ends a pipe, of which all
    that was read is transcribed; it ends a file after the current window. Neither waits for a call
    of the engine that takes longer than `shutdown_ms`.
    """

    def __init__(
        self,
        config: Config,
        control: Control,
        thread: EngineThread,
        library: "Database | nullcontext[None]",
    ) -> None:
        self._config = config
        self._control, self._thread, self._library = control, thread, library
        self.shows = True
        self.also: Sequence[Sink] = ()
        self._addition: Addition | None = None
        self._deadline_s = STEP_DEADLINES * config.decoding.engine_deadline_ms / 1000
        self._opened: OpenModel | None = None
        self._is_whole = False  # whether all of the file was transcribed
        self._reached_ms = self._duration_ms = 0

    async def transcribe(self, name: str, source: Source) -> bool:
        """Read a file and publish its text; return whether it was all of it.

        Raises `StreamdError` after what it has published.
        """
        hub, failure, self._is_whole = self._new_hub(name), None, False
        self._reached_ms, self._duration_ms = 0, source.duration_ms or 0
        async with asyncio.TaskGroup() as tasks:
            sinks = open_files(self._config, name, whole=True, segments=True)
            prints_it = self.shows and prints(self._config, sys.stdout, os.environ)
            stdout = sys.stdout if prints_it else StringIO()
            shown = open_display(self._config, stdout, os.environ, segments=True)
            has_terminal = is_terminal(sys.stderr, os.environ)
            alone = has_terminal and not isinstance(shown, TerminalSink)
            screen = Screen(shown, TerminalSink(sys.stderr, Look()) if alone else None)
            line = partial(transcription_line, source.name)
            progress = Progress(screen.status if has_terminal else lambda _: None, line)
            show(screen, hub, self._control, tasks, sinks=[*sinks, *self.also])
            try:
                with self._control.stopping(source.stop):  # opening may take long, too
                    async with source:
                        await self._run(source, hub, progress)
            except TimeoutError:
                log.warning("%s: its end could not be transcribed in time", source.name)
            except StreamdError as error:
                failure = error
                code = "source" if isinstance(error, SourceError) else "engine"
                hub.publish(Fault(code=code, message=str(error), fatal=True))
            ending = EndReason.END if self._is_whole else EndReason.STOP
            hub.close(EndReason.ERROR if failure else ending)
            if self._addition is not None:
                self._addition.end(EndReason.ERROR if failure else ending)
        if failure is not None:
            raise failure
        if not self._is_whole and self.shows:
            self._tell_cut(name, source, has_text=hub.seq > 0)
        return self._is_whole

    def _new_hub(self, name: str) -> Hub:
        """Return the hub of a file, which goes into the library if there is one."""
        hub = self._hub_of(name)
        for number, called in self._config.output.called.items():
            hub.publish(SpeakerName(speaker=number, name=called))
        return hub

    def _hub_of(self, name: str) -> Hub:
        if isinstance(self._library, nullcontext):
            return Hub(LIVE, _HISTORY)
        from streamd.library.additions import Addition

        options = self._config.journal
        self._addition = Addition(self._library, options, name, history=_HISTORY)
        return self._addition.hub

    def _tell_cut(self, name: str, source: Source, *, has_text: bool) -> None:
        """Say how far a file was transcribed, and what holds its text."""
        wanted = transcripts(self._config, name)
        targets = [path.resolve() if path.is_symlink() else path for path in wanted]
        files = [str(cut_short(path)) for path in targets]
        holds = f"; {', '.join(files)} has what was said until then" if files and has_text else ""
        of = f" of {clock(self._duration_ms)}" if self._duration_ms else ""
        log.warning("%s: interrupted at %s%s%s", source.name, clock(self._reached_ms), of, holds)

    async def _run(self, source: Source, hub: Hub, progress: Progress) -> None:
        if self._opened is None:
            self._opened = await self._in_thread(partial(open_any, self._config, recordings=True))
        made = self._opened.transcriber(self._config, is_alone=lambda: True)
        transcriber: RecordingTranscriber = made  # of any family
        progress.update(0, source.duration_ms or 0)
        file = transcriber.new_file(hub.publish)
        heard = self._addition.hear if self._addition else lambda item: None
        await file.read(source, heard)  # what came before damage is transcribed
        self._duration_ms = max(self._duration_ms, file.duration_ms)
        await self._in_thread(partial(self._opened.wait, file.duration_ms / 1000))
        sounds = deque(await self._in_thread(file.sounds))
        stopped, windows = self._control.stopped, transcriber.transcribe(file)
        was_stopped = stopped.is_set()  # which ends a pipe, but means that a file is not wanted
        is_wanted = not was_stopped or source.duration_ms is None
        while is_wanted and stopped.is_set() == was_stopped:
            following = partial(next, windows, None)
            window = await self._in_thread(following, deadline_s=self._deadline_s)
            if window is None:
                self._is_whole = True
                for sound in sounds:
                    hub.publish(sound)
                break
            self._reached_ms = window.reached_ms
            for note in window.names:
                if not hub.named(note.speaker):  # the user's names count
                    hub.publish(note)
            for event in in_order(window.finals, sounds):
                hub.publish(event)
            progress.update(window.reached_ms, file.duration_ms)
        if file.damage is not None:
            raise file.damage

    async def _in_thread(self, call: Callable[[], ResultT], *, deadline_s: float = 0.0) -> ResultT:
        """Call in the engine's thread.

        Raises `TimeoutError` if the user has stopped the program and the call goes on for longer
        than it may take to end, `HangError` after the deadline (0: none).
        """
        loop, within_s = asyncio.get_running_loop(), self._config.limits.shutdown_ms / 1000
        async with asyncio.timeout(within_s if self._control.stopped.is_set() else None) as limit:
            with self._control.stopping(lambda: limit.reschedule(loop.time() + within_s)):
                done = await self._thread.run(call, deadline_s=deadline_s)
        return done.result()
