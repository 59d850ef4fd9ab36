"""One subscriber's line of events that it has not fetched yet: bounded, in nobody's way."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Self

from streamd.events import Ack, Eos, Final, Partial, SessionEvent, Stats

_REPLACED: Mapping[type[SessionEvent], int] = MappingProxyType({Partial: 0, Stats: -1, Ack: -2})
"""What a newer one replaces in a subscriber's line, by key; all other keys count up from 1."""


class Subscription(AsyncIterator[SessionEvent]):
    """One subscriber's line of unsent events.

    Iterate over it, or call `pop` and do the waiting yourself. The iteration ends after `Eos`,
    after `close`, or when the subscriber was too slow: then `slow` is true and what was in line is
    forgotten; the subscriber misses no final if it subscribes again, `after` its last `seq`.

    Parameters
    ----------
    bound : how many events may wait, besides those that a newer one replaces
    replay : what comes first; it does not wait in the line, but is fetched when it is its turn
    partials, stats : whether these are wanted at all
    """

    def __init__(
        self,
        bound: int,
        replay: Iterable[SessionEvent] = (),
        *,
        partials: bool = True,
        stats: bool = False,
    ) -> None:
        self.slow = False
        self._replay = iter(replay)
        self._bound = bound
        self._wanted = {Partial: partials, Stats: stats}
        self._line: OrderedDict[int, SessionEvent] = OrderedDict()
        self._n_offered = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing more will join the line."""
        return self._closed

    def __len__(self) -> int:
        """How many events wait, less those that are replayed."""
        return len(self._line)

    def offer(self, event: SessionEvent) -> None:
        """Put an event at the end of this subscriber's line, for it alone.

        A newer partial (`Stats`, `Ack`) takes the place of an unsent one, a final drops the partial
        of its segment. An event that finds the line full closes the subscription as slow.
        """
        if self._closed:
            return
        if (key := _REPLACED.get(type(event))) is not None:
            if self._wanted.get(type(event), True):
                self._line[key] = event
                self._line.move_to_end(key)
        else:
            self._drop_outdated_partial(event)
            n_replaceable = sum(key in self._line for key in _REPLACED.values())
            if len(self._line) - n_replaceable >= self._bound:
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
        partial = self._line.get(_REPLACED[Partial])
        if partial is not None and outdates(event, partial):
            del self._line[_REPLACED[Partial]]

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


def outdates(event: SessionEvent, partial: SessionEvent) -> bool:
    """Whether `partial` says nothing any more once `event` is known."""
    if isinstance(event, Eos):
        return True
    return isinstance(event, Final) and isinstance(partial, Partial) and partial.seg <= event.seg
