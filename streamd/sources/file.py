"""A sound file, decoded by libsndfile or FFmpeg, read on demand or at the pace of a microphone."""

import asyncio
import os
import re
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.options import without_password
from streamd.sources import FrameStream, ffmpeg
from streamd.sources.chains import parts
from streamd.sources.containers import N_HEAD, SNDFILE, container
from streamd.sources.ffmpeg import Ffmpeg
from streamd.sources.framing import MAX_CHANNELS, Block, Framer
from streamd.sources.source import Source, warn
from streamd.sources.tracks import Selection
from streamd.system.calls import settle
from streamd.types import SAMPLE_RATE

_PACED_BLOCK_MS = 100
"""In silence the cost is in wake-ups, each with cold caches: blocks of 40 ms cost twice as much."""
_BLOCK_MS = 1000
_READ_MS = 4000
"""Length of a read, which is given in blocks: to wake a thread for each of them took a tenth of the
time in which a recording is read."""
_READ_BYTES = 2 << 20
"""The most that is read at once: of many channels or at a high rate less than `_READ_MS`."""
_HEADER_SLACK_MS = 100
"""Tolerance for lengths in headers, which may be estimates."""
_OTHER_SIZE = re.compile(r"(?m)^ *(?:data|SSND|Data Size|riff) *: (\d+) \(should be (\d+)\)")
"""libsndfile's note about a file whose size of the sound is not that of its header."""
_PLAIN = (*("PCM_U8", "PCM_S8", "PCM_16", "PCM_24", "PCM_32"), *("FLOAT", "DOUBLE", "ULAW", "ALAW"))
_UNKNOWN_SIZE = 0x7FFF_F000
"""Programs that write a file through a pipe state such a size, since they cannot seek back."""

_Result = TypeVar("_Result")


class UnreadableError(Exception):
    """libsndfile cannot read the file; FFmpeg may. Its arguments warn of what FFmpeg cannot see."""


class Sndfile:
    """Decodes a file of one or two channels with libsndfile, and with FFmpeg where that gives up.

    `path` may be a descriptor, which stays open. Raises `UnreadableError` if it is all for FFmpeg,
    which may read only the `formats`, `SourceError` without audio. `warnings` has what was logged
    about the file. With `split`, any number of channels is read.
    """

    def __init__(
        self, path: str | int, name: str = "", *, formats: str = "", split: bool = False
    ) -> None:
        self.name, self._path, self._formats = name or str(path), path, formats
        if isinstance(path, int):
            os.lseek(path, 0, os.SEEK_SET)
        file = path if isinstance(path, int) else os.fsencode(path)
        try:
            self._file = soundfile.SoundFile(file, closefd=False)
        except soundfile.LibsndfileError:
            raise UnreadableError from None
        self.rate_hz: int = self._file.samplerate
        self.channels: int = self._file.channels
        self.is_plain = self._file.subtype in _PLAIN
        """Whether its samples are stored as they are, so that nothing can be wrong with them."""
        self.warnings: list[str] = []
        # FLAC that was written through a pipe does not state its length, and libsndfile fails at
        # its end. And only FFmpeg tells what more than two channels are, and reads chains.
        is_endless = self._file.frames == np.iinfo(np.int64).max
        is_more = 2 < self.channels <= MAX_CHANNELS and not split
        if is_endless or is_more or (self._file.format == "FLAC" and len(parts(path)) > 1):
            said = list(self._missing())
            self._file.close()
            raise UnreadableError(*said)
        if not self._file.frames:
            self._file.close()
            raise SourceError(f"{self.name} has no audio: record or convert it again")
        self.duration_ms: int | None = self._file.frames * 1000 // self.rate_hz
        self._n_read = 0
        self._rest: Ffmpeg | None = None

    def open(self) -> None:
        """Warn if the file is shorter than its header states; what it has can be read."""
        for text in self._missing():
            warn(self.warnings, text)

    def _missing(self) -> Iterator[str]:
        if found := _OTHER_SIZE.search(self._file.extra_info):
            stated, there = map(int, found.groups())
            seconds = self._file.frames / self.rate_hz
            stated_s = seconds * stated / max(there, 1)
            if stated < _UNKNOWN_SIZE and (stated_s - seconds) * 1000 > _HEADER_SLACK_MS:
                found_part = f"only {seconds:.1f} of {stated_s:.1f} s are there"
                yield f"{self.name} is cut off: {found_part}; get a complete copy"

    def read(self) -> Block:
        """Return the next samples as `Ffmpeg.read` does."""
        if self._rest is not None:
            return self._rest.read()
        # When the decoder fails inside a block, soundfile raises and does not say how much it has
        # decoded: the samples that are still NaN are not.
        n = min(self.rate_hz * _READ_MS // 1000, _READ_BYTES // (4 * self.channels))
        n = min(n, self._file.frames - self._n_read)
        space = np.full((n, self.channels), np.nan, np.float32)
        failed = False
        try:
            block: NDArray[np.float32] = self._file.read(out=space)
        except soundfile.LibsndfileError:
            block, failed = space[: np.count_nonzero(~np.isnan(space[:, 0]))], True
        self._n_read += len(block)
        missing_ms = (self._file.frames - self._n_read) * 1000 // self.rate_hz
        if not len(block) and (failed or missing_ms > _HEADER_SLACK_MS):
            return self._read_on()
        return block

    def _read_on(self) -> Block:
        """Return what FFmpeg decodes behind a spot at which libsndfile has given up."""
        rest = Ffmpeg(
            self.name,
            self._path,
            formats=self._formats,
            rate_hz=self.rate_hz,
            channels=self.channels,
        )
        self._rest, rest.warnings = rest, self.warnings
        rest.complain(f"libsndfile gives up at {self._n_read / self.rate_hz:.1f} s")
        n_left = self._n_read
        while len(block := rest.read()) and len(block) <= n_left:
            n_left -= len(block)
        return block[n_left:]

    def stop(self) -> None:
        """Do nothing: no read takes long."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._rest is not None:
            self._rest.close()


class FileSource(Source):
    """The audio of a file or an address, in any format that libsndfile or FFmpeg reads.

    libsndfile reads what it can, except mp3: its mp3 decoder prints notes about damaged files to
    standard error, which cannot be turned off.

    A damaged file yields what can be decoded, with a warning that says what is missing. If its end
    is missing, it then raises `SourceError`; where the header shows that (wav, aiff, au and ogg),
    there is a warning before the audio begins instead. `selection` says which track is read, and
    whether its channels are mixed.

    With `realtime` each block comes when a microphone would have delivered it, counted from the
    first one asked for. A consumer that was late gets all blocks that are due at once, so nothing
    drifts. `upload` is what a stranger calls the file, for messages; then it may refer to no other
    file. `path` may be the descriptor of an open file, which is read from its beginning and stays
    open. `now_s` and `sleep` are the clock of real time.
    """

    def __init__(
        self,
        path: str | Path | int,
        *,
        realtime: bool = False,
        upload: str = "",
        selection: Selection = Selection(),  # noqa: B008 - it is frozen
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = upload or without_password(str(path))
        self._path = path if isinstance(path, int) else str(path)
        self._is_url = isinstance(self._path, str) and ffmpeg.is_url(self._path)
        self._formats = ffmpeg.SELF_CONTAINED if upload else ""
        self.live, self._selection = realtime, selection
        self._now_s, self._sleep = now_s, sleep
        self._started_s: float | None = None
        self._n_delivered = 0
        self._stopped = asyncio.Event()
        self._decoder: Ffmpeg | Sndfile | None = None
        self._ahead: Block = np.empty((0, 1), np.float32)
        self._thread: threading.Thread | None = None
        self._n_bytes = 0  # when it was opened
        self._frames = FrameStream(Framer(SAMPLE_RATE), self._next_block, name=self.name)

    async def __aenter__(self) -> Self:
        try:
            decoder = await self._in_thread(self._open)
            if decoder is not None:
                self._play(decoder)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None and not self._is_url:
            await asyncio.to_thread(self._thread.join)
        if self._decoder is not None and not (self._thread and self._thread.is_alive()):
            self._decoder.close()

    def stop(self) -> None:
        """End after the last block that was returned."""
        self._stopped.set()
        if self._decoder is not None:
            self._decoder.stop()

    def _play(self, decoder: Ffmpeg | Sndfile) -> None:
        self.duration_ms = decoder.duration_ms
        try:
            framer = Framer(decoder.rate_hz, max(1, decoder.channels), split=self._selection.split)
        except SourceError as error:
            raise SourceError(f"{self.name}: {error}") from None
        self._frames = FrameStream(
            framer, self._next_block, name=self.name, warnings=decoder.warnings
        )

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result | None:
        """Return what `call` returns, or None if it waits for a server when `stop` is called.

        Nothing can interrupt FFmpeg then. Python does not wait for such a thread when it exits.
        """
        done: Future[_Result] = Future()
        self._thread = threading.Thread(target=settle, args=(done, call), name="file", daemon=True)
        self._thread.start()
        result = asyncio.wrap_future(done)
        stopped = asyncio.ensure_future(self._stopped.wait())
        waiting: set[asyncio.Future[Any]] = {result}
        if self._is_url:
            waiting.add(stopped)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return result.result() if result.done() else None
        finally:
            result.cancel()
            stopped.cancel()

    async def _next_block(self) -> Block | None:
        decoder = self._decoder
        if decoder is None:  # stopped before the server answered
            return None
        n = decoder.rate_hz * (_PACED_BLOCK_MS if self.live else _BLOCK_MS) // 1000
        if self.live:
            await self._until_due((self._n_delivered + n) / decoder.rate_hz)
        if self._stopped.is_set():
            return None
        if not len(self._ahead):
            read: Callable[[], Block] = decoder.read
            ahead = await self._in_thread(read)
            if ahead is None:
                return None
            self._ahead = ahead
        block, self._ahead = self._ahead[:n], self._ahead[n:]
        self._n_delivered += len(block)
        if not len(block):
            self._tell_growth(decoder)
            return None
        return block

    def _tell_growth(self, decoder: Ffmpeg | Sndfile) -> None:
        """Say if the file is still being written: what came after it was opened was not read."""
        if 0 < self._n_bytes < _size(self._path):
            follow = f"follow it: tail -c +1 -f {self.name} | streamd -"
            what = f"{self.name} is still growing, and was read to where it ended: {follow}"
            warn(decoder.warnings, what)

    async def _until_due(self, end_s: float) -> None:
        """Wait until a microphone would have captured the sound up to `end_s`."""
        now_s = self._now_s()
        if self._started_s is None:
            self._started_s = now_s
        due_s = self._started_s + end_s
        if due_s > now_s and not self._stopped.is_set():
            await self._sleep(due_s - now_s)

    def _open(self) -> Ffmpeg | Sndfile:
        """Choose a decoder and wait for the first sound. Runs in a thread: this may take long."""
        self._decoder = decoder = choose_decoder(
            self._path, self.name, formats=self._formats, selection=self._selection
        )
        self._n_bytes = 0 if self._is_url else _size(self._path)
        decoder.open()
        return decoder


def choose_decoder(
    path: str | int, name: str, *, formats: str = "", selection: Selection
) -> Ffmpeg | Sndfile:
    """Return what decodes a file or an address, not opened yet; `path` as in `FileSource`.

    FFmpeg reads the `formats`, or all if there are none. Raises `SourceError` if there is no sound.
    """
    n_channels = 0 if selection.split else 1
    new = partial(Ffmpeg, name, path, channels=n_channels, selection=selection)
    if isinstance(path, str) and ffmpeg.is_url(path):
        return new()
    try:
        if isinstance(path, int):
            head = os.pread(path, N_HEAD, 0)
        else:
            with Path(path).open("rb") as file:
                head = file.read(N_HEAD)
    except OSError as error:
        fix = "name the files in it" if isinstance(error, IsADirectoryError) else "check the path"
        raise SourceError(f"cannot read {name}: {error.strerror}; {fix}") from None
    if not head:
        raise SourceError(f"{name} is empty: record it again")
    decoder = new(formats=formats)
    if container(head) in SNDFILE and selection.track < 2:
        try:
            return Sndfile(path, name, formats=formats, split=selection.split)
        except UnreadableError as error:
            for text in error.args:
                warn(decoder.warnings, text)
    return decoder


def _size(path: str | int) -> int:
    """Return the size of a regular file, 0 of anything else."""
    with suppress(OSError):
        if stat.S_ISREG((found := os.stat(path)).st_mode):
            return found.st_size
    return 0
