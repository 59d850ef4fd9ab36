"""Files in the library's queue: each becomes one session, whatever ends the daemon on the way."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from streamd.errors import EngineError, SourceError
from streamd.events import EndReason
from streamd.library.additions import Addition
from streamd.library.file_queue import FileQueue
from streamd.library.jobs import Jobs
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
from streamd.options import JournalOptions
from streamd.server import Recording, Wanted
from tests.library.test_shelf import said

OPTIONS = JournalOptions(keep_audio="off")
WANTED = Wanted(task="transcribe", language="en")
TEXTS = ("one", "two", "three")


class FakeUploads:
    """Makes three finals of each file; holds before the one whose number is `stop_before`."""

    def __init__(self, library, *, stop_before=None, error=None):
        self.library, self.stop_before, self.error = library, stop_before, error
        self.stopped, self.may_go_on, self.read_names = asyncio.Event(), asyncio.Event(), []

    def go_on(self):
        self.may_go_on.set()

    async def check(self, wanted):
        """Nothing is refused."""

    async def read(self, file, name, wanted, *, epoch):
        assert (wanted.task, wanted.language) == ("transcribe", "en")
        self.read_names.append(name)
        if self.error:
            raise self.error
        addition = Addition(self.library, OPTIONS, name, epoch=epoch)
        return Recording(3000, addition.keeping(self._finals()), [])

    async def _finals(self):
        for n, text in enumerate(TEXTS):
            if n == self.stop_before:
                self.stopped.set()
                await self.may_go_on.wait()
            yield said(text, start_ms=1000 * n)


@pytest.fixture
def jobs(tmp_path):
    return Jobs(Shelf(tmp_path))


def put(jobs, *names, key=""):
    for name in names:
        file = jobs.new_file()
        file.write_bytes(b"sound")
        number = jobs.add(file, name, WANTED, key)
    return number


@asynccontextmanager
async def running(jobs, uploads):
    queue = FileQueue(uploads, jobs)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.wait({task})


def is_empty(jobs: Jobs) -> bool:
    """Whether all jobs are gone with their files, of which each goes after its job."""
    return not jobs.listed() and not list(jobs.folder.iterdir())


async def until(condition):
    while not await asyncio.to_thread(condition):
        pass


def kept(folder):
    shelf = Shelf(folder)
    return {each.name: [final.text for final in shelf.read(each.id)] for each in shelf.sessions()}


@pytest.mark.parametrize("stop_before", [0, 1, 2])
async def test_what_was_begun_is_done_by_the_next_daemon_once(jobs, tmp_path, stop_before, caplog):
    caplog.set_level(logging.INFO, "streamd")
    with opened(tmp_path) as library:
        put(jobs, "a.mp3", "b.mp3")
        uploads = FakeUploads(library, stop_before=stop_before)
        async with running(jobs, uploads) as queue:
            await uploads.stopped.wait()
            assert [job.state for job in jobs.listed()] == ["running", "waiting"]
            assert queue.now[0] == 1
    with opened(tmp_path) as library:
        async with running(jobs, FakeUploads(library)):
            await until(lambda: is_empty(jobs))
    assert kept(tmp_path) == {"a": [*TEXTS], "b": [*TEXTS]}
    assert list(jobs.folder.iterdir()) == []
    assert [line for line in caplog.messages if line.startswith("recording")] == [
        f"recording {name}.mp3 ended (end): 3.0 s of audio, in the library" for name in "ab"
    ]


async def test_what_is_sent_again_is_there_once_and_another_of_its_name_is_not_lost(jobs, tmp_path):
    first, other = "0" * 16, "1" * 16
    with opened(tmp_path) as library:
        assert [put(jobs, "a.mp3", key=key) for key in (first, first, other)] == [1, 1, 2]
        async with running(jobs, FakeUploads(library)):
            await until(lambda: is_empty(jobs))
        assert put(jobs, "a.mp3", key=first) == 0
    assert is_empty(jobs)
    assert len(Shelf(tmp_path).sessions()) == 2


def crash_before_row(jobs, library):
    jobs.new_file().write_bytes(b"half")
    whole = jobs.new_file()
    whole.write_bytes(b"whole")
    whole.rename(whole.with_suffix(""))
    return 0  # nobody was told that it was received


def crash_before_end(jobs, library):
    put(jobs, "a.mp3")
    addition = Addition(library, OPTIONS, "a", epoch=jobs.listed()[0].epoch)
    addition.hub.publish(said("one"))
    return 1


def crash_before_row_is_removed(jobs, library):
    put(jobs, "a.mp3")
    addition = Addition(library, OPTIONS, "a", epoch=jobs.listed()[0].epoch)
    for n, text in enumerate(TEXTS):
        addition.hub.publish(said(text, start_ms=1000 * n))
    addition.end(EndReason.END)
    return 1


@pytest.mark.parametrize("crash", [crash_before_row, crash_before_end, crash_before_row_is_removed])
async def test_a_crash_loses_and_doubles_nothing_that_was_received(jobs, tmp_path, crash):
    with opened(tmp_path) as library:
        n = crash(jobs, library)
    with opened(tmp_path) as library:
        async with running(jobs, FakeUploads(library)):
            await until(lambda: is_empty(jobs))
    assert kept(tmp_path) == ({"a": [*TEXTS]} if n else {})
    assert list(jobs.folder.iterdir()) == []


async def test_a_file_that_cannot_be_read_says_why_and_others_follow(jobs, tmp_path):
    with opened(tmp_path) as library:
        put(jobs, "a.mp3", "b.mp3")
        uploads = FakeUploads(library, error=SourceError("a.mp3 has no audio"))
        async with running(jobs, uploads) as queue:
            await until(lambda: all(job.state == "failed" for job in jobs.listed()))
            assert jobs.listed()[0].error == "a.mp3 has no audio"
            uploads.error = RuntimeError("a bug")
            put(jobs, "c.mp3")
            queue.wake()
            await until(lambda: jobs.listed()[-1].state == "failed")
            assert jobs.listed()[-1].error.startswith("a bug in streamd")
            assert uploads.read_names == ["a.mp3", "b.mp3", "c.mp3"]
    assert kept(tmp_path) == {}


async def test_a_file_is_kept_for_the_next_daemon_if_the_engine_ends(jobs, tmp_path):
    with opened(tmp_path) as library:
        put(jobs, "a.mp3")
        await FileQueue(FakeUploads(library, error=EngineError("gone")), jobs).run()
        assert [job.state for job in jobs.listed()] == ["running"]


async def test_a_file_that_is_removed_leaves_nothing(jobs, tmp_path):
    with opened(tmp_path) as library:
        put(jobs, "a.mp3")
        uploads = FakeUploads(library, stop_before=2)
        async with running(jobs, uploads) as queue:
            await uploads.stopped.wait()
            queue.cancel(1)
            await until(lambda: is_empty(jobs))
    assert kept(tmp_path) == {}
