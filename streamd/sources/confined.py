"""A stranger's sound file, decoded by a process of its own, which can do nothing else.

A file of a few kilobytes can state tables, blocks and pictures for which a decoder takes gigabytes,
and a damaged one can end the process that reads it, or take it over.
"""

import asyncio
import errno
import logging
import os
import signal
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import BinaryIO, Literal, Self

import numpy as np

from streamd.errors import SourceError
from streamd.sources import FrameStream, Lost
from streamd.sources.containers import N_HEAD, container
from streamd.sources.ffmpeg import SELF_CONTAINED, Ffmpeg
from streamd.sources.file import FileSource, Sndfile, UnreadableError, choose_decoder
from streamd.sources.framing import Block, Framer
from streamd.sources.source import warn
from streamd.sources.tracks import Selection
from streamd.system.sandbox import child_command, child_environment, confine, limit_cpu
from streamd.types import FRAME, FRAME_MS, Frames

_MAX_BYTES = 256 << 20
"""What the process may allocate besides what its libraries take; recordings need a tenth of it."""
_CPU_S = 60
"""CPU time that the process has, besides the length of the sound that it has decoded: files of 60
MB that were made to keep decoders busy took up to 32 s, and sound takes a hundredth of its length.
"""
_HEAD = struct.Struct(">cI")
"""Before each message of the process: its kind, and its length in bytes (``p``: the number)."""
_Kind = Literal[b"m", b"f", b"p", b"w", b"e"]
"""What confinement misses, frames, the samples of padding in the last one, a warning, the error
that ends it."""
_LONGEST = 1 << 20
"""Bytes of a message; frames that are read at once take several, since a block may be minutes."""
_MOST_WARNINGS = 10
"""Of a process that was taken over; a damaged file has two or three."""
_FRAME_BYTES = 4 * FRAME
_FED = "--fed"
"""Has the process read a stream from standard input, not a file."""
_NAME = "\0"
"""Stands for the file's name in messages of the process, which does not know it."""
_TOO_MUCH = (
    f"{_NAME} is damaged: {_MAX_BYTES >> 20} MB of memory are not enough to decode it; "
    "convert it to WAV"
)


class ConfinedSource:
    """The audio of a file that a client sent and calls `name`: a context manager to iterate over.

    `file` is the descriptor, which stays open; None: what `feed` gets, until `end`. Frames,
    warnings and errors are those of `FileSource`; besides, raises `SourceError` if the process
    needs too much memory, which only Linux limits, or too long, or crashes.
    """

    def __init__(self, file: int | None, name: str, languages: Sequence[str] = ()) -> None:
        self._file, self._name, self._languages = file, name, languages
        self.warnings: list[str] = []
        """What was logged about the sound."""
        self.missing = ""
        """What this machine cannot keep the process from, known after the first item."""
        self.n_padding = 0
        """Samples of padding at the end of the last frame, known once iterating has ended."""

    async def __aenter__(self) -> Self:
        is_fed = self._file is None
        self._process = await asyncio.create_subprocess_exec(
            *child_command(__name__, *([_FED] * is_fed), *self._languages),
            stdin=asyncio.subprocess.PIPE if is_fed else self._file,
            stdout=asyncio.subprocess.PIPE,
            # Landlock confines one thread and those that it starts later; numpy would start some.
            env={**child_environment(), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the daemon
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        # `wait` waits for the end of the pipe, too, which is not seen while nobody reads from it.
        while await self._out.read(_LONGEST):
            pass
        await self._process.wait()

    async def feed(self, data: bytes) -> None:
        """Give the process more to decode; waits while it has enough. It may have ended."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def end(self) -> None:
        """Say that nothing more comes: iterating ends when all is decoded."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frames | Lost:
        while True:
            kind, data = await self._message()
            text = data.decode(errors="replace").replace(_NAME, self._name)
            match kind:
                case b"m":
                    self.missing = text
                case b"f" if len(data) % _FRAME_BYTES == 0:
                    return np.frombuffer(data, np.float32).reshape(-1, FRAME)
                case b"w":
                    if len(self.warnings) < _MOST_WARNINGS:
                        warn(self.warnings, text)
                case b"e":
                    raise SourceError(text)
                case b"p":
                    self.n_padding = len(data)
                    raise StopAsyncIteration
                case _:
                    raise self._damaged("the process that decodes it was taken over")

    async def _message(self) -> tuple[bytes, bytes]:
        try:
            kind, n_bytes = _HEAD.unpack(await self._out.readexactly(_HEAD.size))
            if n_bytes > _LONGEST:
                return b"", b""
            return kind, await self._out.readexactly(n_bytes)
        except asyncio.IncompleteReadError:
            code = await self._process.wait()
        if code == -signal.SIGXCPU:
            raise self._damaged("decoding it takes too long")
        raise self._damaged(f"the process that decodes it has ended with {code}")

    def _damaged(self, how: str) -> SourceError:
        return SourceError(f"{self._name} is damaged: {how}; convert it to WAV")


def stranger_file(
    file: int, name: str, languages: Sequence[str] = ()
) -> FileSource | ConfinedSource:
    """Return the source for a file that a client sent and calls `name`; raises `SourceError`.

    Of several sound tracks, one in the first of the `languages` that there is will be read.
    A WAV file that libsndfile reads states nothing for which much memory is taken: it needs no
    process, whose start would take longer than a short command takes to transcribe. `file` is the
    descriptor, which stays open.
    """
    if container(os.pread(file, N_HEAD, 0)) == "WAV":
        with suppress(UnreadableError):
            decoder = Sndfile(file, name)
            decoder.close()
            if decoder.is_plain:
                return FileSource(file, upload=name)
    return ConfinedSource(file, name, languages)


async def missing_confinement() -> str:
    """Return what this machine cannot keep the process from, for people; empty if it can all."""
    with TemporaryFile() as empty:
        async with ConfinedSource(empty.fileno(), "nothing") as source:
            with suppress(SourceError):  # it is empty
                await anext(source)
            return source.missing


# -- in the process -------------------------------------------------------------------------------


class _Warnings(logging.Handler):
    def __init__(self, out: BinaryIO) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        _tell(self._out, b"w", record.getMessage().encode())


def _tell(out: BinaryIO, kind: _Kind, data: bytes) -> None:
    out.write(_HEAD.pack(kind, len(data)) + data)
    out.flush()


async def _read(file: int, languages: Sequence[str], out: BinaryIO) -> None:
    try:
        decoder = _decoder(file, languages)
        decoder.open()
        frames = _frames(decoder)
        n = 0
        async for item in frames:
            assert not isinstance(item, Lost)  # a file loses nothing
            for at in range(0, len(item), _LONGEST // _FRAME_BYTES):
                _tell(out, b"f", item[at : at + _LONGEST // _FRAME_BYTES].tobytes())
            n += len(item)
            limit_cpu(_CPU_S + n * FRAME_MS // 1000)
        _tell(out, b"p", bytes(frames.n_padding))
    except SourceError as error:
        lacks_memory = os.strerror(errno.ENOMEM) in str(error)  # so FFmpeg calls it
        _tell(out, b"e", (_TOO_MUCH if lacks_memory else str(error)).encode())
    except MemoryError:
        _tell(out, b"e", _TOO_MUCH.encode())


def _decoder(file: int, languages: Sequence[str]) -> Ffmpeg | Sndfile:
    if _FED in languages:
        fed = os.fdopen(file, "rb", buffering=0, closefd=False)
        return Ffmpeg(_NAME, fed, formats=SELF_CONTAINED)
    selection = Selection(languages=tuple(languages))
    return choose_decoder(file, _NAME, formats=SELF_CONTAINED, selection=selection)


def _frames(decoder: Ffmpeg | Sndfile) -> FrameStream:
    try:
        framer = Framer(decoder.rate_hz, max(1, decoder.channels))
    except SourceError as error:
        raise SourceError(f"{_NAME}: {error}") from None

    async def next_block() -> Block | None:
        block: Block = decoder.read()
        return block if len(block) else None

    return FrameStream(framer, next_block, name=_NAME, threads=False)


async def _main(out: BinaryIO) -> None:
    # No module can be loaded later, as PyAV does for some tracks; and these take no memory then.
    import av.subtitles.codeccontext
    import av.subtitles.stream  # noqa: F401

    limit_cpu(_CPU_S)
    _tell(out, b"m", ", ".join(confine(_MAX_BYTES)).encode())
    logging.getLogger("streamd").addHandler(_Warnings(out))
    await _read(sys.stdin.fileno(), sys.argv[1:], out)


if __name__ == "__main__":
    asyncio.run(_main(sys.stdout.buffer))
