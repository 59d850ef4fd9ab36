"""Fan-out of one session's events to any number of subscribers, each at its own pace.

The hub stamps finals with `seq`, keeps the newest of them for replay (all, if it is given an
`Archive`), and hands every subscriber its own bounded line: no subscriber can delay another one or
the session. Publishing never waits. It does not know about sockets, files or threads: all calls
come from one thread, and only a subscriber that iterates needs an event loop.
"""

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain, islice
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from streamd.events import Eos, Fault, Final, Missed, Partial, SessionEvent

EventT = TypeVar("EventT", bound=SessionEvent)

_PARTIAL = 0
"""Key of the one partial in a subscriber's line; all other keys count up from 1."""


class Archive(Protocol):
    """Keeps the finals of one run of a session, also those of an earlier process."""

    epoch: str
    seq: int
    """Of the newest final."""

    @property
    def first(self) -> int:
        """Number of the oldest final that is kept."""
        ...

    def append(self, final: Final) -> None:
        """Keep the next final; when this returns nothing can happen to it any more."""
        ...

    def read(self, after: int, upto: int) -> Iterator[Final]:
        """Give the finals behind `after` up to `upto` in order, as far as they are kept."""
        ...


class Subscription(AsyncIterator[SessionEvent]):
    """One subscriber's line of unsent events.

    Iterate over it, or call `pop` and do the waiting yourself. The iteration ends after `Eos`,
    after `close`, or when the subscriber was too slow: then `slow` is true and what was in line is
    forgotten; the subscriber misses no final if it subscribes again, `after` its last `seq`.

    Parameters
    ----------
    bound : how many events other than the partial may wait
    replay : what comes first; it does not wait in the line, but is fetched when it is its turn
    partials : whether partials are wanted at all
    """

    def __init__(
        self, bound: int, replay: Iterable[SessionEvent] = (), *, partials: bool = True
    ) -> None:
        self.slow = False
        self._replay = iter(replay)
        self._bound = bound
        self._partials = partials
        self._line: OrderedDict[int, SessionEvent] = OrderedDict()
        self._n_offered = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing more will join the line."""
        return self._closed

    def offer(self, event: SessionEvent) -> None:
        """Put an event at the end of this subscriber's line, for it alone.

        A newer partial takes the place of an unsent one, a final drops the partial of its segment.
        An event that finds the line full closes the subscription as slow.
        """
        if self._closed:
            return
        if isinstance(event, Partial):
            if self._partials:
                self._line[_PARTIAL] = event
                self._line.move_to_end(_PARTIAL)
        else:
            self._drop_outdated_partial(event)
            if len(self._line) - (_PARTIAL in self._line) >= self._bound:
                self._forget()
                self.slow = self._closed = True
            else:
                self._n_offered += 1
                self._line[self._n_offered] = event
                self._closed = isinstance(event, Eos)
        self._changed.set()

    def pop(self) -> SessionEvent | None:
        """Take the next event out of the line, or None while it is empty."""
        if (replayed := next(self._replay, None)) is not None:
            return replayed
        return self._line.popitem(last=False)[1] if self._line else None

    def close(self) -> None:
        """Leave: nothing more joins the line, and what is in it is forgotten."""
        self._forget()
        self._closed = True
        self._changed.set()

    def _forget(self) -> None:
        self._line.clear()
        self._replay = iter(())

    def _drop_outdated_partial(self, event: SessionEvent) -> None:
        partial = self._line.get(_PARTIAL)
        if partial is not None and _outdates(event, partial):
            del self._line[_PARTIAL]

    async def __anext__(self) -> SessionEvent:
        while (event := self.pop()) is None:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Hub:
    """The events of one session, for everybody who listens.

    Parameters
    ----------
    session : its name on the wire
    history : how many finals are kept for replay
    bound : how many events a subscriber may be behind before it is closed as slow
    epoch : names this run of the session, so that a subscriber who comes back knows whether its
        `seq` still means anything; made up unless given
    archive : where finals are kept before they are published; the session goes on where that
        stands. Without one, `history` is all there is to replay
    """

    def __init__(
        self,
        session: str,
        history: int = 1000,
        *,
        bound: int = 256,
        epoch: str | None = None,
        archive: Archive | None = None,
    ) -> None:
        self.session = session
        self.epoch = archive.epoch if archive else epoch or secrets.token_hex(4)
        self.seq = 0 if archive is None else archive.seq
        """Number of the last final; 0 before the first."""
        self._archive = archive
        self._finals: deque[Final] = deque(maxlen=history)
        self._partial: Partial | None = None
        self._fault: Fault | None = None
        self._eos: Eos | None = None
        self._bound = bound
        self._subscriptions: set[Subscription] = set()

    @property
    def closed(self) -> bool:
        """Whether `Eos` was published; finals, and why it failed if it did, can still be had."""
        return self._eos is not None

    def publish(self, event: EventT) -> EventT:
        """Hand an event to all subscribers; a final comes back with its `seq`.

        Raises
        ------
        RuntimeError : after `Eos`, because nothing may follow it
        StreamdError : the archive cannot take a final; nobody has heard of it
        """
        if self._eos is not None:
            raise RuntimeError(
                f"session {self.session!r} has ended: {type(event).__name__} is late"
            )
        if isinstance(event, Final):
            event = msgspec.structs.replace(event, seq=self.seq + 1)
            if self._archive is not None:
                self._archive.append(event)
            self.seq += 1
            self._finals.append(event)
        elif isinstance(event, Partial):
            self._partial = event
        elif isinstance(event, Fault) and event.fatal:
            self._fault = event
        elif isinstance(event, Eos):
            self._eos = event
        if self._partial is not None and _outdates(event, self._partial):
            self._partial = None
        for subscription in self._subscriptions:
            subscription.offer(event)
        self._subscriptions = {s for s in self._subscriptions if not s.closed}
        return event

    def subscribe(
        self, after: int | None = None, *, epoch: str | None = None, partials: bool = True
    ) -> Subscription:
        """Join, from now on or from an earlier final on; use it as a context manager.

        Parameters
        ----------
        after : number of the last final that the subscriber has: the later ones are replayed, then
            everything follows live, without a hole and without a double. Finals that are no longer
            kept are announced by `Missed`. None: no replay.
        epoch : the run of the session that `after` counts in, if the subscriber knows it
        partials : whether partials are wanted; the current one comes at once
        """
        after, lost = self._begin_of_replay(after, epoch)
        # As much more may be said while a long replay is being read.
        bound = self._bound + self.seq - after
        replay = chain((lost,) if lost else (), self._kept(after))
        subscription = Subscription(bound, replay, partials=partials)
        for current in (self._partial, self._fault, self._eos):
            if current is not None:
                subscription.offer(current)
        self._subscriptions = {s for s in (*self._subscriptions, subscription) if not s.closed}
        return subscription

    def close(self, reason: str) -> None:
        """Publish `Eos` and end all subscriptions; the second time does nothing."""
        if self._eos is None:
            self.publish(Eos(seq=self.seq, reason=reason))

    def _begin_of_replay(self, after: int | None, epoch: str | None) -> tuple[int, Missed | None]:
        """The final behind which a replay begins, and what is lost before that."""
        if after is None:
            return self.seq, None
        if after > self.seq or epoch not in (None, self.epoch):
            # The subscriber was in another run of the session: its number means nothing here.
            return self._first - 1, Missed(from_seq=0, to_seq=0, why="epoch")
        if after + 1 < self._first:
            lost = Missed(from_seq=after + 1, to_seq=self._first - 1, why="retention")
            return self._first - 1, lost
        return after, None

    @property
    def _first(self) -> int:
        """Number of the oldest final that can be replayed."""
        return self.seq - len(self._finals) + 1 if self._archive is None else self._archive.first

    def _kept(self, after: int) -> Iterator[SessionEvent]:
        """The finals behind `after`, as they are now."""
        n_recent = min(self.seq - after, len(self._finals))
        recent = list(islice(self._finals, len(self._finals) - n_recent, None))
        upto = self.seq - n_recent
        if self._archive is None or upto <= after:
            return iter(recent)
        return chain(_without_holes(self._archive.read(after, upto), after, upto), recent)


def _without_holes(finals: Iterable[Final], after: int, upto: int) -> Iterator[SessionEvent]:
    """What is read over a long time may be gone when it is its turn."""
    for final in finals:
        if final.seq > after + 1:
            yield Missed(from_seq=after + 1, to_seq=final.seq - 1, why="retention")
        after = final.seq
        yield final
    if after < upto:
        yield Missed(from_seq=after + 1, to_seq=upto, why="retention")


def _outdates(event: SessionEvent, partial: SessionEvent) -> bool:
    """Whether `partial` says nothing any more once `event` is known."""
    if isinstance(event, Eos):
        return True
    return isinstance(event, Final) and isinstance(partial, Partial) and partial.seg <= event.seg
