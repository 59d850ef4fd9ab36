import asyncio
import contextlib
import fcntl
import os
import pty
import resource
import threading

import numpy as np
import pytest
import soundfile

from streamd.errors import SourceError
from streamd.options import PcmOptions
from streamd.sources.stdin import StdinSource
from streamd.types import FRAME
from tests.support.loop import turns

RAMP = (np.arange(1, 600_001) / 2**20).astype("<f4")
"""2.4 MB, more than a pipe holds, in which each sample is its own number."""


@contextlib.contextmanager
def piped():
    """A real pipe, as between two processes: what to read from, what to write to."""
    reader, writer = os.pipe()
    with open(reader, "rb") as file, open(writer, "wb", buffering=0) as into:
        yield file, into


@contextlib.contextmanager
def writing(into, data, *, size, stop_after=None):
    """A thread that writes `data` in pieces; sets the event when `stop_after` bytes are in."""
    far = threading.Event()

    def write():
        with into:
            for at in range(0, len(data), size):
                into.write(data[at : at + size])
                if stop_after is not None and at + size >= stop_after:
                    far.set()

    thread = threading.Thread(target=write)
    thread.start()
    yield far
    thread.join()


async def collect(source, work=None):
    frames = []
    async for item in source:
        frames.append(item)
        if work:
            await work()
    return np.concatenate(frames).reshape(-1) if frames else np.empty(0, np.float32)


async def yields():
    """Let everything else run first."""
    await turns(20)


def assert_is_ramp(samples, ramp=RAMP):
    assert np.array_equal(samples[: len(ramp)], ramp)
    assert not samples[len(ramp) :].any()
    assert len(samples) < len(ramp) + FRAME


@pytest.mark.parametrize("size", [7, 1001, 65_536])
@pytest.mark.parametrize("work", [None, yields], ids=["fast", "slow"])
async def test_no_sample_is_lost_or_doubled(size, work):
    ramp = RAMP[: 2000 * size]
    with piped() as (file, into), writing(into, ramp.tobytes(), size=size):
        async with StdinSource(file, PcmOptions(encoding="f32le")) as source:
            assert_is_ramp(await collect(source, work), ramp)


async def test_a_stalling_consumer_makes_the_writer_wait():
    with (
        piped() as (file, into),
        writing(into, RAMP.tobytes(), size=1001, stop_after=60_000) as far,
    ):
        async with StdinSource(file, PcmOptions(encoding="f32le")) as source:
            far.wait()  # nothing has been read yet, nothing runs on the loop
            samples = await collect(source)
    assert_is_ramp(samples)


async def piped_ramp(file):
    async with StdinSource(file, PcmOptions(encoding="f32le")) as source:
        return await collect(source)


async def test_a_file_on_disk(tmp_path):
    (tmp_path / "ramp.raw").write_bytes(RAMP.tobytes())
    with (tmp_path / "ramp.raw").open("rb") as file:
        assert_is_ramp(await piped_ramp(file))


@pytest.mark.parametrize("n", [1, 160, 319, 320, 5_001])
async def test_the_padding_of_the_last_frame_is_known(n):
    with piped() as (file, into), writing(into, RAMP[:n].tobytes(), size=1_001):
        async with StdinSource(file, PcmOptions(encoding="f32le")) as source:
            samples = await collect(source)
    assert len(samples) - aiter(source).n_padding == n


async def test_a_fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    opening = asyncio.create_task(asyncio.to_thread(path.open, "wb", 0))
    file = await asyncio.to_thread(path.open, "rb")
    with file, writing(await opening, RAMP.tobytes(), size=4001):
        assert_is_ramp(await piped_ramp(file))


async def test_rate_channels_and_an_incomplete_last_sample():
    stereo = np.repeat(np.int16(8192), 2 * 48_000).astype("<i2").tobytes() + b"\x01\x02\x03"
    with piped() as (file, into), writing(into, stereo, size=999):
        async with StdinSource(file, PcmOptions(rate_hz=48_000, channels=2)) as source:
            samples = await collect(source)
    assert len(samples) == 16_000
    assert np.abs(samples[100:-100] - 0.25).max() < 1e-3


async def test_stop_wakes_a_reader_that_waits_for_the_writer():
    with piped() as (file, _):
        async with StdinSource(file) as source:
            waiting = asyncio.create_task(collect(source))
            await yields()
            assert not waiting.done()
            source.stop()
            assert not len(await waiting)


async def test_stop_still_gives_what_is_in_the_pipe():
    with piped() as (file, into):
        async with StdinSource(file, PcmOptions(encoding="f32le")) as source:
            into.write(RAMP[:10_000].tobytes())
            source.stop()
            into.write(RAMP[10_000:11_000].tobytes())  # too late
            assert_is_ramp(await collect(source), RAMP[:10_000])


async def test_stop_ends_an_endless_file():
    with os.fdopen(os.open("/dev/zero", os.O_RDONLY), "rb") as file:
        async with StdinSource(file) as source:
            await anext(aiter(source))
            source.stop()
            await collect(source)


async def test_leaving_while_a_read_waits():
    with piped() as (file, _):
        async with StdinSource(file) as source:
            asking = asyncio.ensure_future(anext(aiter(source)))
            await yields()
            asking.cancel()


async def test_a_non_blocking_pipe():
    with piped() as (file, into), writing(into, RAMP.tobytes(), size=1001):
        os.set_blocking(file.fileno(), False)
        assert_is_ramp(await piped_ramp(file))


async def test_a_terminal_is_no_audio():
    parent, child = pty.openpty()
    with os.fdopen(parent, "rb", buffering=0), os.fdopen(child, "rb", buffering=0) as file:
        source = StdinSource(file)
        with pytest.raises(SourceError, match="stdin is a terminal: pipe audio into it"):
            await source.__aenter__()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello\n", "is text, not sound"),
        ("<!doctype html>\n" * 500, "is text, not sound"),
        ("語" * 5000, "is text, not sound"),
        ("", "is empty"),
    ],
)
async def test_text_and_nothing_are_no_audio(text, says):
    with piped() as (file, into), writing(into, text.encode(), size=1000):
        async with StdinSource(file) as source:
            with pytest.raises(SourceError, match=f"stdin {says}: pipe audio into it"):
                await collect(source)
            os.read(file.fileno(), 100_000)


async def test_a_reader_that_fails_says_so(tmp_path):
    with os.fdopen(os.open(os.devnull, os.O_RDONLY), "rb") as file:
        directory = os.open(tmp_path, os.O_RDONLY)  # a directory opens, but cannot be read
        os.dup2(directory, file.fileno())
        os.close(directory)
        async with StdinSource(file) as source:
            with pytest.raises(SourceError, match="reading stdin failed: Is a directory"):
                await collect(source)


def test_nonsense_is_refused_at_once():
    with open(os.devnull, "rb") as file, pytest.raises(SourceError, match="3 Hz is not"):
        StdinSource(file, PcmOptions(rate_hz=3))


async def test_a_pipe_may_have_any_descriptor():
    """A server with a thousand clients opens a pipe whose number `select.select` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1100:
        pytest.skip("needs a hard limit of 1100 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    try:
        with piped() as (file, into):
            into.write(RAMP[:1000].tobytes())
            into.close()
            with os.fdopen(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1024), "rb") as far:
                async with StdinSource(far, PcmOptions(encoding="f32le")) as source:
                    assert_is_ramp(await collect(source), RAMP[:1000])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_stopping_before_the_first_byte_is_no_failure():
    with piped() as (file, _):
        async with StdinSource(file) as source:
            source.stop()
            assert not len(await collect(source))


async def test_a_container_begins_where_the_file_is_read_from(tmp_path):
    """As after `read` in a shell: what is before it belongs to somebody else."""
    tone = np.sin(np.arange(16_000) / 20) / 2
    soundfile.write(alone := tmp_path / "alone.ogg", tone, 16_000)
    soundfile.write(before := tmp_path / "before.ogg", tone / 2, 16_000)
    (behind := tmp_path / "behind").write_bytes(before.read_bytes() + alone.read_bytes())
    heard = []
    for path, at in ((alone, 0), (behind, before.stat().st_size)):
        with path.open("rb") as file:
            os.lseek(file.fileno(), at, os.SEEK_SET)
            async with StdinSource(file) as source:
                heard.append(await collect(source))
    assert np.array_equal(*heard)
