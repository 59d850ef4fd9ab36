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
    Eos,
    Event,
    Fault,
    Final,
    Missed,
    MissedReason,
    Note,
    Partial,
    SessionEvent,
    Sound,
    SpeakerName,
    SpeakerTurns,
    encode,
)
from streamd.labels import joined, revise, revised, shown
from streamd.options import Choices
from streamd.speakers import REMEMBERED, SpokenTurn
from streamd.streams.journal.journals import Journal
from streamd.streams.journal.lines import Fed
from streamd.streams.life import HUB, Phase, Turn
from streamd.streams.subscription import Subscription, outdates
from streamd.types import following, ms_from_frames

EventT = TypeVar("EventT", bound=SessionEvent)

_MOST_TURNS = 1_000
"""That subscribers who come back hear of, whose last minute of finals may have been revised."""
_MOST_NOTES = 10_000
"""That new subscribers hear of: the corrections of an interview of hours."""


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
        self._finals: deque[Final] = deque(maxlen=history)
        self._turns: SpeakerTurns | None = None  # the newest ones
        self._spoken: list[SpokenTurn] = []  # who talks in the last minute
        self._partials: dict[int, Partial] = {}  # the newest of each channel, 0 if they are mixed
        self._notes: deque[Note] = deque(maxlen=_MOST_NOTES)
        self._names: dict[int, SpeakerName] = {}  # the newest of each speaker
        if journal is not None:
            for note in journal.notes():
                self._remember(note)
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
        return self.journal is not None and self.journal.moves and not self.closed

    @property
    def listeners(self) -> int:
        """Number of open subscriptions of listeners."""
        return sum(each.listens and not each.closed for each in self._subscriptions)

    def named(self, speaker: int) -> str:
        """What a speaker is called; empty if nobody has said so, or if it was taken back."""
        return self._names[speaker].name if speaker in self._names else ""

    @property
    def speakers_named(self) -> set[int]:
        """The numbers of those of whom somebody has said what they are called, or are not."""
        return {*self._names}

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
        """Give subscribers an event that somebody else has published, and stored if need be."""
        if isinstance(event, Fed):
            self.choices = event.choices or self.choices
        elif not self.closed:
            self._release(event)
            self._numbered = self.seq
        elif isinstance(event, Note):
            self._remember(event)  # for those who subscribe from now on

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
                self._revise(event)
            case Partial():
                self._partials[event.channel or 0] = event
            case _ if isinstance(event, Note):
                self._remember_note(event)
            case Fault(fatal=True):
                self._fault = event
            case Eos():
                self._eos, self.phase = event, following(HUB, self.phase, Turn.END)
        for channel, partial in [*self._partials.items()]:
            if outdates(event, partial):
                del self._partials[channel]

    def _remember_note(self, note: Note) -> None:
        if isinstance(note, SpeakerName):
            self._names[note.speaker] = note
        elif isinstance(note, Sound) or note.seq:  # or else it is of no word that was shown
            self._notes.append(note)

    def _revise(self, event: SpeakerTurns) -> None:
        """Give finals other speakers, so that whoever comes later has the same as the others."""
        self._turns = joined(self._turns, event, most=_MOST_TURNS)
        self._spoken = revised(self._spoken, event)
        for i in revise(self._finals, self._spoken, event):
            if self.journal is not None:
                self.journal.revise(self._finals[i])

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

        The finals after number `after` are replayed with the speakers that they have by now, then
        live events follow, without a gap or a duplicate. `Missed` announces finals that are no
        longer stored. `epoch` is the run of the session that `after` counts in, if the subscriber
        knows it. Before the finals come the turns of those that the subscriber has; behind them,
        the turns of the last minute, which later revisions continue, and the newest notes
        about finals. What speakers are called comes in any case. The current partial comes at once,
        if `partials` are wanted.
        """
        is_new = after is None
        after, lost = self._begin_of_replay(after, epoch)
        # While a long replay is read, about as many new events may come: they need room, too.
        bound = self._bound + self.seq - after
        older = self._revision(after) if after and not is_new else None
        behind = () if is_new else (self._context, *self._notes)
        every = chain((lost, older), self._stored(after), behind, [*self._names.values()])
        replay = (event for event in every if event is not None)
        subscription = Subscription(
            bound, replay, partials=partials, stats=stats, deliver=deliver, listens=listens
        )
        for event in (*self._partials.values(), self._fault, self._eos):
            if event is not None:
                subscription.offer(event)
        self._subscriptions = {s for s in (*self._subscriptions, subscription) if not s.closed}
        return subscription

    def amend(self, note: Note) -> None:
        """Add to the finals after the end: who subscribes from now on hears of it.

        Raises `JournalError` if it cannot be stored.
        """
        if self.journal is None:
            self._remember(note)
        else:
            self.journal.store(note, self._remember)

    def close(self, reason: str) -> None:
        """Publish `Eos` and end all subscriptions; the second call does nothing."""
        if not self.closed:
            self.publish(Eos(seq=self.seq, reason=reason))

    def _revision(self, after: int) -> SpeakerTurns | None:
        """Return what was said of the minute before a subscriber's last final, and since."""
        if self._turns is None:
            return None
        known = (final.end_ms for final in self._finals if final.seq == after)
        start_ms = next(known, 0) - ms_from_frames(REMEMBERED)
        turns = tuple(turn for turn in self._turns.turns if turn.end_ms > start_ms)
        start_ms = max(start_ms, self._turns.start_ms)
        return msgspec.structs.replace(self._turns, start_ms=start_ms, turns=turns)

    @property
    def _context(self) -> SpeakerTurns | None:
        """Who talks in the last minute; it changes no final."""
        if self._turns is None:
            return None
        end_ms = self._turns.end_ms
        return SpeakerTurns(start_ms=end_ms, end_ms=end_ms, turns=shown(self._spoken))

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
