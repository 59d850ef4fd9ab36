"""Fan-out of one session's events to any number of subscribers, each at its own pace.

The hub stamps finals with `seq`, keeps the newest of them for replay (all, if it is given an
`Archive`), and hands every subscriber its own bounded line: no subscriber can delay another one or
the session. Publishing never waits. It does not know about sockets, files or threads: all calls
come from one thread, and only a subscriber that iterates needs an event loop.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Protocol, TypeVar

import msgspec

from streamd.events import Eos, Fault, Final, Missed, MissedReason, Partial, SessionEvent
from streamd.hub.line import Subscription, outdates

__all__ = ["Archive", "Hub", "Subscription"]

EventT = TypeVar("EventT", bound=SessionEvent)


class Archive(Protocol):
    """Keeps the finals of one run of a session, also those of an earlier process."""

    epoch: str
    started: datetime
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
        self.started = archive.started if archive else datetime.now(UTC)
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

    @property
    def listeners(self) -> int:
        """How many hear it."""
        return sum(not subscription.closed for subscription in self._subscriptions)

    @property
    def queued(self) -> int:
        """How many events wait in the longest line."""
        return max(map(len, self._subscriptions), default=0)

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
        if self._partial is not None and outdates(event, self._partial):
            self._partial = None
        for subscription in self._subscriptions:
            subscription.offer(event)
        self._subscriptions = {s for s in self._subscriptions if not s.closed}
        return event

    def subscribe(
        self,
        after: int | None = None,
        *,
        epoch: str | None = None,
        partials: bool = True,
        stats: bool = False,
    ) -> Subscription:
        """Join, from now on or from an earlier final on; use it as a context manager.

        Parameters
        ----------
        after : number of the last final that the subscriber has: the later ones are replayed, then
            everything follows live, without a hole and without a double. Finals that are no longer
            kept are announced by `Missed`. None: no replay.
        epoch : the run of the session that `after` counts in, if the subscriber knows it
        partials : whether partials are wanted; the current one comes at once
        stats : whether `Stats` are wanted
        """
        after, lost = self._begin_of_replay(after, epoch)
        # As much more may be said while a long replay is being read.
        bound = self._bound + self.seq - after
        replay = chain((lost,) if lost else (), self._kept(after))
        subscription = Subscription(bound, replay, partials=partials, stats=stats)
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
            return self._first - 1, Missed(from_seq=0, to_seq=0, why=MissedReason.EPOCH)
        if after + 1 < self._first:
            lost = Missed(from_seq=after + 1, to_seq=self._first - 1, why=MissedReason.RETENTION)
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
            yield Missed(from_seq=after + 1, to_seq=final.seq - 1, why=MissedReason.RETENTION)
        after = final.seq
        yield final
    if after < upto:
        yield Missed(from_seq=after + 1, to_seq=upto, why=MissedReason.RETENTION)
