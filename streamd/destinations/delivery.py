"""Delivers a session to one destination, in order, whatever becomes of the destination.

What waits is bounded. A destination whose text is read at once, on a screen, gets nothing that is
older than `STALE_S`; another one gets everything, later. The user is told each reason why it fails
once until it works again, and how much was lost at the end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from streamd.events import Final, Missed, SessionEvent
from streamd.streams.hub import Hub

log = logging.getLogger(__name__)

STALE_S = 10.0
"""Age at which a caption is no longer worth showing: what it is about has been over for a while.
YouTube and Twitch show a stream 5 to 20 s late."""
_MOST_WAITING = 200
"""Parts that wait: a quarter of an hour of captions, at a part in 4 s."""
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Between tries; the last one repeats."""
_LONGEST_LIVE_S = 5.0
"""Between tries for a screen, which may begin to show captions at any moment: OBS as it streams."""
_LAST_PAUSE_S = 1.0
"""Between tries once the session has ended: there are seconds left."""
_MOST_REFUSALS = 3
"""Of one part: a receiver that cannot read it would hold up all that follow."""

ParcelT = TypeVar("ParcelT")


class DeliveryError(Exception):
    """A part could not be delivered; another try may succeed. The message has no password or key.

    With `is_refusal`, the destination has answered that it does not want this part; with `after_s`
    that it wants no other try before.
    """

    def __init__(self, message: str, *, is_refusal: bool = False, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.is_refusal, self.after_s = is_refusal, after_s


@dataclass(frozen=True, slots=True)
class Parcel(Generic[ParcelT]):
    """What is sent at once. The next part is sent `lasts_ms` later, if there is one by then."""

    content: ParcelT
    lasts_ms: int = 0


class Destination(Protocol[ParcelT]):
    """Turns events into parts and sends them. Each call of `send` and `open` ends in bounded time.

    `name` is for messages and has neither password nor key. `is_live`: text that is late is of no
    use there. `tells_sessions_apart`: whether it can have several at a time.
    """

    name: str
    is_live: bool
    tells_sessions_apart: bool = False

    def follow(self, hub: Hub) -> None:
        """Take note of the session whose events come next, notes from the first one on."""
        return

    def parts(self, event: SessionEvent) -> Sequence[Parcel[ParcelT]]:
        """Return what there is to send after an event, mostly nothing."""
        ...

    async def open(self) -> None:
        """Connect, if the destination needs it, so that the user hears early what is wrong.

        Raises `DeliveryError`; `send` tries again.
        """
        return

    async def send(self, content: ParcelT) -> None:
        """Send a part. Raises `DeliveryError`; the same part may be sent again."""

    async def close(self) -> None:
        """Disconnect."""
        return


class Delivery(Generic[ParcelT]):
    """One destination of one session; `run` does all. `n_sent` and `n_lost` count parts.

    `now_s` is the loop's clock, and `pauses_s` are the pauses between tries; tests have others.
    """

    def __init__(
        self,
        destination: Destination[ParcelT],
        *,
        pauses_s: Sequence[float] = _PAUSES_S,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._to, self._pauses_s = destination, pauses_s
        self._now_s = now_s or asyncio.get_running_loop().time
        # When it was heard, and what is sent; None at the end.
        self._queue: asyncio.Queue[tuple[float, Parcel[ParcelT]] | None] = asyncio.Queue(
            _MOST_WAITING
        )
        self._ended = asyncio.Event()
        self._free_s = 0.0  # from when on the next part may be shown
        self._n_failures = 0  # in a row
        self._told: set[str] = set()  # why
        self._n_read = 0  # the number of the last final that was read
        self.n_sent = self.n_lost = 0

    async def run(self, hub: Hub, *, end_by: Callable[[], float]) -> None:
        """Deliver the session until it ends, and what is left until `end_by`, in the loop's time.

        Raises nothing that the destination does: after a bug in it, nothing more is sent there.
        """
        try:
            await self._deliver(hub, end_by)
        except Exception:
            log.exception("%s: a bug in streamd: nothing more is sent there", self._to.name)
        else:
            self.n_lost += max(0, hub.seq - self._n_read)
            self._conclude()
        finally:
            await self._to.close()

    async def _deliver(self, hub: Hub, end_by: Callable[[], float]) -> None:
        # While the queue is full nothing is read, so the end is waited for beside that.
        over, work = asyncio.ensure_future(_over(hub)), asyncio.ensure_future(self._work(hub))
        try:
            await asyncio.wait((over, work), return_when=asyncio.FIRST_COMPLETED)
            self._ended.set()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end_by()):
                    await work
        finally:
            over.cancel()
            work.cancel()
            await asyncio.gather(over, work, return_exceptions=True)

    async def _work(self, hub: Hub) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(hub))
            tasks.create_task(self._send_all())

    async def _read(self, hub: Hub) -> None:
        """Put what there is to send into the queue until the session ends, and then None."""
        self._n_read = hub.seq
        while True:
            after = self._n_read
            with hub.subscribe(after=after, partials=False, stats=True, listens=False) as events:
                self._to.follow(hub)
                async for event in events:
                    if isinstance(event, Missed):
                        self.n_lost += event.to_seq - event.from_seq + 1
                    self._n_read = event.seq if isinstance(event, Final) else self._n_read
                    for part in self._to.parts(event):
                        await self._put((self._now_s(), part))
                if not events.slow:
                    await self._queue.put(None)
                    return
                # So much waits that the hub's queue overflowed, too: its finals are replayed.

    async def _put(self, waiting: tuple[float, Parcel[ParcelT]]) -> None:
        if self._to.is_live and self._queue.full():
            self._queue.get_nowait()
            self.n_lost += 1
        try:
            await self._queue.put(waiting)
        except asyncio.CancelledError:  # the time is over
            self.n_lost += 1
            raise

    async def _send_all(self) -> None:
        try:
            await self._to.open()
        except DeliveryError as error:
            self._fail(error)
        while (waiting := await self._queue.get()) is not None:
            try:
                await self._send(waiting)
            except asyncio.CancelledError:  # the time is over
                self.n_lost += 1
                raise

    async def _send(self, waiting: tuple[float, Parcel[ParcelT]]) -> None:
        """Send a part as often as it takes; give up if it is stale or was refused thrice."""
        (heard_s, part), n_refusals = waiting, 0
        if not self._ended.is_set():
            await asyncio.sleep(max(0.0, self._free_s - self._now_s()))
        due_s = max(heard_s, self._free_s)
        while not (self._to.is_live and self._now_s() - due_s > STALE_S):
            try:
                await self._to.send(part.content)
            except DeliveryError as error:
                self._fail(error)
                n_refusals += error.is_refusal
                if n_refusals >= _MOST_REFUSALS:
                    break
                await self._pause(error.after_s)
                continue
            self._free_s = self._now_s() + part.lasts_ms / 1000
            self._succeed()
            return
        self.n_lost += 1

    async def _pause(self, after_s: float) -> None:
        pause_s = self._pauses_s[min(self._n_failures, len(self._pauses_s)) - 1]
        if self._to.is_live:
            pause_s = min(pause_s, _LONGEST_LIVE_S)
        pause_s = max(pause_s, after_s)
        if self._ended.is_set():
            await asyncio.sleep(min(pause_s, _LAST_PAUSE_S))
            return
        with suppress(TimeoutError):
            # Not `wait_for`, which in Python 3.11 may swallow that the task was cancelled.
            async with asyncio.timeout(pause_s):
                await self._ended.wait()

    def _fail(self, error: DeliveryError) -> None:
        self._n_failures += 1
        if (why := str(error)) not in self._told:
            self._told.add(why)
            what = "text that is late is left out" if self._to.is_live else "nothing is lost yet"
            log.warning("%s: %s; trying again; %s", self._to.name, why, what)

    def _succeed(self) -> None:
        self.n_sent += 1
        if self._n_failures:
            log.info("%s works again; %d not delivered", self._to.name, self.n_lost)
        self._n_failures = 0
        self._told.clear()

    def _conclude(self) -> None:
        n_left = sum(1 for _ in range(self._queue.qsize()) if self._queue.get_nowait() is not None)
        self.n_lost += n_left
        if self.n_lost:
            log.warning("%s: %d sent, %d not", self._to.name, self.n_sent, self.n_lost)
        else:
            log.info("%s: %d sent", self._to.name, self.n_sent)


async def _over(hub: Hub) -> None:
    """Return when the session has ended."""
    while True:
        with hub.subscribe(partials=False, listens=False) as events:
            async for _ in events:
                pass
            if not events.slow:
                return
