"""What a client says on ingest: commands and PCM, turned into frames for its session."""

import asyncio

from streamd.audio.framer import Framer
from streamd.audio.pcm import PcmDecoder
from streamd.errors import WireError
from streamd.events import Fault, Flushed
from streamd.server.streams import MAX_FEED_FRAMES, Ingest
from streamd.server.wire import Flush, Start, Stop, decode_command


class Uplink:
    """The session that one client feeds. `finish` must be called in the end."""

    def __init__(self, ingest: Ingest) -> None:
        self.ingest = ingest
        self._started = False
        self._complained = False
        self._finishing: asyncio.Task[None] | None = None
        self._begin(Start())

    def _begin(self, start: Start) -> None:
        self._decoder = PcmDecoder(start.encoding.removeprefix("pcm_"), start.channels)
        self._framer = Framer(start.rate, start.channels)
        self._bytes_per_sample = start.channels * start.encoding.n_bytes

    async def take(self, message: str | bytes) -> Flushed | Fault | None:
        """Do what the client says, and give the answer to it if there is one.

        Waits while the session has no room for more audio. After `finish` nothing is done any more.

        Raises
        ------
        WireError : the message is not allowed, or not now
        """
        if self._finishing is not None:
            return None
        if isinstance(message, bytes):
            return await self._hear(message)
        command = decode_command(message)
        if isinstance(command, Stop):
            await self.finish("stop")
        elif isinstance(command, Flush):
            await self.ingest.flush()
            return Flushed(id=command.id, seq=self.ingest.hub.seq)
        elif self._started:
            raise WireError("late_start", "start must come once, before the first audio")
        else:
            self._started = True
            self._begin(command)
        return None

    async def finish(self, reason: str) -> None:
        """Make final what was said; the second caller waits for the first, whose reason counts."""
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(reason))
        await self._finishing

    async def _finish(self, reason: str) -> None:
        if len(frames := self._framer.flush()):
            self.ingest.feed(frames)
        await self.ingest.finish(reason)

    async def _hear(self, pcm: bytes) -> Fault | None:
        self._started = True
        if len(pcm) % self._bytes_per_sample:
            raise WireError(
                "bad_audio",
                f"{len(pcm)} bytes are not whole samples of {self._bytes_per_sample} bytes",
            )
        frames = self._framer.push(self._decoder.push(pcm))
        for start in range(0, len(frames), MAX_FEED_FRAMES):
            await self.ingest.room()
            if self._finishing is not None:
                break
            self.ingest.feed(frames[start : start + MAX_FEED_FRAMES])
        if not self._framer.n_invalid or self._complained:
            return None
        self._complained = True
        return Fault(code="bad_audio", message="samples that are no numbers are taken as silence")
