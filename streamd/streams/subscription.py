"""One subscriber's queue of the events of a session."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Self

from streamd.events import Ack, Eos, Final, Partial, SessionEvent, Stats
from streamd.streams.life import SUBSCRIPTION, Phase, Turn
from streamd.types import following

_REPLACED: Mapping[type[SessionEvent], int] = {Ack: 0, Stats: -1, Partial: -2}
"""Events of which only the newest waits in a queue, with their keys; other keys count up from 1.
Of partials it is the newest of each channel, whose keys count down."""


def _key(event: SessionEvent) -> int | None:
    """Return the key that a newer event of the kind has, too; None if each waits for itself."""
    key = _REPLACED.get(type(event))
    return key - (event.channel or 0) if isinstance(event, Partial) and key is not None else key


class Subscription(AsyncIterator[SessionEvent]):
    """One subscriber's queue of unsent events.

    Iterate over it, or call `pop` and do the waiting yourself. The iteration ends after `Eos`,
    after `close`, or when the subscriber was too slow: then `slow` is true and the queue is
    dropped. The subscriber misses no final if it subscribes again `after` the last `seq` it got.

    At most `bound` events wait, besides those that a newer one replaces. The events of `replay`
    come first; they are fetched one by one and do not count as waiting. If nothing waits, an event
    that `deliver` takes does not join the queue. `listens`: whether it counts as a listener.
    """

    def __init__(
        self,
        bound: int,
        replay: Iterable[SessionEvent] = (),
        *,
        partials: bool = True,
        stats: bool = False,
        deliver: Callable[[SessionEvent], bool] | None = None,
        listens: bool = True,
    ) -> None:
        self.phase, self._is_waiting = Phase.OPEN, False
        self._deliver = deliver
        self.listens = listens
        self._replay: Iterator[SessionEvent] | None = iter(replay)
        self._behind: Iterator[SessionEvent] = iter(())
        self._bound = bound
        self._wanted = {Partial: partials, Stats: stats}
        self._queue: OrderedDict[int, SessionEvent] = OrderedDict()
        self._keys: set[int] = set()  # of events that newer ones replace
        self._n_offered = 0
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing more joins the queue."""
        return self.phase is not Phase.OPEN

    @property
    def slow(self) -> bool:
        """Whether so much waited that the queue was dropped."""
        return self.phase is Phase.SLOW

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, event: SessionEvent) -> None:
        """Append an event to this subscriber's queue only; `Hub.publish` does so for all.

        A newer partial (`Stats`, `Ack`) replaces an unsent one, a final drops the partial of its
        segment. An event that finds the queue full closes the subscription as slow.
        """
        if self.closed or not self._wanted.get(type(event), True):
            return
        is_idle = self._is_waiting and not self._queue and not isinstance(event, Eos)
        if is_idle and self._deliver is not None and self._deliver(event):
            return
        if (key := _key(event)) is not None:
            self._keys.add(key)
            self._queue[key] = event
            self._queue.move_to_end(key)
        else:
            self._append(event)
        self._changed.set()

    def _append(self, event: SessionEvent) -> None:
        replaceable = [key for key in self._keys if key in self._queue]
        for key in replaceable:
            if outdates(event, self._queue[key]):
                del self._queue[key]
        n_replaceable = sum(key in self._queue for key in replaceable)
        if len(self._queue) - n_replaceable >= self._bound:
            self._clear()
            self.phase = following(SUBSCRIPTION, self.phase, Turn.OVERFLOW)
        else:
            self._n_offered += 1
            self._queue[self._n_offered] = event
            if isinstance(event, Eos):
                self.phase = following(SUBSCRIPTION, self.phase, Turn.END)

    def behind(self, events: Iterable[SessionEvent]) -> None:
        """Replay these, too, behind what is replayed, before what waits.

        They take the place of those of an earlier call that are left: a client may choose what it
        reads faster than it reads.
        """
        if not self.closed or self.more:
            self._replay, self._behind = self._replay or iter(()), iter(events)
            self._changed.set()

    @property
    def more(self) -> bool:
        """Whether `pop` may have another event at once."""
        return self._replay is not None or bool(self._queue)

    def pop(self) -> SessionEvent | None:
        """Take the next event out of the queue; None while it is empty."""
        if self._replay is not None:
            for source in (self._replay, self._behind):
                if (replayed := next(source, None)) is not None:
                    return replayed
            self._replay = None
        return self._queue.popitem(last=False)[1] if self._queue else None

    def close(self) -> None:
        """End the subscription and drop what waits."""
        self._clear()
        self.phase = following(SUBSCRIPTION, self.phase, Turn.CLOSE)
        self._deliver = None  # whoever owns it also owns the subscription: no cycle is left
        self._changed.set()

    def _clear(self) -> None:
        self._queue.clear()
        self._replay, self._behind = None, iter(())

    async def __anext__(self) -> SessionEvent:
        while (event := self.pop()) is None:
            if self.closed:
                raise StopAsyncIteration
            self._changed.clear()
            self._is_waiting = True
            await self._changed.wait()
            self._is_waiting = False
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def outdates(event: SessionEvent, partial: SessionEvent) -> bool:
    """Whether an event takes the place of a partial that waits or is shown."""
    if not isinstance(partial, Partial):
        return False
    if isinstance(event, Eos):
        return True
    return (
        isinstance(event, Final) and partial.channel == event.channel and partial.seg <= event.seg
    )
