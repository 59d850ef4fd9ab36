"""A stranger's sound file, decoded by a process of its own, whose memory is limited.

A file of a few kilobytes can state tables, blocks and pictures for which a decoder takes gigabytes,
and a damaged one can end the process that reads it.
"""

import asyncio
import logging
import resource
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, Self

import numpy as np

from streamd.errors import SourceError
from streamd.sources import Lost
from streamd.sources.containers import N_HEAD, container
from streamd.sources.file import FileSource, Sndfile, UnreadableError
from streamd.sources.tracks import Selection
from streamd.types import FRAME, Frames

_MAX_BYTES = 256 << 20
"""What the process may allocate besides what its libraries take; recordings need a tenth of it."""
_HEAD = struct.Struct(">cI")
"""Before each message of the process: its kind, and its length in bytes (``p``: the number)."""
_Kind = Literal[b"f", b"p", b"w", b"e"]
"""Frames, the samples of padding in the last one, a warning, the error that ends it."""

_log = logging.getLogger(__name__)


class ConfinedSource:
    """The audio of a file that a client sent and calls `name`: a context manager to iterate over.

    Frames, warnings and errors are those of `FileSource`; besides, raises `SourceError` if the
    process needs too much memory, which only Linux limits, or crashes.
    """

    def __init__(self, path: str, name: str, languages: Sequence[str] = ()) -> None:
        self._path, self._name, self._languages = path, name, languages
        self.warnings: list[str] = []
        """What was logged about the sound."""
        self.n_padding = 0
        """Samples of padding at the end of the last frame, known once iterating has ended."""

    async def __aenter__(self) -> Self:
        # -P: no module of the folder in which streamd was started is imported.
        command = (sys.executable, "-P", "-m", __name__, self._path, self._name, *self._languages)
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the daemon
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frames | Lost:
        while True:
            kind, data = await self._message()
            match kind:
                case b"f":
                    return np.frombuffer(data, np.float32).reshape(-1, FRAME)
                case b"w":
                    self.warnings.append(data.decode())
                    _log.warning("%s", self.warnings[-1])
                case b"e":
                    raise SourceError(data.decode())
                case _:
                    self.n_padding = len(data)
                    raise StopAsyncIteration

    async def _message(self) -> tuple[bytes, bytes]:
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readexactly(_HEAD.size)
            kind, n_bytes = _HEAD.unpack(head)
            return kind, await self._process.stdout.readexactly(n_bytes)
        except asyncio.IncompleteReadError:
            end = f"the process that decodes it has ended with {await self._process.wait()}"
            raise SourceError(f"{self._name} is damaged: {end}; convert it to WAV") from None


def _too_much(name: str) -> str:
    most = f"{_MAX_BYTES >> 20} MB of memory are not enough to decode it"
    return f"{name} is damaged: {most}; convert it to WAV"


def stranger_file(
    path: str, name: str, languages: Sequence[str] = ()
) -> FileSource | ConfinedSource:
    """Return the source for a file that a client sent and calls `name`; raises `SourceError`.

    Of several sound tracks, one in the first of the `languages` that there is will be read.
    A WAV file that libsndfile reads states nothing for which much memory is taken: it needs no
    process, whose start would take longer than a short command takes to transcribe.
    """
    with Path(path).open("rb") as file:
        is_wav = container(file.read(N_HEAD)) == "WAV"
    if is_wav:
        with suppress(UnreadableError):
            Sndfile(path, name).close()
            return FileSource(path, upload=name)
    return ConfinedSource(path, name, languages)


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


async def _read(path: str, name: str, languages: Sequence[str], out: BinaryIO) -> None:
    source = FileSource(path, upload=name, selection=Selection(languages=tuple(languages)))
    try:
        async with source:
            async for item in source:
                assert not isinstance(item, Lost)  # a file loses nothing
                _tell(out, b"f", item.tobytes())
        _tell(out, b"p", bytes(aiter(source).n_padding))
    except SourceError as error:
        _tell(out, b"e", str(error).encode())
    except MemoryError:
        _tell(out, b"e", _too_much(name).encode())


def _limit_memory() -> None:
    import av  # noqa: F401 - it is loaded now, and does not count

    if sys.platform == "linux":
        n_pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = n_pages * resource.getpagesize() + _MAX_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    _limit_memory()
    logging.getLogger("streamd").addHandler(_Warnings(sys.stdout.buffer))
    path, name, *languages = sys.argv[1:]
    asyncio.run(_read(path, name, languages, sys.stdout.buffer))
