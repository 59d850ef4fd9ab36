"""``streamd transcribe``: files in, transcripts out, one after the other.

A file is read to its end, when its log-mel is complete, and then written down window by window;
each segment is told as soon as its window is done. The first interrupt ends a pipe, and what was
read of it is written down; it ends a file behind the window at hand.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from streamd.config import Config
from streamd.daemon import longform
from streamd.daemon.capture import pump
from streamd.daemon.control import Control, until_first_error
from streamd.daemon.longform import Recording, Writer
from streamd.daemon.opening import open_model
from streamd.daemon.screen import Screen, show
from streamd.display import open_files
from streamd.errors import SourceError, StreamdError
from streamd.events import EndReason, Fault
from streamd.hub import Hub
from streamd.server import LIVE
from streamd.sinks.progress import ProgressBar, transcription_line
from streamd.sinks.terminal import is_terminal
from streamd.sources import Source

HISTORY = 1_000_000
"""Finals kept for whoever reads slowly: all of them."""

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


async def write_down(config: Config, sources: Sequence[Source]) -> None:
    """Transcribe the sources, which belong to the configuration's files.

    Of several files those that cannot be read are reported, and the others are written down.

    Raises
    ------
    StreamdError, BrokenPipeError : as `streamd.daemon.run`
    SourceError : a file could not be read, or not to its end
    """
    longform.check(config)
    control = Control()
    with control.signals(), ThreadPoolExecutor(1, thread_name_prefix="inference") as thread:
        scribe = _Scribe(config, control, thread)
        failures: list[SourceError] = []
        for file, source in zip(config.input.files, sources, strict=True):
            if control.stopped.is_set():
                break
            try:
                await until_first_error(scribe.write_down(file, source))
            except SourceError as error:
                if len(sources) == 1:
                    raise
                log.error("%s", error)  # noqa: TRY400  # it is the user's, and has no traceback
                failures.append(error)
    control.check()
    if failures:
        raise SourceError(f"{len(failures)} of {len(sources)} files failed, see above")


class _Scribe:
    """Writes one file after the other down, with one model."""

    def __init__(self, config: Config, control: Control, thread: ThreadPoolExecutor) -> None:
        """`thread`: in which the model is loaded and runs."""
        self._config, self._control, self._thread = config, control, thread
        self._writer: Writer | None = None

    async def write_down(self, file: str, source: Source) -> None:
        """Read the file and tell its text; progress is shown to a person who waits.

        Raises
        ------
        StreamdError : of the model, the engine or the file; what was heard until then is written
        """
        terminal = is_terminal(sys.stderr, os.environ)
        line = partial(transcription_line, source.name)
        bar = ProgressBar(sys.stderr, line) if terminal else None
        hub, failure = Hub(LIVE, HISTORY), None
        async with asyncio.TaskGroup() as tasks:
            sinks = open_files(self._config, file, whole=True)
            screen = show(self._config, hub, self._control, tasks, sinks=sinks, bar=bar)
            try:
                with self._control.stopping(source.stop):  # opening may take long, too
                    async with source:
                        await self._transcribe(source, hub, screen)
            except StreamdError as error:
                failure = error
                code = "source" if isinstance(error, SourceError) else "engine"
                hub.publish(Fault(code=code, message=str(error), fatal=True))
            stopped = EndReason.STOP if self._control.stopped.is_set() else EndReason.END
            hub.close(EndReason.ERROR if failure else stopped)
        if failure is not None:
            raise failure

    async def _transcribe(self, source: Source, hub: Hub, screen: Screen) -> None:
        """Read all of the source, or what can be read of it, and publish its text."""
        if self._writer is None:
            self._writer = await self._in_thread(_open_writer, self._config)
        writer = self._writer
        screen.reached(0, source.duration_ms or 0)
        recording, damage = writer.recording(hub.publish), None
        try:
            await pump(source, recording, self._control)
        except SourceError as error:
            damage = error
        recording.n_padding = aiter(source).n_padding
        if not self._control.stopped.is_set() or source.duration_ms is None:
            await self._tell(writer, recording, hub, screen)
        if damage is not None:
            raise damage

    async def _tell(self, writer: Writer, recording: Recording, hub: Hub, screen: Screen) -> None:
        """Publish each window's text as soon as it is there."""
        enough = asyncio.Event()
        windows, seg = writer.transcribe(recording), 0
        with self._control.stopping(enough.set):
            while not enough.is_set():
                heard = await self._in_thread(next, windows, None)
                if heard is None:
                    return
                for segment in heard.segments:
                    seg += 1
                    hub.publish(writer.final(segment, seg))
                screen.reached(heard.reached_ms, recording.duration_ms)

    async def _in_thread(self, work: Callable[..., ResultT], *args: object) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def _open_writer(config: Config) -> Writer:
    model, engine = open_model(config)
    return Writer(config, model, engine)
