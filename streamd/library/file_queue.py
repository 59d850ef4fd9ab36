"""Files that were put into the library's queue, transcribed one after the other."""

import asyncio
import logging

from msgspec.structs import replace

from streamd.errors import (
    ConfigError,
    EngineError,
    EngineMemoryError,
    OneSessionError,
    SourceError,
    WireError,
    is_bug,
)
from streamd.library.jobs import Jobs, QueuedFile
from streamd.server import Recordings
from streamd.streams.journal.journals import JournalError

log = logging.getLogger(__name__)


class FileQueue:
    """Transcribes the files of `jobs`, one at a time, so that live captions are not held up.

    Steps of it go between the windows of live sessions, as with all `recordings`. A file
    that was being transcribed when the daemon ended is begun again by the next one.
    """

    def __init__(self, recordings: Recordings, jobs: Jobs) -> None:
        """Raises `JournalError` if what broke off before cannot be removed."""
        jobs.sweep()
        self.recordings, self.jobs = recordings, jobs
        self.now: tuple[int, int, int] | None = None
        """Which job is being done, up to which ms, and of how many; 0 while its file is read."""
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Look for jobs again; any thread may call it."""
        self._loop.call_soon_threadsafe(self._more.set)

    def cancel(self, job: int) -> None:
        """Do a job no longer, if it is being done; any thread may call it."""
        self._loop.call_soon_threadsafe(self._cancel, job)

    def _cancel(self, job: int) -> None:
        if self._task is not None and self.now is not None and self.now[0] == job:
            self._task.cancel()

    async def run(self) -> None:
        """Transcribe what comes, until it is cancelled or the engine has ended."""
        while True:
            self._more.clear()
            try:
                job = await asyncio.to_thread(self.jobs.next)
                if job is not None:
                    await self._do(job)
                    continue
            except JournalError as error:
                log.error("%s; the queue of files waits for the next one", error)  # noqa: TRY400
            except EngineError as error:
                log.error("%s; files are transcribed by the next streamd", error)  # noqa: TRY400
                return
            await self._more.wait()

    async def _do(self, job: QueuedFile) -> None:
        """Transcribe a file. Raises `EngineError` and `JournalError`: it is to be begun again."""
        self.now = job.id, 0, 0
        self._task = task = asyncio.create_task(self._transcribe(job))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._task = self.now = None
        error = None if task.cancelled() else task.exception()
        is_refused = isinstance(error, SourceError | ConfigError | WireError)
        if task.cancelled():
            await asyncio.to_thread(self.jobs.forget_session, job)
        elif is_refused or is_bug(error) or isinstance(error, OneSessionError | EngineMemoryError):
            what = str(error) if job.name in str(error) else f"{job.name}: {error}"
            log.error("%s", what, exc_info=error if is_bug(error) else None)
            why = "a bug in streamd: its log has more" if is_bug(error) else str(error)
            await asyncio.to_thread(self.jobs.change, replace(job, state="failed", error=why))
            return
        elif error is not None:
            raise error
        await asyncio.to_thread(self.jobs.remove, job)

    async def _transcribe(self, job: QueuedFile) -> None:
        await asyncio.to_thread(self.jobs.forget_session, job)  # what a crash has left of it
        await asyncio.to_thread(self.jobs.change, replace(job, state="running"))
        if not self.jobs.path(job.epoch).is_file():  # somebody has just removed it
            return
        with self.jobs.path(job.epoch).open("rb") as file:
            read = self.recordings.read(file.fileno(), job.name, job.wanted, epoch=job.epoch)
            recording = await read
            self.now = job.id, 0, recording.duration_ms
            async for event in recording.events:
                self.now = job.id, event.end_ms, recording.duration_ms
        s = recording.duration_ms / 1000
        log.info("recording %s ended (end): %.1f s of audio, in the library", job.name, s)
