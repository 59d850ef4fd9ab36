"""Fan-out of one session's events to any number of subscribers, each at its own pace.

The hub stamps finals with `seq`, keeps the newest of them for replay (all of them, if it has a
`Journal`) and puts every event into each subscriber's own bounded queue, so no subscriber can delay
another one or the session. All calls come from one thread.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import TypeVar

import msgspec

from streamd.events import (
    Correction,
    Eos,
    Event,
    Fault,
    Final,
    Missed,
    MissedReason,
    Partial,
    SessionEvent,
    SpeakerTurns,
    encode,
)
from streamd.labels import joined
from streamd.options import Choices
from streamd.streams.journal.journals import Journal, SharedJournal
from streamd.streams.journal.lines import Fed
from streamd.streams.life import HUB, Phase, Turn, following
from streamd.streams.subscription import Subscription, outdates

EventT = TypeVar("EventT", bound=SessionEvent)

_MOST_CORRECTIONS = 100
"""That new subscribers hear of."""
_MOST_TURNS = 1000
"""That new subscribers hear of: about two hours of a conversation."""


class Hub:
    """The events of one session and their subscribers.

    `history` finals are kept in memory for replay; a `journal` stores finals and gaps before they
    are published, and numbers continue after the stored ones. `bound` events may wait for a
    subscriber before it is closed as slow. `epoch` names this run of the session, so that a
    returning subscriber knows whether its `seq` is still valid; it is random unless given.
    """

    def __init__(
        self,
        session: str,
        history: int = 1000,
        *,
        bound: int = 256,
        epoch: str | None = None,
        journal: Journal | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.session = session
        self.choices = choices or Choices()
        """What its speaker has chosen, for clients to know."""
        self.epoch = journal.epoch if journal else epoch or secrets.token_hex(4)
        self.seq = self._numbered = 0 if journal is None else journal.seq
        """Number of the last final; 0 before the first."""
        self.started = journal.started if journal else datetime.now(UTC)
        self.journal = journal
        self.shared: SharedJournal | None = None
        """The same journal, if other machines can go on with the session."""
        self._finals: deque[Final] = deque(maxlen=history)
        self._turns: SpeakerTurns | None = None  # the newest
        self._partials: dict[int, Partial] = {}  # the newest of each channel, 0 if they are mixed
        self._corrections: deque[Correction] = deque(maxlen=_MOST_CORRECTIONS)
        self._fault: Fault | None = None
        self._eos: Eos | None = None
        self.phase = Phase.OPEN
        self._bound = bound
        self._encoded: tuple[Event | None, str] = None, ""
        self._subscriptions: set[Subscription] = set()

    @property
    def closed(self) -> bool:
        """Whether `Eos` was published; a new subscriber still gets the finals and a fatal fault."""
        return self.phase is Phase.ENDED

    @property
    def moves(self) -> bool:
        """Whether the session goes on at another node when this one ends."""
        return self.shared is not None and not self.closed

    @property
    def listeners(self) -> int:
        """Number of open subscriptions of listeners."""
        return sum(each.listens and not each.closed for each in self._subscriptions)

    @property
    def queued(self) -> int:
        """Number of events in the longest queue."""
        return max(map(len, self._subscriptions), default=0)

    def publish(self, event: EventT) -> EventT:
        """Put an event into the queues of all subscribers; return it, a final with its `seq`.

        No subscriber gets it before all finals and gaps until then are stored. Nothing may follow
        `Eos`. Raises `JournalError` if a final or a gap cannot be stored; then nobody gets it.
        """
        if self.closed:
            late = type(event).__name__
            raise RuntimeError(f"session {self.session!r} has ended: {late} is late")
        if isinstance(event, Final):
            event = msgspec.structs.replace(event, seq=self._numbered + 1)
        if self.journal is None:
            self._release(event)
        else:
            self.journal.store(event, self._release)
        if isinstance(event, Final):
            self._numbered = event.seq
        return event

    def relay(self, event: Fed | SessionEvent) -> None:
        """Give subscribers an event that another node has published, and stored if need be."""
        if isinstance(event, Fed):
            self.choices = event.choices or self.choices
        elif not self.closed:
            self._release(event)
            self._numbered = self.seq

    def renumber(self) -> None:
        """Give the numbers of finals that were not stored again: another node has the session."""
        self._numbered = self.seq

    def _release(self, event: SessionEvent) -> None:
        if isinstance(event, Final):
            self.seq = event.seq
        self._remember(event)
        for subscription in self._subscriptions:
            subscription.offer(event)
        self._subscriptions = {s for s in self._subscriptions if not s.closed}

    def encode(self, event: Event) -> str:
        """Encode an event; the newest one is encoded once for all subscribers."""
        if self._encoded[0] is not event:
            self._encoded = event, encode(event)
        return self._encoded[1]

    def _remember(self, event: SessionEvent) -> None:
        match event:
            case Final():
                self._finals.append(event)
            case SpeakerTurns():
                self._turns = joined(self._turns, event, most=_MOST_TURNS)
            case Partial():
                self._partials[event.channel or 0] = event
            case Correction(seq=seq) if seq:
                self._corrections.append(event)
            case Fault(fatal=True):
                self._fault = event
            case Eos():
                self._eos, self.phase = event, following(HUB, self.phase, Turn.END)
        for channel, partial in [*self._partials.items()]:
            if outdates(event, partial):
                del self._partials[channel]

    def subscribe(
        self,
        after: int | None = None,
        *,
        epoch: str | None = None,
        partials: bool = True,
        stats: bool = False,
        deliver: Callable[[SessionEvent], bool] | None = None,
        listens: bool = True,
    ) -> Subscription:
        """Subscribe from now on, or from an earlier final on; use it as a context manager.

        The finals after number `after` are replayed, then live events follow, without a gap or a
        duplicate. `Missed` announces finals that are no longer stored. `epoch` is the run of the
        session that `after` counts in, if the subscriber knows it. Then comes who has talked when,
        which corrects replayed finals and those that the subscriber has, and the newest corrections
        of words. The current partial comes at once, if `partials` are wanted.
        """
        is_new = after is None
        after, lost = self._begin_of_replay(after, epoch)
        # While a long replay is read, about as many new events may come: they need room, too.
        bound = self._bound + self.seq - after
        replay = chain((lost,) if lost else (), self._stored(after))
        subscription = Subscription(
            bound, replay, partials=partials, stats=stats, deliver=deliver, listens=listens
        )
        current = (*self._partials.values(), self._fault, self._eos)
        for event in current if is_new else (self._turns, *self._corrections, *current):
            if event is not None:
                subscription.offer(event)
        self._subscriptions = {s for s in (*self._subscriptions, subscription) if not s.closed}
        return subscription

    def close(self, reason: str) -> None:
        """Publish `Eos` and end all subscriptions; the second call does nothing."""
        if not self.closed:
            self.publish(Eos(seq=self.seq, reason=reason))

    def _begin_of_replay(self, after: int | None, epoch: str | None) -> tuple[int, Missed | None]:
        """Return the final after which a replay begins, and what is missing before it."""
        if after is None:
            return self.seq, None
        if after > self.seq or epoch not in (None, self.epoch):
            # The subscriber was in another run of the session: its number is not one of this run.
            return self._first - 1, Missed(from_seq=0, to_seq=0, why=MissedReason.EPOCH)
        if after + 1 < self._first:
            lost = Missed(from_seq=after + 1, to_seq=self._first - 1, why=MissedReason.RETENTION)
            return self._first - 1, lost
        return after, None

    @property
    def _first(self) -> int:
        """Number of the oldest final that can be replayed."""
        return self.seq - len(self._finals) + 1 if self.journal is None else self.journal.first

    def _stored(self, after: int) -> Iterator[SessionEvent]:
        """Give the finals after `after` as of now: from the journal first, then from memory."""
        recent = [final for final in self._finals if final.seq > after]
        upto = recent[0].seq - 1 if recent else self.seq
        if self.journal is None or upto <= after:
            return _without_holes(recent, after, self.seq)
        stored = self.journal.read(after, upto)
        return _without_holes(chain(stored, recent), after, self.seq)


def _without_holes(finals: Iterable[Final], after: int, upto: int) -> Iterator[SessionEvent]:
    """Announce finals that expire while a slow subscriber is still reading the ones before."""
    for final in finals:
        if final.seq > after + 1:
            yield Missed(from_seq=after + 1, to_seq=final.seq - 1, why=MissedReason.RETENTION)
        after = final.seq
        yield final
    if after < upto:
        yield Missed(from_seq=after + 1, to_seq=upto, why=MissedReason.RETENTION)
