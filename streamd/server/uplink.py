"""What a client says on ingest: commands and PCM, turned into frames for its session.

An uplink outlives the connection of a client that counts its samples: `Uplinks` keeps it until the
client is back, for a while.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable

from streamd.audio.framer import Framer
from streamd.audio.pcm import PcmDecoder
from streamd.errors import WireError
from streamd.events import Ack, Fault, Flushed, Started
from streamd.server.peer import Bounds
from streamd.server.streams import MAX_FEED_FRAMES, Ingest, Streams
from streamd.server.wire import Flush, Start, Stop, decode_command

_MAX_OVER = 64
"""Sessions whose speaker is told that they are over if it comes back."""


class Uplink:
    """The session that one client feeds, on one connection after the other.

    Call `connect` for each connection, `take` for what it says, and in the end `finish`.
    """

    def __init__(self, ingest: Ingest, *, max_session_ms: int) -> None:
        self.ingest = ingest
        self._max_session_ms = max_session_ms
        self._start: Start | None = None
        self._heard = 0  # number of the next sample; sample n is at time n / rate of the session
        self._next_ack = 0
        self._complained = False
        self._finishing: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        self._replaced: Callable[[], None] | None = None
        self._tell: Callable[[Ack], None] = lambda ack: None
        self._introduced = False

    @property
    def heard_ms(self) -> int:
        """How much audio was heard."""
        return 0 if self._start is None else self._heard * 1000 // self._start.rate

    @property
    def resumable(self) -> bool:
        """Whether the client comes back if its connection breaks."""
        return (
            self._finishing is None and self._start is not None and self._start.samples is not None
        )

    def connect(self, *, replaced: Callable[[], None], tell: Callable[[Ack], None]) -> None:
        """A connection takes over; see `Uplinks.connect`."""
        if self._replaced is not None:
            self._replaced()
        self._replaced, self._tell = replaced, tell
        self._introduced = False

    def is_held_by(self, replaced: Callable[[], None]) -> bool:
        """Whether this connection is still the one that feeds the session."""
        return self._replaced == replaced

    async def take(self, message: str | bytes) -> Flushed | Fault | Started | None:
        """Do what the client says, and give the answer to it if there is one.

        Waits while the session has no room for more audio. After `finish` nothing is done any more.

        Raises
        ------
        WireError : the message is not allowed, or not now
        """
        holder = self._replaced
        async with self._busy:  # a connection that was replaced may still be feeding
            if holder != self._replaced:
                raise WireError("replaced", "another connection feeds this session now")
            if self._finishing is not None:
                return None
            command = message if isinstance(message, bytes) else decode_command(message)
            answer: Fault | Started | None = None
            if isinstance(command, bytes):
                answer = await self._hear(command)
            elif isinstance(command, Start):
                answer = self._begin(command)
        if isinstance(command, Flush):
            await self.ingest.flush()
            return Flushed(id=command.id, seq=self.ingest.hub.seq)
        if isinstance(command, Stop):
            await self.finish("stop")
        elif 0 < self._max_session_ms <= self.heard_ms:
            await self.finish("limit")
        return answer

    def ack(self) -> Ack | None:
        """What a client that counts samples need not keep any more, if there is news, each second.

        It is noted for other processes, too.
        """
        if not self.resumable or self._start is None or self._heard < self._next_ack:
            return None
        self._next_ack = self._heard + self._start.rate
        samples = self.ingest.settle() * self._start.rate // 1000
        return Ack(samples=min(samples, self._heard))

    async def finish(self, reason: str) -> None:
        """Make final what was said; the second caller waits for the first, whose reason counts."""
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(reason))
        await self._finishing

    async def _finish(self, reason: str) -> None:
        async with self._busy:  # what is being fed is counted already, so it has to be heard
            if self._start is not None and len(frames := self._framer.flush()):
                self.ingest.feed(frames)
        if self._start is not None and self._start.samples is not None:
            await self.ingest.flush()
            self._tell(Ack(samples=self._heard))
        await self.ingest.finish(reason)

    def _begin(self, start: Start) -> Started | None:
        if self._introduced:
            raise WireError("late_start", "start must come once, before the first audio")
        self._introduced = True
        if self._start is None:
            self._start = start
            self._decoder = PcmDecoder(start.encoding.removeprefix("pcm_"), start.channels)
            self._framer = Framer(start.rate, start.channels)
            self._heard = self.ingest.began_ms * start.rate // 1000
            self._next_ack = self._heard + start.rate
        elif _kind(start) != _kind(self._start) or start.samples is None:
            raise WireError("late_start", "a session goes on with the audio that it began with")
        else:
            self._skip(start.samples - self._heard)
        return None if start.samples is None else Started(samples=self._heard)

    def _skip(self, n_samples: int) -> None:
        """The client has forgotten what we have not heard."""
        if n_samples > 0 and self._start is not None:
            self.ingest.gap(n_samples * 1000 // self._start.rate, "resume")
            self._heard += n_samples

    async def _hear(self, pcm: bytes) -> Fault | None:
        if self._start is None:
            self._begin(Start())
        start = self._start
        assert start is not None  # for mypy
        if not self._introduced and start.samples is not None:
            raise WireError("late_start", "start must come before the audio, also after a break")
        self._introduced = True
        n_bytes = start.channels * start.encoding.n_bytes
        if len(pcm) % n_bytes:
            raise WireError(
                "bad_audio", f"{len(pcm)} bytes are not whole samples of {n_bytes} bytes"
            )
        frames = self._framer.push(self._decoder.push(pcm))
        self._heard += len(pcm) // n_bytes
        for begin in range(0, len(frames), MAX_FEED_FRAMES):
            await self.ingest.room()
            self.ingest.feed(frames[begin : begin + MAX_FEED_FRAMES])
            await asyncio.sleep(0)  # who sends hours of silence at once must not hold up the rest
        if not self._framer.n_invalid or self._complained:
            return None
        self._complained = True
        return Fault(code="bad_audio", message="samples that are no numbers are taken as silence")


class Uplinks:
    """The uplinks of all sessions that clients feed, also those whose client is away."""

    def __init__(self, streams: Streams, bounds: Bounds) -> None:
        self.streams = streams
        self._bounds = bounds
        self._uplinks: dict[str, Uplink] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._over: deque[tuple[str, str | None, int]] = deque(maxlen=_MAX_OVER)

    def connect(
        self,
        session: str,
        *,
        epoch: str | None,
        replaced: Callable[[], None],
        tell: Callable[[Ack], None],
    ) -> Uplink:
        """The uplink of a session: the one that the client knows by its `epoch`, or a new one.

        Parameters
        ----------
        session : its name; empty: any
        replaced : called when another connection takes the uplink over
        tell : called when the session ends with what was heard, before anybody hears of the end

        Raises
        ------
        WireError : somebody else feeds the session, it is over, or there are too many
        """
        session = session or secrets.token_hex(4)
        for name, run, heard_ms in self._over:
            if (name, run) == (session, epoch):
                raise WireError("session_over", "the session ended meanwhile", heard_ms=heard_ms)
        uplink = self._uplinks.get(session)
        if uplink is None or not uplink.resumable or uplink.ingest.hub.epoch != epoch:
            ingest = self.streams.open(session, epoch=epoch)
            uplink = Uplink(ingest, max_session_ms=self._bounds.max_session_ms)
            self._uplinks[session] = uplink
        if (waiting := self._waiting.pop(session, None)) is not None:
            waiting.cancel()
        uplink.connect(replaced=replaced, tell=tell)
        return uplink

    async def leave(self, uplink: Uplink, reason: str) -> None:
        """The connection ended: wait for another one if that was not wanted, or end the session."""
        session = uplink.ingest.hub.session
        if reason == "disconnect" and uplink.resumable:
            self._waiting[session] = asyncio.create_task(self._expire(uplink))
        else:
            await self._end(uplink, reason)

    async def finish(self, reason: str) -> None:
        """End all sessions, also those whose client is away. What fails is reported elsewhere."""
        for task in self._waiting.values():
            task.cancel()
        self._waiting.clear()
        uplinks = self._uplinks.values()
        await asyncio.gather(*(up.finish(reason) for up in uplinks), return_exceptions=True)

    async def _expire(self, uplink: Uplink) -> None:
        await asyncio.sleep(self._bounds.resume_ms / 1000)
        del self._waiting[uplink.ingest.hub.session]
        await self._end(uplink, "disconnect")

    async def _end(self, uplink: Uplink, reason: str) -> None:
        hub = uplink.ingest.hub
        self._over.append((hub.session, hub.epoch, uplink.heard_ms))
        await uplink.finish(reason)
        if self._uplinks.get(hub.session) is uplink:
            del self._uplinks[hub.session]


def _kind(start: Start) -> tuple[str, int, int]:
    return start.encoding, start.rate, start.channels
